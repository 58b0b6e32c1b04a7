"""What measuring takes: enough pairs of buffers to be cold, and little of a user's memory."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from softgen.devices.gpu import replay
from softgen.errors import InvalidValueError, NoRoomError
from softgen.problems.layouts import Columns
from softgen.problems.numerics import numpy_dtype
from softgen.problems.problem import Problem
from softgen.tuning import measure
from softgen.tuning.measure import (
    COLD_BYTES,
    MOST_BYTES,
    MOST_PAIRS,
    PERIOD_ELEMENTS,
    Buffers,
    Rotation,
    Stopwatch,
)
from tests.helpers.cupy_calls import cupy_array

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


# Buffers in this host's memory


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("function", "signed"), [("softmax", True), ("finish", True), ("softmax_backward", False)]
)
def test_inputs_are_normal_values_or_the_sizes_of_some_where_sums_would_cancel(
    function: str, signed: bool, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = SimpleNamespace(memGetInfo=lambda: (1 << 27, FREE))
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime), asarray=np.asarray)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(measure, "require_device", lambda: cupy)
    monkeypatch.setattr(measure, "memory", lambda size: cupy_array(np.zeros(size, np.uint8)))
    problem, rows = Problem.of(function, dtype, 1024), 500
    buffers = Buffers.allocate(problem, rows)
    assert buffers.rows == rows
    assert len(buffers.arguments) * rows * problem.cols > PERIOD_ELEMENTS  # they come again
    for words in buffers.arguments:
        for number, operand in enumerate(problem.inputs):
            kind, shape = numpy_dtype(operand.dtype), operand.shape(rows, problem.cols)
            there: Any = (ctypes.c_char * (np.prod(shape) * kind.itemsize)).from_address(
                words[number]
            )
            values = np.frombuffer(there, kind).astype(np.float64)
            few = values.size == rows
            assert abs((values**2).mean() - 1) < (0.3 if few else 0.02), operand
            if signed and number == 0:
                assert abs(values.mean()) < 0.01
            else:
                assert values.min() >= 0, operand


@pytest.mark.parametrize("small", [True, False])
def test_the_rest_is_written_before_each_run_and_is_not_timed(
    small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    rest = cupy_array(np.ones(100, np.uint8)) if small else None

    def memset(address: int, value: int, size: int, stream: int) -> None:
        assert stream == 7
        ctypes.memset(address, value, size)
        done.append("rest")

    class Stream:
        ptr = 7

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

        def begin_capture(self) -> None: ...

        def end_capture(self) -> Any:
            return SimpleNamespace(launch=lambda stream: done.append("run"))

    def event() -> Any:
        return SimpleNamespace(record=lambda stream: done.append("event"), synchronize=list)

    cuda = SimpleNamespace(runtime=SimpleNamespace(memsetAsync=memset), Event=event)
    cuda.Stream = lambda non_blocking: Stream()
    cuda.get_elapsed_time = lambda start, stop: 0.5
    monkeypatch.setattr(replay, "require_device", lambda: SimpleNamespace(cuda=cuda))
    launched: list[tuple[int, ...]] = []
    kernel: Any = SimpleNamespace(
        variant=SimpleNamespace(launch=SimpleNamespace(workspace_bytes=lambda rows: 0)),
        launcher=lambda rows, scratch, pdl: lambda words, stream: launched.append(words),
    )
    stopwatch = Stopwatch(Buffers(4, ((1, 2), (3, 4)), (1,), (), rest))
    times = stopwatch.samples(kernel, 0.0, least=3)
    assert times == [250.0] * 3  # of two launches a run
    assert launched == [(1, 2), (3, 4)]
    timed = ["rest"] * small + ["event", "run", "event"]
    assert done == [*timed * 2, "run", *timed * 3]  # the first two say how many launches to capture
    if rest is not None:
        assert not rest.any()
