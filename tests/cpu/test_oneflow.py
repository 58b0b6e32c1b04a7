"""OneFlow's dispatch, case by case as its softmax.cuh writes it."""

from __future__ import annotations

import pytest

from softgen.arch import KNOWN
from softgen.oneflow import oneflow_dispatch
from softgen.problem import Problem
from softgen.strategies.safe import Safe
from softgen.strategies.warp import Warp


def dispatch(cols: int, rows: int, dtype: str = "float32", alignment: int | None = None) -> object:
    problem = Problem.of("softmax", dtype, cols, alignment=alignment)
    return oneflow_dispatch(problem, rows)


@pytest.mark.parametrize(
    ("cols", "rows", "expected"),
    [
        # One pack a lane on the fewest lanes; two rows at a time if the rows are even.
        (1, 4, Warp(1, 1, 1, 2, False, 128)),
        (1, 5, Warp(1, 1, 1, 1, False, 128)),
        (2, 4, Warp(2, 2, 1, 2, False, 128)),
        (3, 4, Warp(1, 1, 4, 2, True, 128)),
        (5, 7, Warp(1, 1, 8, 1, True, 128)),
        (6, 4, Warp(2, 2, 4, 2, True, 128)),
        (8, 4, Warp(2, 2, 4, 2, False, 128)),
        (31, 4, Warp(1, 1, 32, 2, True, 128)),
        (32, 4, Warp(2, 2, 16, 2, False, 128)),
        (64, 4, Warp(2, 2, 32, 2, False, 128)),
        # Wider: all 32 lanes, one row, the fewest packs that cover it.
        (33, 4, Warp(1, 2, 32, 1, True, 128)),
        (66, 4, Warp(2, 4, 32, 1, True, 128)),
        (96, 4, Warp(2, 4, 32, 1, True, 128)),
        (97, 4, Warp(1, 4, 32, 1, True, 128)),
        (1000, 4096, Warp(2, 32, 32, 1, True, 128)),
        (1023, 4096, Warp(1, 32, 32, 1, True, 128)),
        (1024, 4096, Warp(2, 32, 32, 1, False, 128)),
        # Above 1024 nothing is kept on the chip so far.
        (1025, 4096, Safe(1024)),
        (1026, 4096, Safe(1024)),
        (128256, 8, Safe(1024)),
    ],
)
def test_dispatch(cols: int, rows: int, expected: object) -> None:
    assert dispatch(cols, rows) == expected


def test_sixteen_bit_types_take_the_same_packs() -> None:
    for dtype in ("float16", "bfloat16"):
        assert dispatch(1000, 4096, dtype) == Warp(2, 32, 32, 1, True, 128)


def test_float64_always_goes_to_the_uncached_kernel() -> None:
    assert dispatch(32, 4096, "float64") == Safe(1024)
    doubled = Problem.of("softmax", "float32", 32, out_dtype="float64")
    assert oneflow_dispatch(doubled, 4096) == Safe(1024)


def test_rows_that_start_anywhere_have_no_packs() -> None:
    assert dispatch(1000, 4096, alignment=1) == Warp(1, 32, 32, 1, True, 128)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("arch", KNOWN.values(), ids=str)
def test_every_choice_is_legal(dtype: str, arch: object) -> None:
    from softgen.arch import Arch

    assert isinstance(arch, Arch)
    for cols in [*range(1, 200), *range(990, 1030), 2048, 128256]:
        for alignment in (None, 1):
            problem = Problem.of("log_softmax", dtype, cols, alignment=alignment)
            for rows in (1, 2):
                oneflow_dispatch(problem, rows).check(problem, arch)
