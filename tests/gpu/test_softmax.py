"""softgen.softmax and log_softmax on the GPU, whole results against float64."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import softgen
from softgen.problems.dtypes import DType
from softgen.problems.functions.base import Function
from softgen.problems.functions.log_softmax import LOG_SOFTMAX
from softgen.problems.functions.softmax import SOFTMAX
from softgen.problems.numerics import numpy_dtype, reference
from softgen.strategies.lessons.oneflowblock import EXPONENT_ERROR
from tests.helpers.device_reference import device_normal, error_over_bound, in_float64
from tests.helpers.single import BOTH

pytestmark = pytest.mark.gpu

COLS = (1, 7, 32, 33, 100, 256, 1000, 1024, 1025, 4096, 12672, 32728, 131072)
ROWS = (1, 3, 128, 4096)
CALLS = {SOFTMAX: softgen.softmax, LOG_SOFTMAX: softgen.log_softmax}


def as_torch(x: Any) -> Any:
    torch = pytest.importorskip("torch")
    return (
        torch.from_dlpack(x)
        if x.dtype.name != "bfloat16"
        else torch.from_dlpack(x.view("int16")).view(torch.bfloat16)
    )


def as_cupy(y: Any) -> Any:
    import cupy
    import torch

    if y.dtype is torch.bfloat16:
        return cupy.from_dlpack(y.view(torch.int16)).view(numpy_dtype(DType.BFLOAT16))
    return cupy.from_dlpack(y)


@pytest.mark.parametrize("library", ["cupy", "torch"])
@pytest.mark.parametrize("algorithm", list(BOTH), ids=str)
@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("cols", COLS)
def test_matches_float64(cols: int, dtype: DType, algorithm: Function, library: str) -> None:
    for rows in ROWS:
        x = device_normal(rows, cols, dtype)
        if library == "torch":
            given = as_torch(x)
            y = CALLS[algorithm](given, tune="off")
            assert type(y) is type(given)
            assert y.dtype is given.dtype
            y = as_cupy(y)
        else:
            y = CALLS[algorithm](x, tune="off")
        assert y.shape == x.shape
        assert y.dtype == x.dtype
        assert error_over_bound(y, x, algorithm, dtype) <= 1.0, f"{rows} rows"


@pytest.mark.parametrize("algorithm", list(BOTH), ids=str)
@pytest.mark.parametrize("strategy", ["warp", "online", "safe", "oneflow"])
@pytest.mark.parametrize(
    ("dtype", "out"),
    [
        ("bfloat16", "float32"),
        ("float16", "float32"),
        ("float32", "bfloat16"),
        ("float32", "float16"),
        ("float64", "float32"),
        ("float16", "float64"),
    ],
)
def test_result_dtype(dtype: str, out: str, strategy: str, algorithm: Function) -> None:
    x = device_normal(5, 500, DType(dtype))
    y = CALLS[algorithm](x, dtype=out, variant=strategy)
    assert y.dtype.name == out
    assert error_over_bound(y, x, algorithm, DType(out)) <= 1.0


@pytest.mark.parametrize("algorithm", list(BOTH), ids=str)
@pytest.mark.parametrize(
    ("dtype", "rows", "cols"),
    [("bfloat16", 300_001, 100), ("float16", 70_001, 1026), ("float32", 9001, 12674)],
)
def test_oneflows_blocks_stride_over_more_rows_than_32_waves(
    dtype: str, rows: int, cols: int, algorithm: Function
) -> None:
    """Its three kernels, on a GPU of up to 132 SMs."""
    x = device_normal(rows, cols, DType(dtype))
    y = CALLS[algorithm](x, variant="oneflow")
    rounded = algorithm == SOFTMAX and dtype == "float32"  # its exponent
    more = EXPONENT_ERROR if rounded else 0.0
    assert error_over_bound(y, x, algorithm, DType(dtype), more) <= 1.0


@pytest.mark.parametrize("algorithm", list(BOTH), ids=str)
@pytest.mark.parametrize("cols", [100, 1000, 12671, 50257, 131072, 1_000_001])
def test_float64_of_wide_spreads(cols: int, algorithm: Function) -> None:
    """x - max is rounded here: in the other tests elements have no more bits than float32's."""
    import cupy

    x = cupy.asarray(np.random.default_rng(cols).standard_normal((5, cols)) * 100)
    y = CALLS[algorithm](x, tune="off")
    assert error_over_bound(y, x, algorithm, DType.FLOAT64) <= 1.0
    wanted = reference(algorithm, x.get(), wide=True)[0]
    on_device = in_float64(x, algorithm).get()
    seen = np.abs(wanted) > 1e-290
    assert (np.abs(on_device - wanted)[seen] <= 2e-15 * (1 + np.abs(wanted[seen]))).all()
    if algorithm == SOFTMAX:
        errors = np.abs(np.stack([on_device, y.get()]) - wanted)[:, seen] / wanted[seen]
        assert errors[0].max() < 2e-15
        assert errors[1].max() > 1e-14


