"""Functions that pick an element of each row by its number, on the emulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from softgen.devices.emulator import Job, build
from softgen.errors import EmulationError
from softgen.source.render import render
from softgen.spec.arch import arch_named
from softgen.spec.dtypes import Integer
from softgen.spec.functions.cross_entropy import hard_targets
from softgen.spec.hooks import HOOKS
from softgen.spec.numerics import check, decode, encode, other_inputs
from softgen.spec.problem import Problem
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


FORWARD = [
    *(("float32", 100, "warp"), ("bfloat16", 1000, "block"), ("float64", 33, "online")),
    *(("float16", 20000, "cluster"), ("float32", 8193, "split"), ("bfloat16", 20000, "shared")),
    ("float32", 33, "safe"),
]


@pytest.mark.parametrize(("dtype", "cols", "choice"), FORWARD)
def test_a_row_that_is_ignored_is_not_read(dtype: str, cols: int, choice: str) -> None:
    variant = variant_of(Problem.of("cross_entropy", dtype, cols), choice)
    none, one, all_ = (job_of(variant, [-100] * (9 - count) + [3] * count) for count in (0, 1, 9))
    (results, work), (_, of_one), (_, of_all) = run(none, one, all_)
    assert not results[0].any()
    assert np.isneginf(results[1]).all()
    row = (of_all.accesses - work.accesses) // 9
    assert abs(of_one.accesses - work.accesses - row) <= 2  # packs that are cut differ
    if choice == "shared":  # which copies rows before it looks
        assert row == 1
    else:
        assert row >= cols * variant.problem.dtype.itemsize // 16


def test_the_target_of_a_hooked_row_is_hooked_too() -> None:
    """Behind the end of a row the target is -inf, and not loaded."""
    hooks = [hook for hook in HOOKS if hook.name in ("scale", "softcap", "biasf16", "causal")]
    for choice in ("warp", "block", "online"):
        problem = Problem.of("cross_entropy", "float32", 100, hooks=hooks)
        job = job_of(variant_of(problem, choice), rows=13)
        ((results, _),) = run(job)
        found = check(results, job.inputs, problem)
        assert found.ok, found.message
        assert np.isposinf(results[0]).any()
        assert np.isfinite(results[0]).any()


PACKED = "block_p8_c8_g1024_b1024_m1_pk"


@pytest.mark.parametrize("choice", ["warp", "block", "online", "shared", "safe", "cluster", PACKED])
def test_a_gradient_in_place_reads_its_target_before_it_is_written(choice: str) -> None:
    """Whichever column it is; the emulator refuses to read what another thread has overwritten."""
    cols = 5000 if choice in ("shared", "cluster", PACKED) else 1000
    problem = Problem.of("cross_entropy_grad", "bfloat16" if choice == PACKED else "float32", cols)
    columns = [0, 3, cols - 1, cols // 2, 4, 777, -100, LARGEST, cols]
    job = job_of(variant_of(problem, choice), columns)
    (apart, _), (in_place, _) = run(job, replace(job, in_place=True))
    assert [each.tobytes() for each in apart] == [each.tobytes() for each in in_place]
    found = check(apart, job.inputs, problem)
    assert found.ok, found.message
    dx = decode(apart[0], problem.dtype)
    assert not dx[6].any()
    assert np.isnan(dx[7:]).all()


def test_targets_of_both_types_give_the_same_bits() -> None:
    for stem in ("cross_entropy", "cross_entropy_grad", "cross_entropy_backward"):
        narrow, wide = (Problem.of(name, "float32", 100) for name in (f"{stem}_i32", stem))
        assert narrow.inputs[1].dtype is Integer.INT32
        jobs = [job_of(variant_of(problem, "warp")) for problem in (narrow, wide)]
        (first, _), (second, _) = run(*jobs)
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
