"""The steps of the ladder: right on hard rows, what they say they are, and never chosen unasked."""

from __future__ import annotations

import re

import numpy as np
import pytest

from softgen.devices.emulator import Job, build, run
from softgen.errors import EmulationError, IllegalVariantError, InvalidValueError
from softgen.problems.arch import KNOWN, Arch, arch_named
from softgen.problems.dtypes import DType
from softgen.problems.numerics import encode
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.lessons.ladder import ARTICLES, LADDER, step
from softgen.strategies.lessons.recurrence import Recurrence
from softgen.strategies.lessons.serial import Serial
from softgen.strategies.lessons.threepass import Threepass
from softgen.strategies.online import Online
from softgen.strategies.registry import all_strategies
from softgen.strategies.safe import Safe
from softgen.strategies.select import NAMED, select
from softgen.strategies.variants import Variant, candidates
from tests.helpers.single import BOTH, check

H200 = arch_named("sm_90")
EVERY = (*LADDER, *ARTICLES)
KIBI = Problem.of("softmax", "float32", 1024)
LESSONS = {"oneflowblock", "oneflowwarp", "recurrence", "serial", "threepass"}


def text_of(name: str, problem: Problem = KIBI) -> str:
    return render(Variant(problem, step(name, problem))).text


def test_the_steps_in_order() -> None:
    wide = Problem.of("softmax", "float32", 131072)
    assert {name: step(name, wide) for name in LADDER} == {
        "naive": Serial(32),
        "tree": Threepass(1, 1, False, False, 1024),
        "coalesced": Threepass(1, 1, True, False, 1024),
        "shuffle": Safe(1024),
        "float4": Threepass(4, 1, True, True, 1024),
        "unrolled": Threepass(4, 4, True, True, 1024),
        "online_rescale": Online(4, 4, 1024),
    }
    assert {name: step(name, wide) for name in ARTICLES} == {
        "article_safe": Safe(256),
        "article_online": Recurrence(256),
    }


@pytest.mark.parametrize(
    ("cols", "block", "article"),
    [
        (1, 64, 32),
        (511, 64, 32),
        (512, 64, 64),
        (1024, 64, 128),
        (2048, 128, 256),
        (8192, 512, 256),
        (4_194_304, 1024, 256),
    ],
)
def test_narrow_rows_get_small_blocks(cols: int, block: int, article: int) -> None:
    problem = Problem.of("softmax", "float32", cols)
    assert {step(name, problem).knobs["block_size"] for name in LADDER[1:]} == {block}
    assert {step(name, problem).knobs["block_size"] for name in ARTICLES} == {article}


def test_packs_are_16_bytes_of_any_type() -> None:
    packs = {
        dtype.value: step("float4", Problem.of("softmax", dtype, 8192)).knobs["pack_size"]
        for dtype in DType
    }
    assert packs == {"float16": 8, "bfloat16": 8, "float32": 4, "float64": 2}


@pytest.mark.parametrize("arch", KNOWN.values(), ids=str)
def test_every_step_is_legal_for_every_problem(arch: Arch) -> None:
    for dtype in DType:
        for out in DType:
            for cols in (1, 7, 1000, 1024, 8192, 131072, 3_000_000_000):
                for alignment in (None, 1):
                    problem = Problem.of("softmax", dtype, cols, out_dtype=out, alignment=alignment)
                    for name in EVERY:
                        step(name, problem).check(problem, arch)