@pytest.mark.parametrize("strategy", ["online", "safe", "warp", "block"])
@pytest.mark.parametrize("cols", [500, 501])
@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.value)
def test_bases_that_start_anywhere(dtype: DType, cols: int, strategy: str) -> None:
    require_right_at([(i, j) for i in range(3) for j in range(3)], 17, cols, dtype, strategy)


@pytest.mark.parametrize("strategy", ["block", "cluster", "split"])
@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.value)
def test_wide_rows_that_start_anywhere(dtype: DType, strategy: str) -> None:
    require_right_at(((0, 0), (1, 1), (3, 0), (0, 5)), 9, 12671, dtype, strategy)


def require_right_at(
    offsets: Iterable[tuple[int, int]], rows: int, cols: int, dtype: DType, strategy: str
) -> None:
    """Require the results of x and y so many elements behind a boundary, and nothing beside."""
    import cupy

    values = device_normal(1, rows * cols, dtype)[0].reshape(rows, cols)
    for x_offset, y_offset in offsets:
        x = cupy.empty(rows * cols + 8, values.dtype)[x_offset:][: rows * cols].reshape(rows, cols)
        x[...] = values
        canvas = cupy.full(rows * cols + 8, 77, values.dtype)
        y = canvas[y_offset : y_offset + rows * cols].reshape(rows, cols)
        assert softgen.softmax(x, out=y, variant=strategy) is y
        assert error_over_bound(y, x, SOFTMAX, dtype) <= 1.0
        assert (canvas[:y_offset] == 77).all()
        assert (canvas[y_offset + rows * cols :] == 77).all()


@pytest.mark.parametrize("strategy", ["online", "safe", "warp"])
def test_rows_with_special_values(strategy: str) -> None:
    import cupy

    inf, nan = math.inf, math.nan
    x = cupy.zeros((7, 300), "float32")
    x[0, 5] = nan
    x[1, 299] = inf
    x[2, :] = -inf
    x[3, 100:228] = -inf
    x[4, :] = np.finfo(np.float32).min
    x[5, :] = np.finfo(np.float32).max
    y = softgen.softmax(x, variant=strategy).get()
    assert np.isnan(y[:3]).all()
    assert (y[3, 100:228] == 0).all()
    np.testing.assert_allclose(np.delete(y[3], slice(100, 228)), 1 / 172, rtol=2e-6)
    np.testing.assert_allclose(y[4:], 1 / 300, rtol=2e-6)
    z = softgen.log_softmax(x, variant=strategy).get()
    assert np.isnan(z[:3]).all()
    assert np.isneginf(z[3, 100:228]).all()
    np.testing.assert_allclose(z[4:], -math.log(300), rtol=2e-6)


@pytest.mark.parametrize(
    ("strategy", "cols"),
    [
        ("online", 1001),
        ("safe", 1001),
        ("warp", 1001),
        ("block", 5001),
        ("cluster", 20001),
        ("split", 50257),
    ],
)
def test_in_place(strategy: str, cols: int) -> None:
    x = device_normal(33, cols, DType.FLOAT32)
    given = x.copy()
    assert softgen.softmax(x, out=x, variant=strategy) is x
    assert error_over_bound(x, given, SOFTMAX, DType.FLOAT32) <= 1.0


