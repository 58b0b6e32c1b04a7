"""topk_softmax on CuPy arrays: which kernel a call asks for, with which arrays, its errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softgen.call.choosing import topk_softmax, topk_softmax_backward
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.functions.topk_softmax import TopkSoftmax
from softgen.problems.functions.topk_softmax_backward import TopkSoftmaxBackward
from tests.helpers.cupy_calls import World, cupy_array, drawn

ROWS, COLS = 5, 16


def scores_of(x: Any, sigmoid: bool = False) -> Any:
    z = np.asarray(x, np.float64)
    if sigmoid:
        return 1 / (1 + np.exp(-z))
    return np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)


def test_the_largest_are_first_with_their_columns(world: World) -> None:
    x = drawn(2, ROWS, COLS)
    s = scores_of(x)
    wanted = np.argsort(-s, axis=-1, kind="stable")[..., :4]
    for _again in range(3):  # by dispatch, then by an entry
        weights, ids = topk_softmax(x, 4)
        assert (weights.dtype, ids.dtype) == (np.float32, np.int32)
        np.testing.assert_array_equal(ids, wanted)
        np.testing.assert_allclose(weights, np.take_along_axis(s, wanted, -1), rtol=1e-5)
    assert world.cold == 1
    assert world.last().function.name == "topk_softmax_k4"


def test_arguments_name_the_function_and_are_its_inputs(world: World) -> None:
    x = drawn(ROWS, COLS)
    bias = cupy_array(np.linspace(-1, 1, COLS).astype(np.float16))
    given: dict[str, Any] = {"scores": "sigmoid", "groups": 4, "topk_groups": 2}
    weights, ids = topk_softmax(x, 3, choice_bias=bias, renormalize=True, scale=2.5, **given)
    assert world.last().function.name == "topk_softmax_k3_sigmoid_bias_g4of2_norm"
    s, rows = scores_of(x, sigmoid=True), np.arange(ROWS)[:, None]
    compared = s + np.asarray(bias, np.float64)
    ranked = np.sort(compared.reshape(ROWS, 4, -1), axis=-1)[..., -2:].sum(axis=-1)
    kept = np.argsort(np.argsort(-ranked)) < 2
    chosen = np.argsort(-np.where(kept.repeat(4, axis=1), compared, -9))[:, :3]
    np.testing.assert_array_equal(ids, chosen)
    right = 2.5 * s[rows, chosen] / s[rows, chosen].sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(weights, right, rtol=1e-5)
    topk_softmax(x, 3, groups=4, topk_groups=4)  # all are kept
    assert world.last().function.name == "topk_softmax_k3"


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize("biased", [False, True])
def test_hooks_modify_x_before_its_scores(scores: str, biased: bool, world: World) -> None:
    x, mask = drawn(ROWS, COLS), np.ones((ROWS, COLS), bool)
    mask[:, ::3] = False
    lines = np.linspace(-1, 1, ROWS * COLS, dtype=np.float32).reshape(ROWS, COLS)
    hooks = {"softcap": 2.0, "bias": cupy_array(lines), "mask": cupy_array(mask)}
    b = np.linspace(1, -1, COLS, dtype=np.float32) if biased else np.zeros(COLS, np.float32)
    given: dict[str, Any] = {"choice_bias": cupy_array(b)} if biased else {}
    weights, ids = topk_softmax(x, 4, scores=scores, **given, **hooks)
    problem = world.last()
    assert [str(hook) for hook in problem.hooks] == ["softcap", "biasf32", "mask"]
    z = np.where(mask, 2 * np.tanh(np.asarray(x, np.float64) / 2) + lines, -np.inf)
    s = scores_of(z, scores == "sigmoid")
    compared = np.where(mask, s + b, -np.inf)
    wanted = np.argsort(-compared, axis=-1, kind="stable")[:, :4]
    np.testing.assert_array_equal(ids, wanted)
    np.testing.assert_allclose(weights, np.take_along_axis(s, wanted, -1), rtol=1e-5)


@pytest.mark.parametrize("name", ["scale_of", "lengths", "causal", "sink", "dropout"])
def test_hooks_that_it_does_not_take(name: str, world: World) -> None:
    options: dict[str, Any] = {name: 1}
    with pytest.raises(InvalidTypeError, match=f"'{name}'; softgen knows: .*softcap, bias, mask"):
        topk_softmax(drawn(ROWS, COLS), 4, **options)


def test_one_has_an_axis_too_and_results_go_where_they_are_asked_for(world: World) -> None:
    x = drawn(ROWS, COLS, kind="f8")
    out = cupy_array(np.zeros((ROWS, 1)))
    weights, ids = topk_softmax(x, 1, out=out)
    assert weights.shape == ids.shape == (ROWS, 1)
    assert weights.dtype == np.float64
    np.testing.assert_array_equal(out, weights)
    np.testing.assert_array_equal(ids[:, 0], x.argmax(axis=1))


def test_one_of_each_row_is_in_arrays_of_one_more_axis(world: World) -> None:
    """Of a longer axis, its first elements are not taken in silence."""
    x, ids = drawn(ROWS, COLS), cupy_array(np.zeros((ROWS, 1), np.int32))
    for shape in ((ROWS, 3), (ROWS,), ()):
        with pytest.raises(InvalidValueError, match=rf"out must have shape \({ROWS}, 1\), got"):
            topk_softmax(x, 1, out=cupy_array(np.zeros(shape, np.float32)))
    with pytest.raises(InvalidTypeError, match=r"got builtins[.]list as out"):
        topk_softmax(x, 1, out=[0.0])
    one, several = drawn(ROWS, 1), drawn(ROWS, 3)
    for given in ((one, several.astype("i4"), one), (one, ids, several)):
        with pytest.raises(InvalidValueError, match="must have the shape of x's rows"):
            topk_softmax_backward(x, *given)
    assert world.driver.launches == []


def test_another_axis_and_no_rows(world: World) -> None:
    x = drawn(COLS, 3)
    weights, ids = topk_softmax(x, 2, axis=0)
    np.testing.assert_array_equal(ids, np.argsort(-x, axis=0)[:2].T)
    weights, ids = topk_softmax(drawn(0, COLS), 2)
    assert weights.shape == ids.shape == (0, 2)


@pytest.mark.parametrize(
    ("error", "said", "given"),
    [
        (InvalidValueError, "k must be from 1 to 64, got 0", {"k": 0}),
        (InvalidValueError, "k must be from 1 to 64, got 65", {"k": 65}),
        (InvalidValueError, "k must be at most the 16 columns, got 17", {"k": 17}),
        (InvalidTypeError, "k must be an int", {"k": 2.0}),
        (InvalidValueError, "sigmoid", {"scores": "sigmoi"}),
        (InvalidValueError, "groups and topk_groups go together", {"groups": 4}),
        (InvalidValueError, "groups must divide the columns", {"groups": 3, "topk_groups": 1}),
        (InvalidValueError, "topk_groups must be from 1", {"groups": 4, "topk_groups": 5}),
        (InvalidValueError, "8 columns of the groups", {"k": 9, "groups": 4, "topk_groups": 2}),
        (InvalidValueError, "scale must be finite", {"scale": np.inf}),
        (InvalidTypeError, "tun", {"tun": "off"}),
    ],
)
def test_what_no_kernel_has_is_refused(
    error: type[Exception], said: str, given: dict[str, Any], world: World
) -> None:
    with pytest.raises(error, match=said):
        topk_softmax(drawn(ROWS, COLS), **{"k": 2, **given})
    assert world.driver.launches == []


@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_a_bias_of_the_type_of_the_arithmetic_moves_the_choice_too(kind: str, world: World) -> None:
    """A contiguous one is read where it lies, and of another only a copy."""
    x, numbers = drawn(ROWS, COLS, kind=kind), np.linspace(9, -9, 2 * COLS).astype(kind)
    s = scores_of(x)
    for bias in (cupy_array(numbers[:COLS]), cupy_array(numbers)[::2]):
        given = np.array(bias)
        weights, ids = topk_softmax(x, 3, choice_bias=bias)
        chosen = np.argsort(-(s + np.asarray(bias, np.float64)), axis=-1)[:, :3]
        np.testing.assert_array_equal(ids, chosen)
        np.testing.assert_allclose(weights, np.take_along_axis(s, chosen, -1), rtol=1e-5)
        np.testing.assert_array_equal(bias, given)
        whole = bias.flags.c_contiguous
        assert (bias.data.ptr in world.words()) is whole


def test_a_bias_has_a_number_a_column(world: World) -> None:
    x = drawn(ROWS, COLS)
    for shape, kind, said in (((COLS + 1,), "f4", "a number a column"), ((COLS,), "i4", "floats")):
        with pytest.raises((InvalidValueError, InvalidTypeError), match=said):
            topk_softmax(x, 2, choice_bias=cupy_array(np.zeros(shape, kind)))


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize("k", [1, 3])
def test_gradients_are_those_of_differences(
    k: int, scores: str, renormalize: bool, world: World
) -> None:
    x, scale = drawn(ROWS, COLS, kind="f8"), 2.5
    given: dict[str, Any] = {"scores": scores, "renormalize": renormalize, "scale": scale}
    weights, ids = topk_softmax(x, k, **given)
    upstream = cupy_array(np.random.default_rng(1).normal(size=weights.shape))
    dx = topk_softmax_backward(x, weights, ids, upstream, **given)
    of = TopkSoftmax(k, sigmoid=scores == "sigmoid", renormalize=renormalize)

    def loss(at: Any) -> Any:
        found = of.reference(at, scale)[0].reshape(weights.shape)
        return (found * np.asarray(upstream)).sum(axis=1)

    step, wanted = 1e-6, np.zeros((ROWS, COLS))
    for col in range(COLS):
        by = np.zeros(COLS)
        by[col] = step
        z = np.asarray(x)
        wanted[:, col] = (loss(z + by) - loss(z - by)) / (2 * step)
    np.testing.assert_allclose(dx, wanted, atol=1e-8)
    assert isinstance(world.last().function, TopkSoftmaxBackward)


def test_gradients_of_views_go_into_x_where_they_are_asked_to(world: World) -> None:
    x = drawn(ROWS, COLS)
    weights, ids = topk_softmax(x, 2)
    upstream = np.broadcast_to(cupy_array(np.ones(1, np.float32)), weights.shape, subok=True)
    wanted = np.array(topk_softmax_backward(x, weights, ids, upstream))
    found = topk_softmax_backward(x, weights, ids, upstream, out=x)
    assert found is x
    np.testing.assert_array_equal(x, wanted)
    with pytest.raises(InvalidTypeError, match="ids must be int32"):
        topk_softmax_backward(x, weights, ids.astype("int64"), upstream)
    with pytest.raises(InvalidValueError, match="upstream must have the shape"):
        topk_softmax_backward(x, weights, ids, drawn(ROWS, 3))
    with pytest.raises(InvalidValueError, match="x has 1 columns, and weights are of 2"):
        topk_softmax_backward(drawn(ROWS, 1), weights, ids, upstream)
