"""Calls along any axis: what it means, and from the arrays to launches and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import softgen
from softgen.call.axes import axes_of, is_of_ints, reduced, with_axes_kept
from softgen.errors import CaptureError, InvalidTypeError, InvalidValueError
from softgen.problems.layouts import ROWS, Columns
from tests.helpers.cupy_calls import World, cupy_array, drawn, zeros


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


def test_only_axes_of_ints_are_kept_for_warm_calls() -> None:
    assert all(map(is_of_ints, (0, -1, (0, 1), None)))
    assert not any(map(is_of_ints, (True, 1.0, np.int64(1), (0, True), [0])))


@pytest.mark.parametrize(("axis", "shape"), [(0, (1, 5, 6)), (-2, (4, 1, 6)), ((0, 2), (1, 5, 1))])
def test_axes_that_are_kept_have_length_1(axis: Any, shape: tuple[int, ...]) -> None:
    rows = np.ones((4, 5, 6)).sum(axis=axis)
    assert with_axes_kept(rows, axis).shape == shape
    assert with_axes_kept(np.float64(1), None, 3).shape == (1, 1, 1)


def softmax_of(x: Any, axis: Any) -> tuple[Any, Any]:
    """Return softmax and log-sum-exp in float64."""
    x = x.astype(np.float64)
    m = x.max(axis=axis, keepdims=True)
    total = np.exp(x - m).sum(axis=axis, keepdims=True)
    return np.exp(x - m) / total, np.squeeze(m + np.log(total), axis=axis)


@pytest.mark.parametrize("axis", [0, 1, -2, (0, 1), (1, 2), (2, 1), None, -1])
def test_any_axis_of_a_contiguous_array_takes_no_copy(axis: Any, world: World) -> None:
    x = drawn(6, 10, 8)
    y, lse = world("softmax_lse", x, axis=axis)
    assert world.copied == 0
    wanted, rows = softmax_of(x, axis)
    np.testing.assert_allclose(y, wanted, rtol=2e-6)
    np.testing.assert_allclose(lse, rows, rtol=2e-6, atol=2e-6)
    assert lse.shape == rows.shape
    layout = world.variants[-1].problem.layout
    assert layout == reduced(x.shape, axis).layout


@pytest.mark.parametrize("function", ["softmax_lse", "logsumexp"])
@pytest.mark.parametrize("axis", [(0, 2), (0, 3), (0, 1, 3)])
def test_axes_with_others_between_them_take_one_copy(
    function: str, axis: Any, world: World
) -> None:
    x = drawn(3, 4, 5, 6)
    found = world(function, x, axis=axis)
    assert world.copied == 1
    y, lse = softmax_of(x, axis)
    if function == "softmax_lse":
        np.testing.assert_allclose(found[0], y, rtol=2e-6)
    np.testing.assert_allclose(
        found if function == "logsumexp" else found[1], lse, rtol=2e-6, atol=2e-6
    )
    assert world.variants[-1].problem.layout is ROWS


@pytest.mark.parametrize("axis", [0, 1])
def test_pairs_and_entropies_along_another_axis_take_no_copy(axis: int, world: World) -> None:
    x = drawn(7, 12, 5)
    m, d = world("partial", x, axis=axis)
    np.testing.assert_array_equal(m, x.max(axis=axis))
    y, _ = softmax_of(x, axis)
    np.testing.assert_allclose(world("finish", x, m, d, axis=axis), y, rtol=2e-6)
    np.testing.assert_allclose(
        world("log_finish", x, m, d, axis=axis), np.log(y), rtol=2e-6, atol=2e-7
    )
    kept = softmax_of(x, axis)[1].astype(np.float32).view(type(x))
    entropy = -(y * np.log(y)).sum(axis=axis)
    np.testing.assert_allclose(world("entropy", x, axis=axis), entropy, rtol=2e-6)
    upstream = drawn(*entropy.shape)
    of_row = np.expand_dims(upstream, axis)
    dx = world("logsumexp_backward", x, kept, upstream, axis=axis)
    np.testing.assert_allclose(dx, y * of_row, rtol=5e-6, atol=1e-7)
    saved = (kept, entropy.astype(np.float32).view(type(x)))
    dx = world("entropy_backward", x, *saved, upstream, axis=axis)
    wanted = -y * (np.log(y) + np.expand_dims(entropy, axis)) * of_row
    np.testing.assert_allclose(dx, wanted, rtol=1e-5, atol=2e-6)
    assert world.copied == 0
    assert {type(variant.problem.layout) for variant in world.variants} == {Columns}


def test_a_function_that_no_kernel_of_columns_knows_takes_one_copy(world: World) -> None:
    x = drawn(7, 12)
    target = (np.arange(12) % 7).view(type(x))
    loss, _ = world("cross_entropy", x, target, -100, 0.0, axis=0)
    assert world.copied == 1
    np.testing.assert_allclose(loss, softmax_of(x, 0)[1] - x[target, np.arange(12)], rtol=2e-6)


@pytest.mark.parametrize("axis", [0, 1, (0, 1)])
def test_gradients_along_another_axis_take_no_copy(axis: Any, world: World) -> None:
    x, dy = drawn(6, 10, 8), drawn(6, 8, 10).reshape(6, 10, 8)
    y = softmax_of(x, axis)[0].astype(np.float32)
    dx = world("softmax_backward", dy, y, axis=axis)
    assert world.copied == 0
    assert isinstance(world.variants[-1].problem.layout, Columns)
    wanted = y * (dy - (dy * y).sum(axis=axis, keepdims=True))
    np.testing.assert_allclose(dx, wanted, rtol=1e-5, atol=1e-6)
    assert world("softmax_backward", dy, y, axis=axis, out=dy) is dy
    np.testing.assert_array_equal(dy, dx)


@pytest.mark.parametrize("axis", [0, (0, 2)])
def test_results_go_where_the_caller_wants_them(axis: Any, world: World) -> None:
    x = drawn(6, 5, 8)
    wanted = softmax_of(x, axis)[0]
    out = zeros(*x.shape)
    assert world("softmax", x, axis=axis, out=out) is out
    np.testing.assert_allclose(out, wanted, rtol=2e-6)
    assert world("softmax", x, axis=axis, out=x) is x
    np.testing.assert_allclose(x, wanted, rtol=2e-6)
    with pytest.raises(
        InvalidValueError, match=r"out must have shape \(6, 5, 8\), got \(6, 8, 5\)"
    ):
        world("softmax", x, axis=axis, out=zeros(6, 8, 5))


def test_rows_that_lie_side_by_side_are_written_where_they_belong(world: World) -> None:
    x = drawn(4, 6, 8)
    out = zeros(4, 8)
    assert world("logsumexp", x, axis=1, out=out) is out
    np.testing.assert_allclose(out, softmax_of(x, 1)[1], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("axis", [0, 1, (0, 2)])
def test_an_empty_array_has_no_launch(axis: Any, world: World) -> None:
    y, lse = world("softmax_lse", drawn(3, 0, 4), axis=axis)
    assert y.shape == (3, 0, 4)
    assert lse.shape == reduced((3, 0, 4), axis).row_shape
    assert (lse == -np.inf).all()
    assert not world.variants


def test_no_copy_is_made_while_a_stream_is_captured(world: World) -> None:
    world.driver.capturing = {world.driver.stream}
    x = drawn(3, 4, 5)
    with pytest.raises(CaptureError, match=r"axes \(0, 2\) of a 3-d array are copied"):
        world("softmax", x, axis=(0, 2), out=x)


@pytest.mark.parametrize("axis", [-1, 0, None, (0,)])
def test_a_number_keeps_its_axes_which_are_none(axis: Any, world: World) -> None:
    for of in (softgen.logsumexp, softgen.entropy):
        assert np.shape(of(cupy_array(np.float32(2)), axis, keepdim=True)) == ()
        assert np.shape(of(drawn(3), axis, keepdim=True)) == (1,)


def test_an_axis_may_be_an_integer_of_numpy_with_hooks_too(world: World) -> None:
    x, bias = drawn(4, 5), drawn(4, 1)
    axes: tuple[Any, ...] = (np.int64(0), np.int32(-2))
    for axis in axes:
        for hooks in ({"bias": bias}, {"scale": 2.0}):
            found = softgen.softmax(x, axis, **hooks)
            np.testing.assert_array_equal(found, softgen.softmax(x, 0, **hooks))
