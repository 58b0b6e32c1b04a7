"""Gradients have two inputs: their rows move in packs wherever they start, and may stay packed."""

from __future__ import annotations

import numpy as np
import pytest

from softgen.devices.emulator import run
from softgen.errors import IllegalVariantError
from softgen.problems.arch import arch_named
from softgen.problems.dtypes import DType
from softgen.problems.layouts import Strided
from softgen.problems.numerics import Storage, encode
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.base import Strategy
from softgen.strategies.block import Block
from softgen.strategies.cluster import Cluster
from softgen.strategies.online import Online
from softgen.strategies.split import Split
from softgen.strategies.variants import Variant, candidates, parse_name
from softgen.strategies.warp import Warp
from tests.helpers.emulator_helpers import broken, input_of, objections, require_seen

H200 = arch_named("sm_90")
GRADIENTS = ("softmax_backward", "log_softmax_backward")

# Packs that end with the row, that end in it, and rows that start anywhere; one warp has no column.
WIDTHS = (512, 456, 461)


def packed(problem: Problem) -> list[Variant]:
    """Return 16 elements a thread of two warps and of two blocks, which stay packed."""
    pack = 8 if problem.alignment > 1 else 2
    block = Block(pack, 16, 64, 64, 1, packed=True)
    cluster = Cluster(pack, 16, 32, 2, 1, False, packed=True)
    return [Variant(problem, strategy) for strategy in (block, cluster)]


def cut(problem: Problem) -> list[Variant]:
    """Return a setting of each strategy that cuts packs of rows that start anywhere."""
    pack = problem.dtype.max_pack
    found: list[Strategy] = [Block(pack, 8, 64, 64, 1), Cluster(pack, 8, 32, 2, 1, False)]
    found += [Split(pack, 8, 32, 1, True), Online(pack, 2, 64)]
    return [Variant(problem, strategy) for strategy in found]


def test_packed_elements_pass_every_regime() -> None:
    variants = [
        variant
        for i, dtype in enumerate((DType.FLOAT16, DType.BFLOAT16))
        for j, out in enumerate((dtype, DType.FLOAT32))
        for k, cols in enumerate(WIDTHS)  # gradients take turns
        for variant in packed(Problem.of(GRADIENTS[(i + j + k) % 2], dtype, cols, out_dtype=out))
    ]
    for variant in variants:
        variant.check(H200)
    assert objections([render(variant) for variant in variants]) == []
    assert len(variants) == 24


