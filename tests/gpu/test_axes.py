"""Calls along every axis, of CuPy's arrays and PyTorch's, against float64."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import softgen
from softgen.problems.dtypes import DType
from softgen.problems.numerics import check, encode
from softgen.problems.problem import Problem

pytestmark = pytest.mark.gpu

# Odd and even inner sizes, a short and a long axis, several axes at once, all.
CASES = [
    ((6, 128, 64), 1),
    ((5, 21, 3, 7), 1),
    ((3000, 77), 0),
    ((2, 9000, 16), -2),
    ((4, 3, 1000), (0, 1)),
    ((4, 3, 1000), None),
    ((7, 5, 6), (0, 2)),
    ((8, 1, 12), (0, 1)),
]


def given(library: str, shape: tuple[int, ...], dtype: DType) -> tuple[Any, Any]:
    """Return an array of the library, and its values in storage form."""
    values = np.random.default_rng(list(shape)).standard_normal(shape) * 3
    values.reshape(-1)[:: 1 + values.size // 5] = -np.inf
    stored = encode(values, dtype)
    if library == "torch":
        torch = pytest.importorskip("torch")
        return torch.from_numpy(stored).cuda().view(getattr(torch, dtype.value)), stored
    import cupy

    from softgen.problems.storage import numpy_dtype

    return cupy.asarray(stored).view(numpy_dtype(dtype)), stored


def stored_of(result: Any, dtype: DType) -> Any:
    """Return a result in storage form."""
    bits = "uint16" if dtype is DType.BFLOAT16 else dtype.value
    if "torch" in sys.modules and isinstance(result, sys.modules["torch"].Tensor):
        torch = sys.modules["torch"]
        kind = torch.uint16 if dtype is DType.BFLOAT16 else result.dtype
        return result.contiguous().view(kind).cpu().numpy()
    import cupy

    return cupy.asnumpy(cupy.ascontiguousarray(result)).view(bits)


def as_rows(array: Any, axis: Any) -> Any:
    """Return (rows, cols), the rows in the order of their results."""
    axes = range(array.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    last = sorted(each % array.ndim for each in axes)
    order = [i for i in range(array.ndim) if i not in last] + last
    moved = array.transpose(order)
    cols = int(np.prod([array.shape[i] for i in last]))
    return np.ascontiguousarray(moved).reshape(-1, cols)


@pytest.mark.parametrize("tune", ["off", "force"])
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("library", ["cupy", "torch"])
@pytest.mark.parametrize(("shape", "axis"), CASES)
def test_every_axis(
    shape: tuple[int, ...], axis: Any, library: str, dtype: DType, tune: str
) -> None:
    if tune == "force" and (library == "torch" or dtype is DType.FLOAT64):
        tune = "cached"
    x, stored = given(library, shape, dtype)
    rows = as_rows(stored, axis)
    cols = rows.shape[1]
    wide = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
    for name in ("softmax", "log_softmax"):
        call = getattr(softgen, name)
        y, lse = call(x, axis=axis, tune=tune, return_lse=True)
        assert tuple(y.shape) == shape
        found = (as_rows(stored_of(y, dtype), axis), stored_of(lse, wide).reshape(-1))
        accuracy = check(found, (rows,), Problem.of(f"{name}_lse", dtype, cols))
        assert accuracy.ok, accuracy.message
        chosen = "cached" if tune == "force" else tune  # force would choose anew
        again = call(x, axis=axis, tune=chosen, return_lse=True)  # a warm one
        assert stored_of(again[0], dtype).tobytes() == stored_of(y, dtype).tobytes()
    lse = softgen.logsumexp(x, axis=axis, tune=tune)
    accuracy = check(
        (stored_of(lse, dtype).reshape(-1),), (rows,), Problem.of("logsumexp", dtype, cols)
    )
    assert accuracy.ok, accuracy.message
    kept = softgen.logsumexp(x, axis=axis, tune=tune, keepdim=True)
    assert tuple(kept.shape) == np.sum(stored.astype(float), axis=axis, keepdims=True).shape


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_one_axis_in_place_and_off_its_boundary(library: str) -> None:
    flat, stored = given(library, (4 * 30 * 16 + 1,), DType.FLOAT32)
    x, rows = flat[1:].reshape(4, 30, 16), as_rows(stored[1:].reshape(4, 30, 16), 1)
    assert softgen.softmax(x, axis=1, out=x) is x
    found = as_rows(stored_of(x, DType.FLOAT32), 1)
    accuracy = check((found,), (rows,), Problem.of("softmax", "float32", 30))
    assert accuracy.ok, accuracy.message


def test_the_bits_of_a_column_do_not_depend_on_the_batch() -> None:
    x, _ = given("cupy", (6, 500, 64), DType.FLOAT32)
    whole = softgen.softmax(x, axis=1, batch_invariant=True)
    part = softgen.softmax(x[2:3], axis=1, batch_invariant=True)
    assert (whole[2:3] == part).all()


def test_a_plan_takes_inner() -> None:
    x, stored = given("cupy", (3, 40, 48), DType.FLOAT32)
    kernel = softgen.plan("softmax", "float32", 40, inner=48, rows=3 * 48, tune="off")
    for _ in range(2):
        found = as_rows(stored_of(kernel(x), DType.FLOAT32), 1)
        problem = Problem.of("softmax", "float32", 40)
        assert check((found,), (as_rows(stored, 1),), problem).ok
    with pytest.raises(ValueError, match=r"last axes of \(40, 48\), got shape \(3, 48, 40\)"):
        kernel(x.transpose(0, 2, 1).copy())


def test_the_results_of_axes_that_moved_are_views_or_where_the_caller_wants_them() -> None:
    import cupy

    x, _ = given("cupy", (5, 6, 7), DType.FLOAT32)
    y = softgen.softmax(x, axis=(0, 2), tune="off")
    assert not y.flags.c_contiguous
    out = cupy.empty_like(x)
    assert softgen.softmax(x, axis=(0, 2), out=out, tune="off") is out
    assert (out == y).all()


def test_gradients_along_another_axis() -> None:
    x, _ = given("cupy", (5, 60, 7), DType.FLOAT64)
    x[x < -100] = 0
    y, dy = softgen.softmax(x, axis=1), x[::-1].copy()
    dx = softgen.softmax_backward(dy, y, axis=1)
    wanted = y * (dy - (dy * y).sum(axis=1, keepdims=True))
    assert abs(dx - wanted).max() < 1e-13
