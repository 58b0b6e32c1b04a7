"""Calls of cross entropy: what reaches a kernel, what is made of results, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import softgen
from softgen.call import losses
from softgen.errors import InvalidTypeError, InvalidValueError
from tests.helpers.cupy_calls import Interface, World, cupy_array, drawn

ROWS, COLS = 6, 5
TARGET = cupy_array([0, 4, -100, 2, 3, 1])


def x_of(*shape: int) -> Any:
    return drawn(*(shape or (ROWS, COLS)), kind="f8")


def exact(x: Any, target: Any, weight: Any = None, smoothing: float = 0.0, z: float = 0.0) -> Any:
    """Return the losses of rows by their definition, and what a mean divides by."""
    lse = np.log(np.exp(x).sum(-1))
    counts = target != -100
    picked = np.take_along_axis(x, np.where(counts, target, 0)[..., None], -1)[..., 0]
    weights = counts * (1.0 if weight is None else weight[np.where(counts, target, 0)])
    loss = (1 - smoothing) * (lse - picked) + smoothing * (lse - x.mean(-1)) + z * lse * lse
    return loss * weights, weights.sum()


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.25])
@pytest.mark.parametrize("of_probabilities", [False, True])
def test_arrays_of_other_libraries(
    weighed: bool, smoothing: float, of_probabilities: bool, world: World
) -> None:
    x, up, lse = x_of(), x_of(ROWS), cupy_array(np.full(ROWS, 9.0))
    target = cupy_array(np.abs(x_of(ROWS, COLS))) if of_probabilities else TARGET
    weight = cupy_array(np.arange(1.0, 6.0)) if weighed else None
    given: dict[str, Any] = {"label_smoothing": smoothing, "weight": weight}
    others = given | {"weight": None if weight is None else Interface(weight)}
    for function, arrays in (
        (softgen.cross_entropy, (x, target)),
        (softgen.cross_entropy_grad, (x, target)),
        (softgen.cross_entropy_backward, (x, target, lse, up)),
    ):
        found = function(*map(Interface, arrays), **others)
        wanted = function(*arrays, **given)
        for mine, right in zip(
            *((each if isinstance(each, tuple) else (each,)) for each in (found, wanted)),
            strict=True,
        ):
            np.testing.assert_array_equal(mine, right)


@pytest.mark.parametrize("reduction", losses.REDUCTIONS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"label_smoothing": 0.3},
        {"z_loss": 0.01},
        {"weight": cupy_array(np.arange(1.0, 6.0))},
        {"weight": cupy_array(np.arange(1.0, 6.0)), "z_loss": 0.01},
        {"label_smoothing": 1, "z_loss": 0.5},
    ],
    ids=str,
)
def test_reductions_and_options(world: World, reduction: str, options: dict[str, Any]) -> None:
    x = x_of()
    x[2] = np.nan  # of an ignored row
    found, lse = softgen.cross_entropy(x, TARGET, reduction=reduction, return_lse=True, **options)
    rows, count = exact(
        np.nan_to_num(x),
        TARGET,
        options.get("weight"),
        options.get("label_smoothing", 0),
        options.get("z_loss", 0),
    )
    wanted = {"none": rows, "sum": rows.sum(), "mean": rows.sum() / count}[reduction]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert np.shape(found) == np.shape(wanted)
    assert np.isneginf(lse[2])
    np.testing.assert_allclose(lse[3], np.log(np.exp(x[3]).sum()))


def test_a_mean_of_nothing_is_nan_and_a_sum_of_it_0(world: World) -> None:
    none = cupy_array(np.full(ROWS, 7))
    with np.errstate(all="ignore"):
        assert np.isnan(softgen.cross_entropy(x_of(), none, ignore_index=7))
    assert softgen.cross_entropy(x_of(), none, ignore_index=7, reduction="sum") == 0


def test_targets_of_32_bits_have_functions_of_their_own(world: World) -> None:
    x, target = x_of(2, 3, COLS).astype("float32"), TARGET.reshape(2, 3).astype("int32")
    assert softgen.cross_entropy(x, target, reduction="none").shape == (2, 3)
    dx, loss, lse = softgen.cross_entropy_grad(x, target, 0.25)
    again = softgen.cross_entropy_backward(x, target, lse, cupy_array(np.array([0.25], "f4")))
    assert world.driver.names == [f"cross_entropy{rest}_i32" for rest in ("", "_grad", "_backward")]
    assert dx.shape == x.shape
    assert (loss.shape, loss.dtype) == ((2, 3), np.float32)
    np.testing.assert_allclose(again, dx, atol=1e-7)
    assert numbers(world) == (1, 1, 0, 0)
    rows = cupy_array(np.arange(6, dtype="float32").reshape(2, 3))
    softgen.cross_entropy_backward(x, target, lse, rows, label_smoothing=0.5, z_loss=0.125)
    assert numbers(world) == (1, 6, 0.5, 0.125)


def test_a_gradient_with_its_loss_takes_upstream_of_each_row(world: World) -> None:
    x, z_loss = x_of(), 0.25
    rows, _ = exact(x, TARGET, z=z_loss)
    p = np.exp(x - np.log(np.exp(x).sum(-1, keepdims=True)))
    scale = 1 + 2 * z_loss * np.log(np.exp(x).sum(-1, keepdims=True))
    dx = (p * scale - np.eye(COLS)[np.where(TARGET < 0, 0, TARGET)]) * (TARGET != -100)[:, None]
    rows_apart = cupy_array(np.arange(12.0))[::2]
    for upstream in (cupy_array(np.arange(1.0, 7.0)), rows_apart, cupy_array([[0.5]]), 0.5):
        found, loss, lse = softgen.cross_entropy_grad(x, TARGET, upstream, z_loss=z_loss)
        up = np.reshape(upstream, (-1, 1))
        np.testing.assert_allclose(found, dx * up, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(loss, rows, rtol=1e-12)
        assert np.isneginf(lse[2])
    stem = "cross_entropy_grad"
    assert world.driver.names == [*[f"{stem}_rows"] * 3, stem]
    same = softgen.cross_entropy_grad(x, TARGET, upstream, z_loss=z_loss, out=x)[0]
    assert same is x
    np.testing.assert_allclose(x, found)


@pytest.mark.parametrize("kind", ["int64", "int32"])
def test_smoothing_reads_x_once(world: World, kind: str) -> None:
    x, target, smoothing = x_of(), TARGET.astype(kind), 0.3
    rows, _ = exact(x, TARGET, smoothing=smoothing)
    found = softgen.cross_entropy(x, target, reduction="none", label_smoothing=smoothing)
    np.testing.assert_allclose(found, rows, rtol=1e-12)
    hooked = softgen.cross_entropy(
        x, target, reduction="none", label_smoothing=smoothing, scale=0.5, softcap=2.0
    )
    of_hooked, _ = exact(2 * np.tanh(x / 4), TARGET, smoothing=smoothing)
    np.testing.assert_allclose(hooked, of_hooked, rtol=1e-12)
    lse = np.log(np.exp(x).sum(-1, keepdims=True))
    ought = 0.7 * np.eye(COLS)[np.where(TARGET < 0, 0, TARGET)] + 0.3 / COLS
    dx = (np.exp(x - lse) * (1 + 0.5 * lse) - ought) * (TARGET != -100)[:, None]
    for upstream in (0.25, cupy_array(np.arange(1.0, 7.0))):
        options: dict[str, Any] = {"label_smoothing": smoothing, "z_loss": 0.25}
        found, loss, _ = softgen.cross_entropy_grad(x, target, upstream, **options)
        np.testing.assert_allclose(found, dx * np.reshape(upstream, (-1, 1)), atol=1e-12)
        np.testing.assert_allclose(loss, exact(x, TARGET, smoothing=smoothing, z=0.25)[0])
    rest = "" if kind == "int64" else "_i32"
    stems = ["cross_entropy_smooth"] * 2 + ["cross_entropy_grad_smooth"] * 2
    assert world.driver.names == [f"{stem}{rest}" for stem in stems]


def test_a_class_of_probability_0_has_an_infinite_loss_and_with_all_smoothing_nan(
    world: World,
) -> None:
    """As in PyTorch, where 0 is times that infinity."""
    x = x_of()
    x[:, 2] = -np.inf
    for smoothing, target in ((0.0, np.inf), (0.5, np.inf), (1.0, np.nan)):
        options: dict[str, Any] = {"reduction": "none", "label_smoothing": smoothing}
        found = softgen.cross_entropy(x, TARGET, **options)
        other = np.inf if smoothing else found[0]
        np.testing.assert_equal(found[:4], [other, found[1], 0, target])
        assert np.isinf(found[1]) == (smoothing > 0)


def test_gradients_are_times_the_weight_of_the_class(world: World) -> None:
    x, weight, z_loss = x_of(), cupy_array(np.arange(1.0, 6.0)), 0.25
    rows, _ = exact(x, TARGET, weight, z=z_loss)
    target = np.where(TARGET < 0, 0, TARGET)
    lse = np.log(np.exp(x).sum(-1, keepdims=True))
    dx = np.exp(x - lse) * (1 + 2 * z_loss * lse) - np.eye(COLS)[target]
    dx = dx * (weight[target] * (TARGET != -100))[:, None]
    for upstream in (0.25, cupy_array(np.array([0.25])), cupy_array(np.arange(1.0, 7.0))):
        options: dict[str, Any] = {"z_loss": z_loss, "weight": weight}
        found, loss, of_rows = softgen.cross_entropy_grad(x, TARGET, upstream, **options)
        wanted = dx * np.reshape(upstream, (-1, 1))
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(loss, rows, rtol=1e-12)
        up = upstream if hasattr(upstream, "shape") else cupy_array(np.array([upstream]))
        again = softgen.cross_entropy_backward(x, TARGET, of_rows, up, **options)
        np.testing.assert_allclose(again, wanted, rtol=1e-12, atol=1e-12)
    with pytest.raises(InvalidValueError, match=r"an element a class, \(5,\), got \(4,\)"):
        softgen.cross_entropy_grad(x, TARGET, weight=weight[:4])


@pytest.mark.parametrize("kind", ["f8", "f4", "f2"])
@pytest.mark.parametrize("target", ["int64", "int32", "probabilities"])
@pytest.mark.parametrize("options", [{}, {"z_loss": 0.25}], ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.3, 1.0])
def test_weights_with_smoothing_and_with_probabilities(
    world: World, kind: str, target: str, options: dict[str, Any], smoothing: float
) -> None:
    x, w = x_of().astype(kind), np.arange(5.0)
    z, near = options.get("z_loss", 0.0), 1e-12 if kind == "f8" else 1e-5
    ought: Any
    lse: Any
    if target == "probabilities":
        given = cupy_array(np.abs(drawn(ROWS, COLS, seed=5, kind="f8"))).astype(kind)
        ought, counts, of_rows = given.astype("f8"), np.ones(ROWS, bool), np.ones(ROWS)
    else:
        given, counts = TARGET.astype(target), TARGET != -100
        x[2] = np.nan  # of an ignored row
        ought, of_rows = np.eye(COLS)[np.where(counts, TARGET, 0)], w[np.where(counts, TARGET, 0)]
    true = np.nan_to_num(x.astype("f8"))
    lse = np.log(np.exp(true).sum(-1, keepdims=True))
    ought = counts[:, None] * ((1 - smoothing) * ought + smoothing / COLS) * w
    rows = (ought * (lse - true)).sum(-1) + counts * of_rows * z * lse[:, 0] ** 2
    divisor = ROWS if target == "probabilities" else (counts * of_rows).sum()
    options = {**options, "label_smoothing": smoothing}
    options["weight"] = cupy_array(w.astype("f8" if kind == "f8" else "f4"))
    exact = 1e-12 if kind == "f8" else 2e-6
    reduced = {"none": rows, "sum": rows.sum(), "mean": rows.sum() / divisor}
    for reduction, wanted in reduced.items():
        found = softgen.cross_entropy(x, given, reduction=reduction, **options)
        np.testing.assert_allclose(found, wanted, rtol=exact)
        assert found.dtype == ("f8" if kind == "f8" else "f4")
    upstream = cupy_array(np.arange(1.0, 7.0, dtype=found.dtype))
    past = 2 * z * (counts * of_rows)[:, None] * lse
    dx = np.exp(true - lse) * (ought.sum(-1, keepdims=True) + past) - ought
    near = near if kind != "f2" else 4e-3
    for up in (0.5, upstream):
        found, loss, of_x = softgen.cross_entropy_grad(x, given, up, **options)
        np.testing.assert_allclose(found, dx * np.reshape(up, (-1, 1)), rtol=near, atol=near)
        np.testing.assert_allclose(loss, rows, rtol=exact)
        np.testing.assert_allclose(of_x, np.where(counts, lse[:, 0], -np.inf), rtol=exact)
        assert found.dtype == x.dtype
    found = softgen.cross_entropy_backward(x, given, of_x, upstream, out=x, **options)
    assert found is x
    np.testing.assert_allclose(found, dx * upstream[:, None], rtol=near, atol=near)


def test_a_target_that_is_no_class_has_nan_with_weights_and_smoothing(world: World) -> None:
    x, target = x_of(2, 3, COLS), TARGET.reshape(2, 3).copy()
    target[1, 0] = COLS
    options = {"weight": cupy_array(np.arange(1.0, 6.0)), "label_smoothing": 0.1}
    dx, loss, lse = softgen.cross_entropy_grad(x, target, 0.5, **options)
    assert np.isnan(loss[1, 0])
    assert np.isnan(dx[1, 0]).all()
    assert np.isfinite(np.delete(loss.reshape(-1), 3)).all()
    assert np.isneginf(lse[0, 2])
    assert not dx[0, 2].any()
    # A mean of no row has infinity there; and a target that lies otherwise changes nothing.
    upstream = cupy_array(np.where(target == -100, np.inf, 0.5))
    turned = cupy_array(target.T.copy()).T
    assert not turned.flags.c_contiguous
    found = softgen.cross_entropy_grad(x, turned, upstream, **options)
    for mine, same in zip(found, (dx, loss, lse), strict=True):
        np.testing.assert_array_equal(mine, same)
    with pytest.raises(InvalidValueError, match="target must be from 0 to 4"):
        softgen.cross_entropy(x, target, checked=True, **options)


@pytest.mark.parametrize("reduction", losses.REDUCTIONS)
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.3, "z_loss": 0.25}], ids=str)
def test_probabilities_of_classes(world: World, reduction: str, options: dict[str, Any]) -> None:
    x, q = x_of(), cupy_array(np.abs(drawn(ROWS, COLS, seed=5, kind="f8")))
    s, z = options.get("label_smoothing", 0.0), options.get("z_loss", 0.0)
    lse = np.log(np.exp(x).sum(-1, keepdims=True))
    ought = (1 - s) * q + s / COLS
    rows = (ought * (lse - x)).sum(-1) + z * lse[:, 0] ** 2
    wanted = {"none": rows, "sum": rows.sum(), "mean": rows.mean()}[reduction]
    found, of_rows = softgen.cross_entropy(x, q, reduction=reduction, return_lse=True, **options)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    np.testing.assert_allclose(of_rows, lse[:, 0], rtol=1e-12)
    dx = np.exp(x - lse) * (ought.sum(-1, keepdims=True) + 2 * z * lse) - ought
    upstream = cupy_array(np.arange(1.0, 7.0))
    for up in (0.5, cupy_array(np.array([0.5])), upstream):
        found, loss, _ = softgen.cross_entropy_grad(x, q, up, **options)
        np.testing.assert_allclose(found, dx * np.reshape(up, (-1, 1)), atol=1e-12)
        np.testing.assert_allclose(loss, rows, rtol=1e-12)
    found = softgen.cross_entropy_backward(x, q, of_rows, upstream, out=x, **options)
    assert found is x
    np.testing.assert_allclose(found, dx * upstream[:, None], atol=1e-12)


def test_a_class_of_probability_0_beside_probabilities_is_as_in_pytorch(world: World) -> None:
    x, q = x_of(), cupy_array(np.full((ROWS, COLS), 0.2))
    x[:3, 0] = -np.inf
    x[3] = -np.inf
    q[1, 0] = q[2, 0] = 0
    options: dict[str, Any] = {"reduction": "none"}
    found = softgen.cross_entropy(x, q, **options)
    np.testing.assert_equal(found[:4], [np.inf, np.nan, np.nan, np.nan])
    assert np.isfinite(found[4:]).all()


def test_what_means_nothing_to_probabilities_is_refused(world: World) -> None:
    x, q = x_of(), x_of()
    with pytest.raises(InvalidValueError, match="ignore_index is for class indices, got 3"):
        softgen.cross_entropy(x, q, ignore_index=3)
    with pytest.raises(InvalidValueError, match="probs"):
        softgen.cross_entropy(x, q[:3])
    with pytest.raises(InvalidTypeError, match="probs must be float64"):
        softgen.cross_entropy(x, q.astype("f4"))
    assert not world.driver.names


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("hooks", [{"softcap": 2.0}, {"scale": -0.5, "softcap": 2.0}], ids=str)
def test_gradients_are_past_a_scale_and_a_softcap(
    world: World, hooks: dict[str, float], smoothing: float
) -> None:
    x, scale = x_of(), hooks.get("scale", 1.0)
    z = 2 * np.tanh(scale * x / 2)
    slope = (1 - (z / 2) ** 2) * scale
    lse = np.log(np.exp(z).sum(-1, keepdims=True))
    target = np.where(TARGET < 0, 0, TARGET)
    ought = (1 - smoothing) * np.eye(COLS)[target] + smoothing / COLS
    dx = (np.exp(z - lse) - ought) * slope * (TARGET != -100)[:, None]
    options: dict[str, Any] = {"label_smoothing": smoothing, **hooks}
    upstream = cupy_array(np.arange(1.0, 7.0))
    for up in (0.25, upstream):
        found, loss, of_rows = softgen.cross_entropy_grad(x, TARGET, up, **options)
        np.testing.assert_allclose(found, dx * np.reshape(up, (-1, 1)), atol=1e-12)
        wanted = softgen.cross_entropy(x, TARGET, reduction="none", **options)
        np.testing.assert_allclose(loss, wanted, rtol=1e-12)
    found = softgen.cross_entropy_backward(x, TARGET, of_rows, upstream, out=x, **options)
    assert found is x
    np.testing.assert_allclose(found, dx * upstream[:, None], atol=1e-12)
    with pytest.raises(InvalidValueError, match="mask means nothing to cross_entropy_grad"):
        softgen.cross_entropy_grad(x, TARGET, mask=cupy_array(x > 0))
    with pytest.raises(InvalidValueError, match="cross_entropy_probs takes no hooks, got softcap"):
        softgen.cross_entropy_grad(x, cupy_array(np.abs(x)), softcap=2.0)


def numbers(world: World) -> tuple[float, ...]:
    """Return upstream_every, upstream_count, label_smoothing and z_loss of the last gradient."""
    _, _, _, _, *found = world.dispatched[-1][-1]
    return tuple(found)


def test_a_target_that_is_no_class_is_reported_where_it_is_asked_for(world: World) -> None:
    target = cupy_array([0, 4, -100, 5, -1, 1])
    assert np.isnan(softgen.cross_entropy(x_of(), target))
    with pytest.raises(
        InvalidValueError, match=r"from 0 to 4, or -100 .* 2 are not, the first is 5"
    ):
        softgen.cross_entropy(x_of(), target, checked=True)
    softgen.cross_entropy(x_of(), TARGET, checked=True)


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"reduction": "average"}, InvalidValueError, "unknown reduction 'average'.*mean, sum, none"),
    ({"label_smoothing": 1.5}, InvalidValueError, "label_smoothing must be from 0 to 1, got 1.5"),
    ({"z_loss": float("inf")}, InvalidValueError, "z_loss must be finite"),
    ({"z_loss": True}, InvalidTypeError, "z_loss must be a number"),
    ({"z_loss": float("nan")}, InvalidValueError, "z_loss must be finite, got nan"),
    ({"z_loss": "a"}, InvalidTypeError, "z_loss must be a number, got 'a'"),
    ({"label_smoothing": "a"}, InvalidTypeError, "label_smoothing must be a number, got 'a'"),
    ({"ignore_index": 1.0}, InvalidTypeError, "ignore_index must be an int, got 1.0"),
    ({"ignore_index": True}, InvalidTypeError, "ignore_index must be an int, got True"),
    ({"ignore_index": "1"}, InvalidTypeError, "ignore_index must be an int, got '1'"),
    (
        {"weight": cupy_array(np.ones(5)), "label_smoothing": 0.1, "softcap": 2.0},
        InvalidValueError,
        "cross_entropy_probs takes no hooks, got softcap",
    ),
    (
        {"weight": cupy_array(np.ones(4)), "label_smoothing": 0.1},
        InvalidValueError,
        r"an element a class, \(5,\), got \(4,\)",
    ),
    (
        {"weight": cupy_array(np.ones(4))},
        InvalidValueError,
        r"an element a class, \(5,\), got \(4,\)",
    ),
    (
        {"weight": cupy_array(np.ones(5, "f4"))},
        InvalidTypeError,
        "weight must be float64, got float32",
    ),
    ({"target": TARGET.astype("u1") > 1}, InvalidTypeError, "class indices of int32 or int64"),
    (
        {"label_smoothing": 0.1, "sink": cupy_array(np.zeros(6))},
        InvalidValueError,
        "sinkf64 means nothing to cross_entropy_smooth",
    ),
    ({"label_smoothing": 0.1, "scales": 2.0}, InvalidTypeError, "unknown argument 'scales'"),
]


@pytest.mark.parametrize(("options", "error", "told"), REFUSED)
def test_what_is_refused_is_refused_before_a_launch(
    options: dict[str, Any], error: type[Exception], told: str, world: World
) -> None:
    with pytest.raises(error, match=told):
        softgen.cross_entropy(x_of(), **{"target": TARGET, **options})
    assert not world.dispatched


def test_an_upstream_that_is_neither_one_number_nor_of_rows_is_refused(world: World) -> None:
    three = cupy_array(np.ones(3))
    with pytest.raises(InvalidValueError, match=r"one element or the shape of x's rows, \(6,\)"):
        softgen.cross_entropy_backward(x_of(), TARGET, cupy_array(np.ones(6)), three)
    with pytest.raises(InvalidValueError, match=r"one element or the shape of x's rows, \(6,\)"):
        softgen.cross_entropy_grad(x_of(), TARGET, three)
    with pytest.raises(InvalidTypeError, match="upstream must be a number, got '1'"):
        softgen.cross_entropy_grad(x_of(), TARGET, "1")
    with pytest.raises(InvalidTypeError, match="upstream must be float64, got float32"):
        softgen.cross_entropy_grad(x_of(), TARGET, cupy_array(np.ones(6, "f4")))