def test_rows_that_start_anywhere_pass_every_regime() -> None:
    problems = [Problem.of(GRADIENTS[i // 2 % 2], dtype, 461) for i, dtype in enumerate(DType)]
    problems.append(Problem.of("log_softmax_backward", "bfloat16", 461))
    problems.append(Problem.of("softmax_backward", "bfloat16", 461, out_dtype="float32"))
    problems.append(Problem.of("softmax_backward", "bfloat16", 458))  # on two elements
    problems.append(Problem.of("softmax_backward", "float32", 456, alignment=1))
    variants = [variant for problem in problems for variant in cut(problem)]
    for variant in variants:
        variant.check(H200)
    assert objections([render(variant) for variant in variants]) == []
    assert len(variants) == 32


def test_a_row_shorter_than_a_pack() -> None:
    problems = [Problem.of("softmax_backward", "float16", cols) for cols in (1, 3, 9)]
    strategies = (Block(8, 8, 64, 64, 1), Online(8, 1, 64))
    variants = [Variant(problem, each) for problem in problems for each in strategies]
    assert objections([render(variant) for variant in variants]) == []


@pytest.mark.parametrize(
    ("correct", "wrong"),
    [
        ("widen_pack(y_raw[p], y_values)", "widen_pack(raw[p], y_values)"),
        ("sum += sum_in_place(", "sum = sum_in_place("),
        ("widen_pack(y_raw, y_values)", "widen_pack(raw, y_values)"),
        ("store_slice(raw, y_raw, factor_of(whole)", "store_slice(raw, y_raw, factor_of(part)"),
        ("forget_widened(y_raw, static_cast<unsigned int>(rows >> 48))", "y_raw[0] = {}"),
    ],
)
def test_a_wrong_step_with_packed_elements_is_told(correct: str, wrong: str) -> None:
    variants = packed(Problem.of("softmax_backward", "bfloat16", 512))
    assert len(variants) == 2
    require_seen([(render(variant), correct, wrong, ".") for variant in variants])


@pytest.mark.parametrize(
    ("number", "correct", "wrong"),
    [
        (1, "y_in_packs && readable", "readable"),  # y starts elsewhere in a pack than dy
        (1, "!y_in_packs)", "false)"),
        (1, "reinterpret_cast<unsigned long long>(row_y - before)", "0 * (row_y - row)"),
        (3, "if (reinterpret_cast<unsigned long long>(from) % sizeof(Raw) == 0)", "if (true)"),
        (3, "y_value[0] = __bfloat162float(row_y[thread])", "y_value[0] = 0"),
        (3, "y_value[0] = __bfloat162float(row_y[tail + thread])", "y_value[0] = 0"),
    ],
)
def test_a_wrong_step_with_rows_that_start_anywhere_is_told(
    number: int, correct: str, wrong: str
) -> None:
    variant = cut(Problem.of("softmax_backward", "bfloat16", 461))[number]
    require_seen([(render(variant), correct, wrong, ".")])


@pytest.mark.parametrize("function", GRADIENTS)
def test_first_guesses_move_packs(function: str) -> None:
    for cols in (4099, 50257, 50258):
        chosen = next(candidates(Problem.of(function, "bfloat16", cols), 4096, H200))
        assert chosen.strategy.knobs["pack_size"] == 8
    wide = next(candidates(Problem.of(function, "bfloat16", 128256), 4096, H200))
    assert wide.strategy.knobs["packed"] is True


def test_packing_leaves_room_for_more_blocks() -> None:
    name = "softmax_backward_bf16_128256_cluster_p8_c64_b128_k16_m6"
    parse_name(f"{name}_pk").check(H200)
    with pytest.raises(IllegalVariantError, match="hold 128 registers of elements"):
        parse_name(name).check(H200)


@pytest.mark.parametrize(
    ("strategy", "problem"),
    [
        # A row that starts on packs is summed in another order.
        (
            Online(8, 1, 128),
            Problem.of("softmax_backward", "bfloat16", 1001, fixed_order=True),
        ),
        # Each array of a view has its own strides.
        (
            Online(8, 1, 128),
            Problem.of("softmax_backward", "bfloat16", 1001, layout=Strided(1)),
        ),
        (
            Block(4, 8, 128, 128, 1),
            Problem.of("merge", "float32", 1001),
        ),
        (Warp(8, 32, 32, 1, False, 128), Problem.of("softmax_backward", "bfloat16", 1001)),
    ],
    ids=["one order", "views", "pairs", "warp"],
)
def test_what_moves_by_its_alignment(strategy: Strategy, problem: Problem) -> None:
    with pytest.raises(IllegalVariantError, match=r"order of summation|must start on packs here"):
        strategy.check(problem, H200)


def nan_beside(source: Source) -> Storage:
    """Return dx of three rows, of which those at the ends have a y of NaN."""
    problem = source.variant.problem
    dy = input_of(source, 3)
    y = np.ones((3, problem.cols)) / problem.cols
    y[[0, 2]] = np.nan
    return run(source, dy, others=(encode(y, problem.dtype),))


@pytest.mark.parametrize("number", range(4))
def test_neighbours_of_a_row_stay_out_of_it(number: int) -> None:
    source = render(cut(Problem.of("softmax_backward", "float32", 461))[number])
    assert np.isnan(nan_beside(source)).all(axis=1).tolist() == [True, False, True]
    assert np.isfinite(nan_beside(source)[1]).all()


def test_neighbours_that_are_kept_are_told() -> None:
    source = render(cut(Problem.of("softmax_backward", "float32", 461))[1])
    wrong = broken(source, "? keep_inside(col, y_raw[p])", "? (void)0")
    assert np.isnan(nan_beside(wrong)[1]).any()


def test_pairs_of_two_inputs_cannot_stay_packed() -> None:
    with pytest.raises(IllegalVariantError, match="two inputs whose parts are no sums"):
        Block(8, 8, 64, 64, 1, packed=True).check(Problem.of("merge", "float16", 512), H200)


@pytest.mark.parametrize("cols", [8192, 32000])
def test_both_inputs_stay_packed_where_a_thread_holds_many(cols: int) -> None:
    problem = Problem.of("softmax_backward", "bfloat16", cols)
    assert next(candidates(problem, 8192, H200)).strategy.knobs["packed"] is True
