"""What measuring takes: enough pairs of buffers to be cold, and little of a user's memory."""

from __future__ import annotations

import pytest

from softgen.errors import InvalidValueError, NoRoomError
from softgen.problems.layouts import Columns
from softgen.problems.problem import Problem
from softgen.tuning.measure import COLD_BYTES, MOST_BYTES, MOST_PAIRS, Rotation

FREE = 140 << 30  # bytes of a GPU with nothing else on it


def problem_of(cols: int, dtype: str = "float32", out: str | None = None) -> Problem:
    return Problem.of("softmax", dtype, cols, out_dtype=out)


def bytes_of(rotation: Rotation, problem: Problem) -> tuple[int, int]:
    """Return the bytes of all inputs and of all outputs."""
    elements = rotation.pairs * rotation.rows * problem.cols
    return elements * problem.dtype.itemsize, elements * problem.out_dtype.itemsize


@pytest.mark.parametrize(("rows", "cols"), [(4096, 1024), (128, 4096), (777, 40000), (128, 131072)])
@pytest.mark.parametrize("types", [("float32", None), ("bfloat16", None), ("bfloat16", "float32")])
def test_inputs_and_outputs_are_cold_each(
    rows: int, cols: int, types: tuple[str, str | None]
) -> None:
    problem = problem_of(cols, *types)
    rotation = Rotation.of(problem, rows, FREE)
    assert rotation.rows == rows
    assert rotation.pairs >= 4
    x, y = bytes_of(rotation, problem)
    assert min(x, y) >= COLD_BYTES or 2 * min(x, y) + rotation.rest >= 2 * COLD_BYTES
    assert rotation.rest == 0 or rotation.pairs == MOST_PAIRS
    assert x + y <= MOST_BYTES


def test_no_more_pairs_than_that_takes() -> None:
    assert Rotation.of(problem_of(1 << 20), 64, FREE) == Rotation(64, 4, 0)  # 1.07 GB each
    assert Rotation.of(problem_of(1 << 20), 16, FREE).pairs == 5


def test_small_shapes_are_cold_by_other_memory() -> None:
    """A graph of 9,000 launches would take longer to make than to time."""
    rotation = Rotation.of(problem_of(1024), 8, FREE)
    assert rotation.pairs == MOST_PAIRS
    assert rotation.rest == 2 * (COLD_BYTES - MOST_PAIRS * 8 * 1024 * 4)


@pytest.mark.parametrize("free", [1 << 20, 1 << 28, 1 << 33, FREE])
@pytest.mark.parametrize("rows", [1, 100, 100000])
def test_at_most_a_quarter_of_the_free_memory_and_4_gib(rows: int, free: int) -> None:
    problem = problem_of(4096)
    rotation = Rotation.of(problem, rows, free)
    oracle = rotation.rows * problem.cols * problem.out_dtype.itemsize
    assert sum(bytes_of(rotation, problem)) + oracle + rotation.rest <= min(free // 4, MOST_BYTES)
    assert 1 <= rotation.rows <= rows
    assert rotation.pairs >= 1


def test_fewer_rows_where_one_pair_is_too_much() -> None:
    rotation = Rotation.of(problem_of(4194304), 1024, FREE)
    assert rotation.pairs == 1
    assert 64 < rotation.rows < 1024


def test_one_pair_of_the_fewest_rows_may_be_larger() -> None:
    """Along axis 0 all rows of an array are one outer index."""
    inner = 21 * 512 * 512
    problem = Problem.of("softmax", "float64", 64, layout=Columns(inner))
    each = inner * 64 * 8
    assert 3 * each > MOST_BYTES
    assert Rotation.of(problem, inner, FREE) == Rotation(inner, 1, 0)
    assert Rotation.of(problem, inner, 12 * each) == Rotation(inner, 1, 0)
    with pytest.raises(NoRoomError, match=f"{inner} rows need {3 * each} bytes"):
        Rotation.of(problem, inner, 12 * each - 4)


def test_a_benchmark_is_of_all_rows() -> None:
    problem = problem_of(8192, "bfloat16")
    assert Rotation.of(problem, 262144, FREE, whole=True) == Rotation(262144, 1, 0)
    with pytest.raises(InvalidValueError, match=r"262144 rows need .* may be taken of the .* free"):
        Rotation.of(problem, 262144, 20 << 30, whole=True)


def test_a_row_that_does_not_fit() -> None:
    with pytest.raises(
        InvalidValueError, match="one row needs 12582912 bytes of softmax_f32_1048576"
    ):
        Rotation.of(problem_of(1 << 20), 1, 1 << 24)
