"""Calls along any axis: from the arrays of a stand-in for a library to launches and back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from softgen.call import full, moved
from softgen.call.axes import axes_of, is_plain, reduced, with_axes_kept
from softgen.call.full import run_full
from softgen.call.warm import WarmCalls
from softgen.errors import CaptureError, InvalidTypeError, InvalidValueError
from softgen.spec.arch import arch_named
from softgen.spec.dtypes import DType
from softgen.spec.functions.base import Function
from softgen.spec.layouts import ROWS, Columns
from softgen.spec.numerics import in_memory, reference
from softgen.spec.operands import Extent
from softgen.spec.problem import Problem
from softgen.strategies.variants import Variant, best_guess

ARCH = arch_named("sm_90")


@pytest.mark.parametrize(
    ("shape", "axis", "axes", "cols", "inner", "rows"),
    [
        ((4, 5, 6), 1, (1,), 5, 6, (4, 6)),
        ((4, 5, 6), -3, (0,), 4, 30, (5, 6)),
        ((4, 5, 6), (-1, 1), (1, 2), 30, 1, (4,)),
        ((4, 5, 6), (0, 1), (0, 1), 20, 6, (6,)),
        ((4, 5, 6), None, (0, 1, 2), 120, 1, ()),
        ((4, 1, 6), (0, 2), (0, 2), 24, 1, (1,)),
        ((4, 5, 1), 1, (1,), 5, 1, (4, 1)),
        ((), -1, (), 1, 1, ()),
        ((), None, (), 1, 1, ()),
        ((3, 0, 2), 0, (0,), 3, 0, (0, 2)),
    ],
)
def test_what_an_axis_means(
    shape: tuple[int, ...], axis: Any, axes: tuple[int, ...], cols: int, inner: int, rows: Any
) -> None:
    found = reduced(shape, axis)
    assert tuple(found) == (axes, cols, inner, rows, False)
    if 0 not in shape:
        assert found.layout == (ROWS if inner == 1 or cols == 1 else Columns(inner))


def test_axes_with_others_between_them_move() -> None:
    assert reduced((4, 5, 6), (0, 2)).moves
    assert reduced((4, 5, 6), (2, 0)).axes == (0, 2)
    assert reduced((1, 5, 6), 0).layout is ROWS  # a row of one element lies as any


@pytest.mark.parametrize(
    ("axis", "error", "message"),
    [
        (3, np.exceptions.AxisError, "axis 3 is out of bounds for array of dimension 3"),
        ((0, -4), np.exceptions.AxisError, "axis -4 is out of bounds"),
        ((0, -3), InvalidValueError, r"axis \(0, -3\) has an axis twice"),
        ((), InvalidValueError, "axis is an empty tuple; give an axis, several, or None for all"),
        (1.0, InvalidTypeError, "axis must be an int, got 1.0"),
        ((0, True), InvalidTypeError, "axis must be an int, got True"),
        ([0], InvalidTypeError, r"axis must be an int, got \[0\]"),
    ],
)
def test_what_is_no_axis_is_refused(axis: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        axes_of(axis, 3)


def test_only_plain_axes_are_kept_for_warm_calls() -> None:
    assert all(map(is_plain, (0, -1, (0, 1), None)))
    assert not any(map(is_plain, (True, 1.0, np.int64(1), (0, True), [0])))


@pytest.mark.parametrize(("axis", "shape"), [(0, (1, 5, 6)), (-2, (4, 1, 6)), ((0, 2), (1, 5, 1))])
def test_axes_that_are_kept_have_length_1(axis: Any, shape: tuple[int, ...]) -> None:
    rows = np.ones((4, 5, 6)).sum(axis=axis)
    assert with_axes_kept(rows, axis).shape == shape
    assert with_axes_kept(np.float64(1), None, 3).shape == (1, 1, 1)


class NumpyLibrary:
    """NumPy arrays as if they were a GPU's; what is copied is counted."""

    mallocs_in_capture = True
    array_type = np.ndarray

    def __init__(self) -> None:
        self.copies = 0
        self.arrays: dict[int, Any] = {}  # by address, for the launches

    def pointer(self, x: Any) -> int:
        self.arrays[x.ctypes.data] = x
        return int(x.ctypes.data)

    def dtype(self, x: Any) -> DType:
        return DType.of(x.dtype)

    element_type = dtype

    def device(self, x: Any) -> int:
        return 0

    def stream(self, device: int) -> int:
        return 0

    def byte_strides(self, x: Any) -> tuple[int, ...]:
        return tuple(x.strides)

    def is_contiguous(self, x: Any) -> bool:
        return bool(x.flags.c_contiguous)

    def contiguous(self, x: Any) -> Any:
        self.copies += not x.flags.c_contiguous
        return np.ascontiguousarray(x)

    def permuted(self, x: Any, order: Sequence[int]) -> Any:
        return x.transpose(order)

    def empty(self, shape: tuple[int, ...], dtype: DType, device: int) -> Any:
        flat = np.full(int(np.prod(shape)) + 4, np.nan, dtype.value)
        start = -flat.ctypes.data % 16 // flat.itemsize
        return flat[start : start + int(np.prod(shape))].reshape(shape)

    def assign(self, target: Any, source: Any) -> None:
        target[...] = source

    def fill(self, x: Any, value: float) -> None:
        x.fill(value)