def rows_for(cols: int) -> np.ndarray:
    """Return rows of ordinary values, of long stretches of -inf, and of nothing else."""
    x = np.random.default_rng(cols).standard_normal((9, cols)) * 4
    x[1, : cols // 2] = -np.inf
    x[2, (cols + 1) // 2 :] = -np.inf
    x[3, : cols - 1] = -np.inf
    x[4] = -np.inf
    x[5, cols // 3] = np.nan
    x[6, cols // 3] = np.inf
    x[7] = -3e38
    return x


def test_every_step_agrees_with_float64() -> None:
    """Softmax and log_softmax take turns."""
    jobs = []
    widths = ((1, None), (7, None), (33, 1), (1001, None), (2048, None), (2048, 1))
    for number, (cols, alignment) in enumerate(widths):
        algorithm = [*BOTH][(number + number // 4) % 2]
        problem = Problem.of(algorithm, "float32", cols, alignment=alignment)
        for setting in {step(name, problem) for name in EVERY}:
            source = render(Variant(problem, setting))
            jobs.append(Job(source, encode(rows_for(cols), DType.FLOAT32)))
    program = build([job.source for job in jobs])
    for job, y in zip(jobs, program.run_all(jobs), strict=True):
        assert not isinstance(y, EmulationError), f"{job.source.name}: {y}"
        accuracy = check(y, job.x, job.source.variant.problem)
        assert accuracy.ok, f"{job.source.name}: {accuracy.message}"


def test_one_thread_sums_a_wide_row_in_parts() -> None:
    """A chain of 131072 additions would be off by more than the bound."""
    problem = Problem.of("softmax", "float32", 131072)
    x = encode(np.random.default_rng(0).uniform(-1, 1, (2, problem.cols)), DType.FLOAT32)
    source = render(Variant(problem, step("naive", problem)))
    (y,) = build([source]).run_all([Job(source, x)])
    assert not isinstance(y, EmulationError)
    assert check(y, x, problem).worst < 1e-6


def test_a_step_changes_what_it_says() -> None:
    texts = {name: text_of(name) for name in EVERY}
    shuffles = {name for name, text in texts.items() if "__shfl_xor_sync" in text}
    assert shuffles == set(EVERY) - {"naive", "tree", "coalesced"}
    shared = {name for name, text in texts.items() if "__shared__" in text}
    assert shared == set(EVERY) - {"naive"}
    packs = {name for name, text in texts.items() if "uint4" in text}
    assert packs == {"float4", "unrolled", "online_rescale"}
    pairs = {name for name, text in texts.items() if "struct MaxSum" in text}
    assert pairs == {"online_rescale", "article_online"}


@pytest.mark.parametrize(("one", "two"), [("tree", "coalesced"), ("float4", "unrolled")])
def test_two_steps_that_differ_in_one_constant(one: str, two: str) -> None:
    """Only the names, the launch and one constant differ: the compiler does the rest."""
    constants = [
        dict(re.findall(r"^constexpr \w+ (k\w+) = (\w+);", text_of(name), re.MULTILINE))
        for name in (one, two)
    ]
    changed = {name for name in constants[0] if constants[0][name] != constants[1][name]}
    assert changed == ({"kCoalesced"} if one == "tree" else {"kUnroll"})
    bodies = [
        re.sub(
            r"^constexpr .*\n|^.*softmax_f32_1024_\w+.*\n", "", text_of(name), flags=re.MULTILINE
        )
        for name in (one, two)
    ]
    assert bodies[0] == bodies[1]


def test_an_unknown_step_lists_the_steps() -> None:
    message = r"unknown step 'float5'; the ladder is naive, tree, .*online_rescale; .*article_safe"
    with pytest.raises(InvalidValueError, match=message):
        step("float5", KIBI)


def test_steps_are_choices_like_oneflow() -> None:
    assert set(NAMED) == {"oneflow", *EVERY}
    assert not set(NAMED) & {kind.name for kind in all_strategies()}
    for name in EVERY:
        assert select(KIBI, 128, H200, name) == Variant(KIBI, step(name, KIBI))


def test_lessons_are_candidates_only_by_name() -> None:
    assert {kind.name for kind in all_strategies() if not kind.tuned} == LESSONS
    assert not LESSONS & {variant.strategy.name for variant in candidates(KIBI, 128, H200)}
    for name in LESSONS:
        found = list(candidates(KIBI, 128, H200, name))
        assert found
        assert len(set(found)) == len(found)
        for variant in found:
            variant.check(H200)


@pytest.mark.parametrize("setting", [Threepass(4, 7, True, True, 32), Online(4, 8, 32)], ids=repr)
def test_up_to_eight_packs_at_once_agree_with_float64(setting: Threepass | Online) -> None:
    """2001 columns: two steps of all packs, some single ones, and the ends of an odd row."""
    problem = Problem.of("softmax", "float32", 2001)
    x = encode(np.random.default_rng(0).standard_normal((3, 2001)) * 4, DType.FLOAT32)
    found = check(run(render(Variant(problem, setting)), x), x, problem)
    assert found.ok, found.message


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (Threepass(4, 1, False, True, 128), "packs and unrolled loads must be coalesced"),
        (Threepass(1, 2, False, True, 128), "packs and unrolled loads must be coalesced"),
        (Threepass(1, 1, True, False, 96), "block_size that is a power of two"),
        (Threepass(4, 1, True, False, 1024), "a tree and packs spill with 1024 threads"),
        (Threepass(8, 1, True, True, 128), "a pack is at most 16 bytes: 4 elements of float32"),
        (Threepass(1, 9, True, True, 128), "unroll must be from 1 to 8"),
        (Serial(33), "block_size must be a multiple of 32"),
        (Recurrence(0), "block_size must be a multiple of 32"),
    ],
    ids=repr,
)
def test_a_broken_rule_names_what_is_accepted(
    setting: Serial | Recurrence | Threepass, message: str
) -> None:
    with pytest.raises(IllegalVariantError, match=message):
        setting.check(KIBI, H200)


def test_rows_that_start_anywhere_leave_fewer_registers_beside_1024_threads() -> None:
    """Such a float32 kernel spilled 8 bytes on sm_90 with 5 packs at once, an aligned one none."""
    aligned, odd = (Problem.of("softmax", "float32", cols) for cols in (32768, 32769))
    for setting in (Threepass(4, 5, True, True, 1024), Threepass(4, 6, True, True, 1024)):
        setting.check(aligned, H200)
        with pytest.raises(IllegalVariantError, match="registers of elements; at most 16 do not"):
            setting.check(odd, H200)
    Threepass(4, 4, True, True, 1024).check(odd, H200)
    Threepass(4, 8, True, True, 512).check(odd, H200)