@pytest.mark.parametrize("strategy", ["block", "cluster", "split"])
@pytest.mark.parametrize("algorithm", list(BOTH), ids=str)
def test_wide_rows_with_special_values(strategy: str, algorithm: Function) -> None:
    import cupy

    x = device_normal(8, 12672, DType.FLOAT32)
    x[0, 12671] = math.nan
    x[1, 7] = math.inf
    x[2, :] = -math.inf
    x[3, :9000] = -math.inf
    x[4, 1:] = -math.inf
    x[5, :] = np.finfo(np.float32).min
    x[6, 6336:] = -math.inf
    y = CALLS[algorithm](x, variant=strategy)
    assert error_over_bound(y, x, algorithm, DType.FLOAT32) <= 1.0
    assert cupy.isnan(y[:3]).all()
    assert not cupy.isnan(y[3:]).any()


def test_workspaces_stay_zero_between_shapes() -> None:
    """Launches of other shapes lay the workspace out otherwise."""
    for rows, cols in ((128, 65536), (4, 262144), (128, 131072), (3, 1_000_003), (128, 65536)):
        x = device_normal(rows, cols, DType.FLOAT32)
        y = softgen.softmax(x, variant="split")
        assert error_over_bound(y, x, SOFTMAX, DType.FLOAT32) <= 1.0


def test_results_repeat_to_the_bit() -> None:
    x = device_normal(64, 50257, DType.FLOAT32)
    first = softgen.softmax(x, tune="off")
    for _ in range(3):
        assert (softgen.softmax(x, tune="off") == first).all()


def test_more_than_two_to_the_31_elements() -> None:
    import cupy

    rows, cols = 2**19 + 1, 4096
    x = cupy.zeros((rows, cols), "float16")
    x[-1, -1] = 5.0
    y = softgen.softmax(x, out=x, tune="off")
    total = cols - 1 + math.exp(5)
    assert float(y[-1, -1]) == pytest.approx(math.exp(5) / total, rel=1e-3)
    assert float(y[-1, 0]) == pytest.approx(1 / total, rel=1e-3)
    assert (y[:-1] == np.float16(1 / cols)).all()


@pytest.mark.parametrize("strategy", ["online", "split", "cooperative"])
@pytest.mark.parametrize("algorithm", list(BOTH), ids=str)
def test_a_row_of_more_than_two_to_the_31_columns(algorithm: Function, strategy: str) -> None:
    """Spikes at both ends and on both sides of 2^31, and among them a floor that sums to e^17."""
    import cupy

    cols = 2**31 + 4096
    x = cupy.full((1, cols), -4.5, "float16")
    spikes = [0, 12345, 2**31 - 1, 2**31, cols - 2, cols - 1]
    heights = [17.0, 15.0, 16.0, 17.5, 14.0, 18.0]
    x[0, spikes] = cupy.asarray(heights, "float16")
    total = sum(map(math.exp, heights)) + (cols - len(spikes)) * math.exp(-4.5)
    log_form = algorithm == LOG_SOFTMAX
    wanted = [h - math.log(total) if log_form else math.exp(h) / total for h in heights]
    floor = -4.5 - math.log(total) if log_form else math.exp(-4.5) / total
    y = CALLS[algorithm](x, out=x, variant=strategy)
    np.testing.assert_allclose(y[0, spikes].get().astype(float), wanted, rtol=1.5 * 2**-10)
    y[0, spikes] = y[0, 1]
    assert float(y[0, 1]) == pytest.approx(floor, rel=2**-10, abs=2**-24)
    assert bool((y == y[0, 1]).all())


def test_a_row_of_the_whole_array() -> None:
    import cupy

    x = cupy.zeros((), "float32")
    assert float(softgen.softmax(x)) == 1.0
    assert float(softgen.log_softmax(x, axis=0)) == 0.0
    assert softgen.softmax(cupy.zeros((3, 0), "float32")).shape == (3, 0)
    assert softgen.softmax(cupy.zeros((0, 5), "float32")).shape == (0, 5)
