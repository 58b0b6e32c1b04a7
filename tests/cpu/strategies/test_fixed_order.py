"""Rows that are summed in the same order wherever they lie: same columns, same thread."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from softgen.devices.emulator import Program, build
from softgen.errors import EmulationError
from softgen.problems import numerics
from softgen.problems.dtypes import DType
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.base import Strategy
from softgen.strategies.block import Block
from softgen.strategies.cluster import Cluster
from softgen.strategies.split import Split
from softgen.strategies.variants import Variant, best_guess, candidates
from softgen.strategies.warp import Warp
from tests.helpers.emulator_helpers import ARCH, broken
from tests.helpers.kept_builds import machine_code_of
from tests.helpers.single import check
from tests.helpers.whole import part

# Each place of a pack of 16 bytes, twice, and rows at both ends of the array.
ROWS = 17


def problem_of(dtype: str, cols: int, out: str | None = None, function: str = "softmax") -> Problem:
    return Problem.of(function, dtype, cols, out_dtype=out, fixed_order=True)


def settings(problem: Problem) -> list[Strategy]:
    """Small settings of every strategy that realigns: rows of several warps, blocks and chunks."""
    pack, cols = problem.dtype.max_pack, problem.cols
    each = 4 * pack
    return [
        *(Warp.covering(problem, pack, width) for width in (2, 8, 32) if cols <= width * 12 * pack),
        Block(pack, -(-cols // (64 * pack)) * pack, 64, 128, 1),
        Cluster(pack, -(-cols // (2 * 64 * pack)) * pack, 64, 2, 1, False),
        Split(pack, pack, 64, 1, False),
        Split(pack, each, 32, 1, True),
    ]


def same_rows(source: Source, spread: float = 3.0, program: Program | None = None) -> np.ndarray:
    """Return the results, in storage form, of equal rows that lie one behind the other."""
    problem = source.variant.problem
    row = np.random.default_rng(problem.cols).normal(0, spread, problem.cols)
    x = numerics.encode(np.tile(row, (ROWS, 1)), problem.dtype)
    y = (program or build([source])).run(source, x)
    assert check(y, x, problem).ok
    return y


CASES = [
    problem_of("float32", 77),
    problem_of("float32", 1001),
    problem_of("float32", 1002),
    problem_of("float16", 333),
    problem_of("bfloat16", 1001, function="log_softmax"),
    problem_of("bfloat16", 1002),
    problem_of("bfloat16", 1004),
    problem_of("float64", 333),
    problem_of("bfloat16", 1001, "float32"),
    problem_of("float32", 1001, "float16"),
    problem_of("float16", 333, "float64"),
    problem_of("float64", 333, "bfloat16"),
]


@pytest.mark.parametrize("problem", CASES, ids=lambda problem: problem.label)
def test_equal_rows_have_equal_bits(problem: Problem) -> None:
    sources = [render(Variant(problem, strategy)) for strategy in settings(problem)]
    program = build(sources)
    for source in sources:
        source.variant.check(ARCH)
        y = same_rows(source, program=program)
        assert (y == y[0]).all(), source.name


def test_packed_elements_too() -> None:
    problem = problem_of("bfloat16", 1001)
    for strategy in (Block(8, 16, 64, 64, 1, True), Cluster(8, 16, 32, 2, 1, False, True)):
        y = same_rows(render(Variant(problem, strategy)))
        assert (y == y[0]).all(), strategy.label


def test_cut_packs_depend_on_where_a_row_lies() -> None:
    """What the fixed order is for: the usual kernel of the same setting, same rows, other bits."""
    problem = Problem.of("softmax", "float32", 1001)
    y = same_rows(render(Variant(problem, Block(4, 16, 64, 64, 1))))
    assert not (y == y[0]).all()


@pytest.mark.parametrize(
    ("correct", "wrong"),
    [
        ("lane == 0 ? words[p + 1][w] : words[p][w]", "words[p][w]"),
        ("if (p == kPacks - 1 && lane == kLanes - 1) next = words[kPacks][w];", ""),
        ("if (may_end(p) && col + 2 * kPackSize > end) keep_inside", "if (false) keep_inside"),
        (
            "bool may_end(int p) { return p == 1 || p == 2; }",
            "bool may_end(int p) { return p == 1; }",
        ),
        ("lane == kLanes - 1 ? last[w] : mine[w]", "mine[w]"),
        ("store_inside(last, behind - before, start,", "store_inside(last, behind - before, end,"),
    ],
    ids=["round", "next warp", "end", "late end", "round before", "end of the part"],
)
def test_a_mistake_shows(correct: str, wrong: str) -> None:
    """Of a lane's neighbour in its next round or another warp, of the row's end, of the sum."""
    # The last column is in the last pack of a round, or in the first of the next.
    source = render(Variant(problem_of("float32", 1023), Block(4, 12, 128, 128, 1)))
    assert (same_rows(source) == same_rows(source)[0]).all()
    mutant = broken(source, correct, wrong)
    with pytest.raises((AssertionError, EmulationError)):
        same_rows(mutant)


@pytest.mark.parametrize(
    ("correct", "wrong"),
    [
        ("take_word(words, w, 0xffffffff, lane);", "take_word(words, w, 0xffff, lane);"),
        ("} else if (bits != 0)", "} else if (false)"),
    ],
)
def test_words_that_all_lanes_keep_are_skipped_and_no_others(correct: str, wrong: str) -> None:
    source = render(Variant(problem_of("bfloat16", 1001), Cluster(8, 64, 64, 2, 1, False)))
    mutant = broken(source, correct, wrong)
    with pytest.raises((AssertionError, EmulationError)):
        same_rows(mutant)


def test_a_sum_in_another_order_shows() -> None:
    """In short rows: the sum of a long one hides what its packs differ by."""
    problem = problem_of("float32", 11)
    source = render(Variant(problem, Warp.covering(problem, 4, 2)))
    sequential = broken(
        source,
        "for (int half = kPackSize / 2; half > 0; half /= 2) {",
        "for (int half = 1; half < kPackSize; ++half) { folded[0] += folded[half]; continue;",
    )
    right, wrong = (
        [same_rows(text, spread=0.01 * step) for step in range(1, 12)]
        for text in (source, sequential)
    )
    assert all((y == y[0]).all() for y in right)
    assert any((y != y[0]).any() for y in wrong)


def test_packs_wider_than_the_alignment_need_lanes_that_exchange() -> None:
    problem = problem_of("float32", 1001)
    fixed = {
        kind.name: [s.strategy.knobs["pack_size"] for s in found]
        for kind, found in _candidates(problem)
        if found and "pack_size" in found[0].strategy.knobs
    }
    assert 4 in fixed["block"]
    assert not {"shared", "online", "cooperative"} & set(fixed)


def _candidates(problem: Problem) -> list[tuple[type[Strategy], list[Variant]]]:
    from softgen.strategies.registry import all_strategies

    return [(kind, list(candidates(problem, 64, ARCH, kind.name))) for kind in all_strategies()]


def test_rows_of_whole_packs_need_nothing() -> None:
    assert problem_of("float32", 1000) == Problem.of("softmax", "float32", 1000)
    assert problem_of("float32", 1002).label == "softmax_f32_1002_fixed"
    assert problem_of("bfloat16", 1000).dtype is DType.BFLOAT16


@pytest.mark.parametrize(
    ("cols", "first"),
    [
        # 16 blocks take 436 us and 8 take 399: there are fewer ends where warps exchange.
        (50257, "cluster_p4_c52_b128_k8_m5"),
        # Fewer blocks still would have more threads each, or more elements a thread.
        (32001, "cluster_p4_c32_b128_k8_m7"),
        (100001, "cluster_p4_c52_b128_k16_m5"),
    ],
)
def test_the_ends_of_parts_decide_between_clusters_that_are_else_alike(
    cols: int, first: str
) -> None:
    setting = next(candidates(problem_of("float32", cols), 4096, ARCH, "cluster")).strategy
    assert replace(setting, pdl=0).label == first


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.short)
def test_the_choice_spills_nowhere(dtype: DType) -> None:
    """The exchange takes registers, and min_blocks leaves few. Functions take turns, and widths."""
    start = [*DType].index(dtype)
    every = (77, 1001, 2047, 4097, 8191, 12671, 50257, 151937, 1000001)
    for number, cols in part([*enumerate(every, start)], 2, start % 2):
        problem = problem_of(dtype.value, cols, function=("softmax", "log_softmax")[number % 2])
        source = render(best_guess(problem, 4096, ARCH))
        assert machine_code_of(source, ARCH).local_bytes == 0, source.name
