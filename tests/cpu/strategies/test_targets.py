"""Functions that pick an element of each row by its number, on the emulator."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from softgen.devices.emulator import Job, build
from softgen.errors import EmulationError
from softgen.problems.arch import arch_named
from softgen.problems.dtypes import Integer
from softgen.problems.functions.cross_entropy import hard_targets
from softgen.problems.hooks.known import HOOKS
from softgen.problems.numerics import check, decode, encode, other_inputs
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.select import select
from softgen.strategies.variants import Variant

H200 = arch_named("sm_90")
LARGEST = 2**31 - 1


def variant_of(problem: Problem, choice: str, rows: int = 64) -> Variant:
    return select(problem, rows, H200, choice)


def x_of(problem: Problem, rows: int) -> Any:
    values = np.random.default_rng(problem.cols).standard_normal((rows, problem.cols)) * 4
    return encode(values, problem.dtype)


def job_of(variant: Variant, target: Any = None, rows: int = 9, **options: Any) -> Job:
    problem = variant.problem
    x = x_of(problem, rows)
    others = list(other_inputs(x, problem))
    if target is not None:
        others[0] = np.asarray(target, others[0].dtype)
    return Job(render(variant), x, tuple(others), **options)


def run(*jobs: Job) -> list[Any]:
    found = build([job.source for job in jobs]).run_counted(jobs)
    for each in found:
        if isinstance(each, EmulationError):
            raise each
    return found


FORWARD: list[tuple[str, int, str]] = [
    *(("float32", 100, "warp"), ("bfloat16", 1000, "block"), ("float64", 33, "online")),
    *(("float16", 20000, "cluster"), ("float32", 8193, "split"), ("bfloat16", 20000, "shared")),
    ("float32", 33, "safe"),
]


def test_a_row_that_is_ignored_is_not_read() -> None:
    variants = [
        variant_of(Problem.of("cross_entropy", dtype, cols), choice)
        for dtype, cols, choice in FORWARD
    ]
    jobs = [
        job_of(variant, [-100] * (9 - count) + [3] * count)
        for variant in variants
        for count in (0, 1, 9)
    ]
    found = run(*jobs)
    for variant in variants:
        (results, work), (_, of_one), (_, of_all) = (found.pop(0) for _ in range(3))
        assert not results[0].any()
        assert np.isneginf(results[1]).all()
        row = (of_all.accesses - work.accesses) // 9
        assert abs(of_one.accesses - work.accesses - row) <= 2  # packs that are cut differ
        if variant.strategy.name == "shared":  # which copies rows before it looks
            assert row == variant.launch.block_size  # each thread reads the target's element
        else:
            assert row >= variant.problem.cols * variant.problem.dtype.itemsize // 16


def test_the_target_of_a_hooked_row_is_hooked_too() -> None:
    """Behind the end of a row the target is -inf, and not loaded."""
    hooks = [hook for hook in HOOKS if hook.name in ("scale", "softcap", "biasf16", "causal")]
    problem = Problem.of("cross_entropy", "float32", 100, hooks=hooks)
    jobs = [job_of(variant_of(problem, each), rows=13) for each in ("warp", "block", "online")]
    for job, (results, _) in zip(jobs, run(*jobs), strict=True):
        found = check(results, job.inputs, problem)
        assert found.ok, found.message
        assert np.isposinf(results[0]).any()
        assert np.isfinite(results[0]).any()


IN_PLACE = (
    *((1000, "float32", each) for each in ("warp", "block", "online", "safe")),
    *((5000, "float32", each) for each in ("shared", "cluster")),
    (5000, "bfloat16", "block_p8_c8_g1024_b1024_m1_pk"),
)


def test_a_gradient_in_place_reads_its_target_before_it_is_written() -> None:
    """Whichever column it is; the emulator refuses to read what another thread has overwritten."""
    jobs = []
    for cols, dtype, choice in IN_PLACE:
        columns = [0, 3, cols - 1, cols // 2, 4, 777, -100, LARGEST, cols]
        job = job_of(variant_of(Problem.of("cross_entropy_grad", dtype, cols), choice), columns)
        jobs += [job, replace(job, in_place=True)]
    results = run(*jobs)
    for job in jobs[::2]:
        (apart, _), (in_place, _) = results.pop(0), results.pop(0)
        assert [each.tobytes() for each in apart] == [each.tobytes() for each in in_place]
        problem = job.source.variant.problem
        found = check(apart, job.inputs, problem)
        assert found.ok, found.message
        dx = decode(apart[0], problem.dtype)
        assert not dx[6].any()
        assert np.isnan(dx[7:]).all()


def test_targets_of_both_types_give_the_same_bits() -> None:
    stems = ["cross_entropy", "cross_entropy_smooth", "cross_entropy_backward"]
    stems += ["cross_entropy_grad", "cross_entropy_grad_rows", "cross_entropy_grad_smooth"]
    problems = [
        Problem.of(f"{stem}{kind}", "float32", 100) for stem in stems for kind in ("_i32", "")
    ]
    kinds = [problem.inputs[1].dtype for problem in problems]
    assert kinds == [Integer.INT32, Integer.INT64] * len(stems)
    found = run(*(job_of(variant_of(problem, "warp")) for problem in problems))
    for (first, _), (second, _) in zip(found[::2], found[1::2], strict=True):
        assert [each.tobytes() for each in first] == [each.tobytes() for each in second]


def test_strategies_that_write_before_all_is_read_do_not_compute_the_gradient() -> None:
    problem = Problem.of("cross_entropy_grad", "float32", 32768)
    for choice in ("split_p4_c16_b128_m4", "cooperative_p4_c16_b384_k4_n1_s8_f2_l0"):
        with pytest.raises(Exception, match="read by its column before any result is written"):
            variant_of(problem, choice)


def test_targets_for_tests_are_of_all_kinds_and_those_for_timing_are_columns() -> None:
    hard = hard_targets(60, 1000)
    assert {0, 999, 1000, -1, -100, LARGEST} <= set(hard.tolist())
    for name in ("cross_entropy", "cross_entropy_grad_i32", "cross_entropy_backward"):
        timed = Problem.of(name, "float32", 50).function.timed_inputs(4000, 50)["target"]
        assert set(timed.tolist()) == set(range(50))


GRADIENTS: list[tuple[str, str, int, str]] = [
    *(
        ("cross_entropy_grad", "float32", 100, "warp"),
        ("cross_entropy_grad", "bfloat16", 999, "block"),
    ),
    ("cross_entropy_grad", "bfloat16", 33001, "cluster_p8_c40_b128_k8_m1_pk"),
    ("cross_entropy_grad", "float16", 33000, "cluster_p8_c40_b128_k8_m1_pk"),
    ("cross_entropy_grad", "float32", 9000, "cluster_p4_c20_b128_k4_m1"),
    *(
        ("cross_entropy_grad", "float64", 33, "online"),
        ("cross_entropy_grad", "bfloat16", 4000, "shared"),
    ),
    *(
        ("cross_entropy_backward", "float32", 100, "warp"),
        ("cross_entropy_backward", "bfloat16", 999, "online"),
    ),
    ("cross_entropy_backward", "bfloat16", 2001, "online_p8_u2_b64_s2"),
]


def test_a_column_may_be_the_number_of_rows_that_are_ignored() -> None:
    variants = [
        variant_of(Problem.of(function, dtype, cols), choice)
        for function, dtype, cols, choice in GRADIENTS
    ]
    jobs = []
    for variant in variants:
        job = job_of(variant, [0, 7, 0, 31, 1, 0, 2, 0, 3])
        target, _, *others = job.inputs[1:]
        ignored = (target, np.asarray(0, np.int64), *others)
        jobs.append(Job(job.source, job.inputs[0], ignored))
    for job, (results, _) in zip(jobs, run(*jobs), strict=True):
        problem = job.source.variant.problem
        dx = decode(results[0], problem.results[0].dtype)
        assert not dx[[0, 2, 5, 7]].any()
        assert dx[[1, 3, 4, 6, 8]].any(axis=1).all()
        outcome = check(results, job.inputs, problem)
        assert outcome.ok, f"{job.source.name}: {outcome.message}"


EXTREMES: list[tuple[str, str]] = [
    *(("float32", "warp"), ("float32", "block"), ("bfloat16", "online"), ("float16", "safe")),
    *(("float64", "warp"), ("float64", "safe")),
]


def test_a_negative_z_loss_of_the_largest_numbers_is_no_nan() -> None:
    """The loss less z_loss lse^2 is inf - inf where both overflow; their difference may not."""
    jobs = []
    for dtype, choice in EXTREMES:
        variant = variant_of(Problem.of("cross_entropy", dtype, 33), choice)
        problem, source = variant.problem, render(variant)
        kind = np.dtype(problem.compute_dtype.value)
        largest = {"float16": 65504.0, "bfloat16": 3.3895e38}.get(dtype, float(np.finfo(kind).max))
        x = np.zeros((9, 33))
        x[0], x[1], x[2, :3], x[3, 1], x[4, 2] = largest, -largest, largest, largest, -largest
        x[2, 7], x[3, 2], x[5, 0], x[6, 0] = -largest, -largest, largest / 2, -np.inf
        x[5, 1] = -largest / 2
        target = np.array([0, 1, 7, 2, 2, 1, 0, 3, 32])
        least, tiny = float(np.finfo(kind).min), float(np.finfo(kind).tiny)
        for z_loss in (-1e-4, -1.0, least, -1.5 * tiny, -2.5 * tiny):
            others = (target, np.asarray(-100), np.asarray(z_loss, kind))
            jobs.append(Job(source, encode(x, problem.dtype), others))
    for job, (results, _) in zip(jobs, run(*jobs), strict=True):
        problem = job.source.variant.problem
        outcome = check(results, job.inputs, problem)
        assert outcome.ok, f"{job.source.name}, z_loss {job.inputs[-1]}: {outcome.message}"
        assert not np.isnan(results[0]).any()


def test_a_large_z_loss_of_an_lse_of_0_is_no_nan() -> None:
    """Twice a weight above half of the largest number overflows, and inf times 0 is NaN."""
    jobs = []
    for dtype, choice in (("float32", "warp"), ("bfloat16", "online"), ("float16", "safe")):
        problem = Problem.of("cross_entropy_backward", dtype, 33)
        job = job_of(variant_of(problem, choice))
        inputs = list(job.inputs)
        names = [operand.name for operand in problem.inputs]
        inputs[names.index("lse")] = np.zeros_like(inputs[names.index("lse")])
        for z_loss in (0.75, -0.75, 1.0, -1.0):
            weight = np.float32(z_loss) * np.finfo(np.float32).max
            inputs[names.index("z_loss")] = np.asarray(weight, np.float32)
            jobs.append(replace(job, others=tuple(inputs[1:])))
    for job, (results, _) in zip(jobs, run(*jobs), strict=True):
        problem = job.source.variant.problem
        outcome = check(results, job.inputs, problem)
        assert outcome.ok, f"{job.source.name}: {outcome.message}"


def test_a_sink_is_no_class() -> None:
    """Of the reference, which has it as one more column, as of kernels."""
    cols = 33
    target = [0, cols, cols - 1, cols + 1, -1, -100, cols, 5, 7]
    jobs = []
    for dtype, choice in (("float32", "warp"), ("bfloat16", "block"), ("float64", "safe")):
        hooks = [hook for hook in HOOKS if hook.name == "sinkf32"]
        variant = variant_of(Problem.of("cross_entropy", dtype, cols, hooks=hooks), choice)
        job = job_of(variant, target)
        jobs.append(job)
        for ignored in (-1, cols):
            id_, _, *others = job.inputs[1:]
            jobs.append(Job(job.source, job.inputs[0], (id_, np.asarray(ignored), *others)))
    for job, (results, _) in zip(jobs, run(*jobs), strict=True):
        problem = job.source.variant.problem
        outcome = check(results, job.inputs, problem)
        assert outcome.ok, f"{job.source.name}: {outcome.message}"
        ignored = np.asarray(target) == job.inputs[2]
        none = ((np.asarray(target) < 0) | (np.asarray(target) >= cols)) & ~ignored
        assert np.isnan(results[0]).tolist() == none.tolist()


def test_a_row_that_is_ignored_may_hold_anything() -> None:
    """NaN and what overflows, where rows start within packs, too."""
    jobs = []
    stems = ("cross_entropy", "cross_entropy_grad", "cross_entropy_backward")
    for name in (*stems, "cross_entropy_backward_shard"):
        cases = [(33, "warp_p2_c4_g16_r2_pad_b128"), (33, "warp")]
        cases += [] if "backward" in name else [(1001, "block"), (20001, "cluster")]
        for dtype, (cols, choice) in itertools.product(("bfloat16", "float16"), cases):
            problem = Problem.of(name, dtype, cols)
            job = job_of(variant_of(problem, choice), [-100] * 9)
            x = np.full(job.x.shape, np.nan)
            x[::2] = 60000.0
            jobs.append(replace(job, x=encode(x, problem.dtype)))
    for job, (results, _) in zip(jobs, run(*jobs), strict=True):
        problem = job.source.variant.problem
        outcome = check(results, job.inputs, problem)
        assert outcome.ok, f"{job.source.name}: {outcome.message}"