class Call:
    """`run_full` on NumPy arrays, a launch being the reference in memory; what ran is in `ran`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.library = NumpyLibrary()
        self.captured = False
        self.ran: list[Variant] = []
        monkeypatch.setattr(full, "library_of", lambda x: (self.library, x))
        monkeypatch.setattr(full, "on_device", lambda device: contextlib.nullcontext())
        for module in (full, moved):
            monkeypatch.setattr(module, "is_captured", lambda stream: self.captured)
        monkeypatch.setattr(full, "kernel_for", self._kernel_for)

    def __call__(self, function: str, x: Any, *others: Any, axis: Any = -1, out: Any = None) -> Any:
        calls = WarmCalls(lambda *_: None)
        options = (None, "off", None, False)
        of = Function.of(function)
        return run_full(calls, of, (x, *others), out, axis, *options, key=None, pdl=True)

    def _kernel_for(self, problem: Problem, rows: int, *_: Any) -> Any:
        variant = best_guess(problem, rows, ARCH)
        self.ran.append(variant)
        return self  # what `launcher` is asked of

    def launcher(self, rows: int, library: Any, **_: Any) -> Callable[..., None]:
        variant = self.ran[-1]

        def launch(pointers: Sequence[int], stream: int) -> None:
            problem, arrays = variant.problem, [self.library.arrays[p] for p in pointers]
            given = []
            for operand, array in zip(problem.operands, arrays, strict=True):
                if not operand.result and operand.extent is Extent.ELEMENT:
                    given.append(problem.layout.from_memory(array, rows, problem.cols))
                elif not operand.result:
                    given.append(array.reshape(operand.shape(rows, problem.cols)))
            results = reference(problem.function, *(each.astype(np.float64) for each in given))
            for operand, found in zip(problem.results, results, strict=True):
                target = arrays[problem.operands.index(operand)].reshape(-1)
                target[:] = np.ascontiguousarray(in_memory(found, operand, problem)).reshape(-1)

        return launch


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Call:
    return Call(monkeypatch)


def array(*shape: int) -> Any:
    values = np.random.default_rng(list(shape)).standard_normal(shape, np.float32) * 3
    made = NumpyLibrary().empty(shape, DType.FLOAT32, 0)
    made[...] = values
    return made


def softmax_of(x: Any, axis: Any) -> tuple[Any, Any]:
    """Return softmax and log-sum-exp in float64."""
    x = x.astype(np.float64)
    m = x.max(axis=axis, keepdims=True)
    total = np.exp(x - m).sum(axis=axis, keepdims=True)
    return np.exp(x - m) / total, np.squeeze(m + np.log(total), axis=axis)


@pytest.mark.parametrize("axis", [0, 1, -2, (0, 1), (1, 2), (2, 1), None, -1])
def test_any_axis_of_a_contiguous_array_takes_no_copy(axis: Any, call: Call) -> None:
    x = array(6, 10, 8)
    y, lse = call("softmax_lse", x, axis=axis)
    assert call.library.copies == 0
    wanted, rows = softmax_of(x, axis)
    np.testing.assert_allclose(y, wanted, rtol=2e-6)
    np.testing.assert_allclose(lse, rows, rtol=2e-6, atol=2e-6)
    assert lse.shape == rows.shape
    layout = call.ran[0].problem.layout
    assert layout == reduced(x.shape, axis).layout


@pytest.mark.parametrize("function", ["softmax_lse", "logsumexp"])
@pytest.mark.parametrize("axis", [(0, 2), (0, 3), (0, 1, 3)])
def test_axes_with_others_between_them_take_one_copy(function: str, axis: Any, call: Call) -> None:
    x = array(3, 4, 5, 6)
    found = call(function, x, axis=axis)
    assert call.library.copies == 1
    y, lse = softmax_of(x, axis)
    if function == "softmax_lse":
        np.testing.assert_allclose(found[0], y, rtol=2e-6)
    np.testing.assert_allclose(
        found if function == "logsumexp" else found[1], lse, rtol=2e-6, atol=2e-6
    )
    assert call.ran[0].problem.layout is ROWS


def test_a_function_that_no_kernel_of_columns_knows_takes_one_copy(call: Call) -> None:
    x = array(7, 12)
    m, d = call("partial", x, axis=0)
    assert call.library.copies == 0
    np.testing.assert_array_equal(m, x.max(axis=0))
    y = call("finish", x, m, d, axis=0)
    assert call.library.copies == 1
    np.testing.assert_allclose(y, softmax_of(x, 0)[0], rtol=2e-6)


@pytest.mark.parametrize("axis", [0, 1, (0, 1)])
def test_gradients_along_another_axis_take_no_copy(axis: Any, call: Call) -> None:
    x, dy = array(6, 10, 8), array(6, 8, 10).reshape(6, 10, 8)
    y = softmax_of(x, axis)[0].astype(np.float32)
    dx = call("softmax_backward", dy, y, axis=axis)
    assert call.library.copies == 0
    assert isinstance(call.ran[0].problem.layout, Columns)
    wanted = y * (dy - (dy * y).sum(axis=axis, keepdims=True))
    np.testing.assert_allclose(dx, wanted, rtol=1e-5, atol=1e-6)
    assert call("softmax_backward", dy, y, axis=axis, out=dy) is dy
    np.testing.assert_array_equal(dy, dx)


@pytest.mark.parametrize("axis", [0, (0, 2)])
def test_results_go_where_the_caller_wants_them(axis: Any, call: Call) -> None:
    x = array(6, 5, 8)
    wanted = softmax_of(x, axis)[0]
    out = call.library.empty(x.shape, DType.FLOAT32, 0)
    assert call("softmax", x, axis=axis, out=out) is out
    np.testing.assert_allclose(out, wanted, rtol=2e-6)
    assert call("softmax", x, axis=axis, out=x) is x
    np.testing.assert_allclose(x, wanted, rtol=2e-6)
    with pytest.raises(
        InvalidValueError, match=r"out must have shape \(6, 5, 8\), got \(6, 8, 5\)"
    ):
        call("softmax", x, axis=axis, out=call.library.empty((6, 8, 5), DType.FLOAT32, 0))


def test_rows_that_lie_side_by_side_are_written_where_they_belong(call: Call) -> None:
    x = array(4, 6, 8)
    out = call.library.empty((4, 8), DType.FLOAT32, 0)
    assert call("logsumexp", x, axis=1, out=out) is out
    np.testing.assert_allclose(out, softmax_of(x, 1)[1], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("axis", [0, 1, (0, 2)])
def test_an_empty_array_has_no_launch(axis: Any, call: Call) -> None:
    y, lse = call("softmax_lse", array(3, 0, 4), axis=axis)
    assert y.shape == (3, 0, 4)
    assert lse.shape == reduced((3, 0, 4), axis).row_shape
    assert (lse == -np.inf).all()
    assert not call.ran


def test_no_copy_is_made_while_a_stream_is_captured(call: Call) -> None:
    call.captured = True
    x = array(3, 4, 5)
    with pytest.raises(CaptureError, match=r"axes \(0, 2\) of a 3-d array are copied"):
        call("softmax", x, axis=(0, 2), out=x)
