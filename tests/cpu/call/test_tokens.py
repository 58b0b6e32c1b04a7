"""token_log_probs, entropy and their gradients: which kernel a call asks for, with which arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softgen.call import gradients, tokens
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.dtypes import DType
from tests.helpers.cupy_calls import Interface, World, cupy_array, drawn

ROWS, COLS = 5, 12


def ids_of(*shape: int, kind: str = "int64") -> Any:
    return cupy_array(np.random.default_rng(list(shape)).integers(0, COLS, shape).astype(kind))


def full(shape: Any, value: float) -> Any:
    return cupy_array(np.full(shape, value, np.float32))


def log_softmax(x: Any, temperature: float = 1.0) -> Any:
    z = x.astype(np.float64) / temperature
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize(
    ("shape", "kind", "suffix"),
    [
        ((), "int64", ""),
        ((1,), "int32", "_i32"),
        ((3,), "int32", "_i32_k3"),
        ((16,), "int64", "_k16"),
    ],
)
def test_ids_choose_the_kernel_and_give_the_shape(
    shape: tuple[int, ...], kind: str, suffix: str, world: World
) -> None:
    x, chosen = drawn(2, ROWS, COLS), ids_of(2, ROWS, *shape, kind=kind)
    log_p = log_softmax(x)
    columns = chosen.reshape(2, ROWS, -1)
    wanted = np.take_along_axis(log_p, columns, axis=-1).reshape(chosen.shape)
    h = -(np.exp(log_p) * log_p).sum(axis=-1)
    lse = np.log(np.exp(x.astype(np.float64)).sum(axis=-1))
    for return_lse, return_entropy, beside in (
        (False, False, ""),
        (True, False, "_lse"),
        (False, True, "_entropy"),
        (True, True, "_entropy"),
    ):
        found = tokens.token_log_probs(
            x, chosen, return_lse=return_lse, return_entropy=return_entropy
        )
        every = (wanted, *([lse] * return_lse), *([h] * return_entropy))
        for mine, right in zip(found if beside else (found,), every, strict=True):
            np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-6)
        assert world.driver.names[-1] == f"token_log_probs{beside}{suffix}"
        assert world.last().out_dtype is DType.FLOAT32


def test_the_gradient_takes_what_was_returned(world: World) -> None:
    x = drawn(ROWS, COLS)
    for shape in ((), (1,), (3,)):
        chosen = ids_of(ROWS, *shape)
        lse, h = np.log(np.exp(x).sum(axis=-1)), full(ROWS, 1)
        up, g = full(chosen.shape, 0.5), full(ROWS, 2)
        p = np.exp(log_softmax(x))
        hit = np.zeros_like(p)
        columns = chosen.reshape(ROWS, -1)
        for k in range(columns.shape[1]):
            hit[np.arange(ROWS), columns[:, k]] += 0.5
        wanted = hit - p * 0.5 * columns.shape[1]
        plain = gradients.token_log_probs_backward(x, chosen, lse, up)
        np.testing.assert_allclose(plain, wanted, rtol=1e-5, atol=1e-6)
        wanted -= p * (log_softmax(x) + 1) * 2
        both = gradients.token_log_probs_backward(x, chosen, lse, up, h, g)
        np.testing.assert_allclose(both, wanted, rtol=1e-5, atol=1e-6)
    assert world.driver.names[-2:] == [
        "token_log_probs_backward_k3",
        "token_log_probs_backward_entropy_k3",
    ]


def test_a_temperature_is_a_scale_of_x_and_of_its_gradient(world: World) -> None:
    x, chosen = drawn(ROWS, COLS), ids_of(ROWS)
    log_p, lse = tokens.token_log_probs(x, chosen, temperature=2, return_lse=True)
    wanted = log_softmax(x, 2)[np.arange(ROWS), chosen]
    np.testing.assert_allclose(log_p, wanted, rtol=1e-5)
    dx = gradients.token_log_probs_backward(x, chosen, lse, full(ROWS, 3), temperature=2)
    hit = np.eye(COLS)[chosen]
    np.testing.assert_allclose(dx, (hit - np.exp(log_softmax(x, 2))) * 1.5, rtol=1e-5, atol=1e-6)
    assert world.driver.names == ["token_log_probs_lse", "token_log_probs_backward"]
    assert [each.problem.hooks[0].name for each in world.variants] == ["scale", "scale"]


@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_a_number_of_numpy_is_a_temperature_of_its_value(kind: str, world: World) -> None:
    """1 / 3 in float16 would be off by 1e-4."""
    x, chosen = drawn(ROWS, COLS, kind=kind), ids_of(ROWS)
    wanted = log_softmax(x, 3)[np.arange(ROWS), chosen]
    one = cupy_array(np.ones(ROWS, kind))
    dx = gradients.token_log_probs_backward(x, chosen, one, one, temperature=3)
    for number in (np.float16(3), np.float32(3), np.float64(3), np.int64(3), np.array(3, "f2")):
        found = tokens.token_log_probs(x, chosen, temperature=number)
        np.testing.assert_allclose(found, wanted, rtol=1e-6 if kind == "f4" else 1e-14)
        given: dict[str, Any] = {"temperature": number}
        found = gradients.token_log_probs_backward(x, chosen, one, one, **given)
        np.testing.assert_array_equal(found, dx)
    for wrong in (np.float32(-1), np.int64(0), np.float32(np.nan)):
        with pytest.raises(InvalidValueError, match="temperature must be above 0"):
            tokens.token_log_probs(x, chosen, temperature=wrong)


@pytest.mark.parametrize("topk", [None, 2])
def test_ids_with_an_axis_of_one_take_out_of_their_shape(topk: int | None, world: World) -> None:
    """Not the first elements of a longer axis."""
    x, chosen = drawn(ROWS, COLS), ids_of(ROWS, 1)
    given: dict[str, Any] = {"topk": topk}
    for shape in ((ROWS, 1), (ROWS,)):
        out = full(shape, 0)
        tokens.token_log_probs(x, chosen, out=out, **given)
        wanted = np.take_along_axis(log_softmax(x), chosen, -1)
        np.testing.assert_allclose(out.reshape(ROWS, 1), wanted, rtol=1e-5)
    with pytest.raises(InvalidValueError, match=r"out must have shape \(5,\), got \(5, 3\)"):
        tokens.token_log_probs(x, chosen, out=full((ROWS, 3), 0), **given)
    lse = np.log(np.exp(x).sum(axis=-1))
    with pytest.raises(InvalidValueError, match="upstream must have the shape"):
        gradients.token_log_probs_backward(x, chosen, lse, full((ROWS, 3), 1))


def test_arrays_of_other_libraries(world: World) -> None:
    x, chosen, lse = drawn(ROWS, COLS), ids_of(ROWS, 1), full(ROWS, 4)
    temperatures, up = full(ROWS, 2), full((ROWS, 1), 0.5)
    cases: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (tokens.token_log_probs, (x, chosen), {"checked": True, "temperature": temperatures}),
        (tokens.token_log_probs, (x, chosen), {"topk": 2}),
        (gradients.token_log_probs_backward, (x, chosen, lse, up), {}),
        (
            gradients.token_log_probs_backward,
            (x, chosen, lse, up, lse, lse),
            {"temperature": temperatures},
        ),
    ]
    for function, arrays, options in cases:
        others = {k: Interface(v) if hasattr(v, "shape") else v for k, v in options.items()}
        found = function(*map(Interface, arrays), **others)
        for mine, right in zip(found, function(*arrays, **options), strict=True):
            np.testing.assert_array_equal(mine, right)


@pytest.mark.parametrize(
    ("shape", "kind", "suffix"),
    [((), "int64", ""), ((1,), "int32", "_i32"), ((3,), "int64", "_k3")],
)
def test_the_best_come_with_their_columns_and_ids_with_their_ranks(
    shape: tuple[int, ...], kind: str, suffix: str, world: World
) -> None:
    x, chosen = drawn(2, ROWS, COLS), ids_of(2, ROWS, *shape, kind=kind)
    log_p = log_softmax(x, 0.5)
    columns = chosen.reshape(2, ROWS, -1)
    picked = np.take_along_axis(log_p, columns, axis=-1)
    ranks = (log_p[..., None, :] > picked[..., None]).sum(axis=-1)
    lse = np.log(np.exp(x.astype(np.float64) * 2).sum(axis=-1))
    for k in (1, 4):
        best = np.argsort(-log_p, axis=-1, kind="stable")[..., :k]
        top = np.take_along_axis(log_p, best, axis=-1)
        of_ids = (each.reshape(chosen.shape) for each in (picked, ranks))
        wanted = [next(of_ids), top, best, next(of_ids), lse]
        for _again in range(2):  # by dispatch, then by an entry
            found = tokens.token_log_probs(x, chosen, topk=k, temperature=0.5, return_lse=True)
            for mine, right in zip(found, wanted, strict=True):
                assert mine.shape == right.shape
                np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-6)
        assert [each.dtype.name for each in found[2:4]] == ["int32", "int32"]
        assert world.driver.names[-1] == f"ranked_log_probs_top{k}{suffix}"
    assert len(tokens.token_log_probs(x, chosen, topk=2)) == 4


def test_the_best_of_what_hooks_leave(world: World) -> None:
    x, chosen = drawn(ROWS, COLS), cupy_array(np.full(ROWS, 3))
    mask = cupy_array(np.arange(COLS) % 2 == 0)
    out = full(ROWS, 0)
    found = tokens.token_log_probs(x, chosen, topk=8, mask=mask, out=out)
    log_probs, best, columns, ranks = found
    assert log_probs is out
    assert np.isneginf(out).all()  # column 3 is hidden
    assert (ranks == COLS // 2).all()
    shown = np.where(mask, np.asarray(x), -np.inf)
    np.testing.assert_array_equal(columns, np.argsort(-shown, kind="stable")[:, :8])
    assert (np.isneginf(best).sum(axis=1) == 2).all()
    wide = tokens.token_log_probs(x.astype("f8"), chosen, topk=2)
    assert wide[1].dtype == np.float64


@pytest.mark.parametrize(
    ("error", "said", "given"),
    [
        (InvalidValueError, "topk must be from 1 to 64, got 0", {"topk": 0}),
        (InvalidValueError, "topk must be from 1 to 64, got 65", {"topk": 65}),
        (InvalidValueError, "topk must be at most the 12 columns, got 13", {"topk": 13}),
        (InvalidTypeError, "topk must be an int, got 2.0", {"topk": 2.0}),
        (InvalidValueError, "topk does not go with dtype", {"dtype": "float32"}),
        (InvalidValueError, "topk does not go with return_entropy", {"return_entropy": True}),
        (InvalidValueError, "temperature must be above 0", {"temperature": 0}),
        (InvalidValueError, "ids must be from 0 to 11, got 12", {"checked": True}),
    ],
)
def test_what_no_kernel_gives_beside_the_best_is_refused(
    error: type[Exception], said: str, given: dict[str, Any], world: World
) -> None:
    chosen = cupy_array(np.full(ROWS, COLS))
    with pytest.raises(error, match=said):
        tokens.token_log_probs(drawn(ROWS, COLS), chosen, **{"topk": 2, **given})
    assert world.driver.launches == []


def test_ids_that_are_none_are_refused(world: World) -> None:
    x = drawn(ROWS, COLS)
    for chosen, error, message in (
        (
            ids_of(ROWS).astype(np.float32),
            InvalidTypeError,
            "ids must be int32 or int64, got float32",
        ),
        (ids_of(ROWS).astype(bool), InvalidTypeError, "ids must be int32 or int64, got bool"),
        (
            ids_of(ROWS + 1),
            InvalidValueError,
            r"shape of x's rows, \(5,\), or one axis more, got \(6,\)",
        ),
        (ids_of(ROWS, 2, 2), InvalidValueError, r"got \(5, 2, 2\)"),
        (
            ids_of(ROWS, 65),
            InvalidValueError,
            "a row has 1 to 64 ids, got 65; call for some of them",
        ),
    ):
        with pytest.raises(error, match=message):
            tokens.token_log_probs(x, chosen)
        with pytest.raises(error, match=message):
            gradients.token_log_probs_backward(x, chosen, x[:, 0], x[:, 0])
    assert world.driver.names == []


def test_an_id_that_is_no_column_raises_where_it_is_checked(world: World) -> None:
    x = drawn(ROWS, COLS)
    for wrong in (-100, COLS):
        chosen = ids_of(ROWS)
        chosen[3] = wrong
        assert np.isnan(tokens.token_log_probs(x, chosen)[3])
        with pytest.raises(InvalidValueError, match=f"from 0 to 11, got {wrong}; without checked"):
            tokens.token_log_probs(x, chosen, checked=True)
    tokens.token_log_probs(x, ids_of(ROWS), checked=True)


def test_numbers_that_do_not_fit_are_refused(world: World) -> None:
    x, chosen = drawn(ROWS, COLS), ids_of(ROWS)
    for temperature in (0, -1.0, float("nan")):
        with pytest.raises(InvalidValueError, match="temperature must be above 0, got"):
            tokens.token_log_probs(x, chosen, temperature=temperature)
    with pytest.raises(InvalidValueError, match="scale is 1 / temperature; give one of them"):
        tokens.token_log_probs(x, chosen, temperature=2.0, scale=0.5)
    with pytest.raises(InvalidValueError, match="entropy and entropy_upstream, or neither"):
        gradients.token_log_probs_backward(x, chosen, x[:, 0], x[:, 0], x[:, 0])


def test_entropies_keep_axes_where_asked(world: World) -> None:
    x = drawn(3, 4, COLS)
    log_p = log_softmax(x)
    h = -(np.exp(log_p) * log_p).sum(axis=-1)
    np.testing.assert_allclose(tokens.entropy(x), h, rtol=1e-5)
    found, lse = tokens.entropy(x, keepdim=True, return_lse=True)
    assert found.shape == lse.shape == (3, 4, 1)
    assert tokens.entropy(x, (0, 2), keepdim=True).shape == (1, 4, 1)
    assert world.driver.names == ["entropy", "entropy_lse", "entropy"]
