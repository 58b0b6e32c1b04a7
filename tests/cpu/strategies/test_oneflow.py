"""OneFlow's dispatch, case by case as its softmax.cuh writes it."""

from __future__ import annotations

import pytest

from softgen.spec.arch import KNOWN, Arch, arch_named
from softgen.spec.problem import Problem
from softgen.strategies.oneflow import oneflow_dispatch
from softgen.strategies.safe import Safe
from softgen.strategies.shared import PLAIN, Shared
from softgen.strategies.warp import Warp

H200 = arch_named("sm_90")


def shared(pack_size: int, block_size: int) -> Shared:
    return Shared(pack_size, block_size, PLAIN, 1, 0)


def dispatch(cols: int, rows: int, dtype: str = "float32", alignment: int | None = None) -> object:
    problem = Problem.of("softmax", dtype, cols, alignment=alignment)
    return oneflow_dispatch(problem, rows, H200)


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
        # Wider still: shared memory, as many blocks an SM as 128 threads would allow.
        (1025, 4096, shared(1, 128)),
        (1026, 4096, shared(2, 128)),
        (4096, 4096, shared(2, 128)),
        (8192, 4096, shared(2, 256)),
        (12000, 4096, shared(2, 512)),
        (12001, 4096, shared(1, 512)),
        # And what does not fit 48 KB as float32.
        (12288, 4096, Safe(1024)),
        (128256, 8, Safe(1024)),
    ],
)
def test_dispatch(cols: int, rows: int, expected: object) -> None:
    assert dispatch(cols, rows) == expected


def test_sixteen_bit_types_take_the_same_packs() -> None:
    for dtype in ("float16", "bfloat16"):
        assert dispatch(1000, 4096, dtype) == Warp(2, 32, 32, 1, True, 128)


def test_a_row_of_16_bits_takes_as_much_shared_memory_as_one_of_float32() -> None:
    assert dispatch(12000, 4096, "float16") == shared(2, 512)
    assert dispatch(16384, 4096, "float16") == Safe(1024)


def test_the_block_in_shared_memory_depends_on_the_sm() -> None:
    problem = Problem.of("softmax", "float32", 6000)
    sizes = {name: oneflow_dispatch(problem, 4096, arch).knobs for name, arch in KNOWN.items()}
    assert sizes["sm_75"]["block_size"] == 512
    assert sizes["sm_90"]["block_size"] == 128


def test_float64_always_goes_to_the_uncached_kernel() -> None:
    assert dispatch(32, 4096, "float64") == Safe(1024)
    doubled = Problem.of("softmax", "float32", 32, out_dtype="float64")
    assert oneflow_dispatch(doubled, 4096, H200) == Safe(1024)


def test_rows_that_start_anywhere_have_no_packs() -> None:
    assert dispatch(1000, 4096, alignment=1) == Warp(1, 32, 32, 1, True, 128)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("arch", KNOWN.values(), ids=str)
def test_every_choice_is_legal(dtype: str, arch: Arch) -> None:
    for cols in [*range(1, 200), *range(990, 1030), 2048, 5001, 12200, 128256]:
        for alignment in (None, 1):
            problem = Problem.of("log_softmax", dtype, cols, alignment=alignment)
            for rows in (1, 2):
                oneflow_dispatch(problem, rows, arch).check(problem, arch)
