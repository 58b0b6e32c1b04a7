"""token_log_probs, entropy and their gradients: which kernel a call asks for, with which arrays."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from softgen.call import gradients, ids, tokens
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.spec.dtypes import DType, ElementType, Integer
from tests.cpu.call.test_axes import Call, array

ROWS, COLS = 5, 12


class Asked:
    """The calls that were asked for, by function, each computed by its reference."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.names: list[str] = []
        self.dtypes: list[object] = []

    def calls_of(self, name: str, pdl: bool = True) -> Any:
        def run(x: Any, out: Any, axis: Any, dtype: object, *options: Any) -> Any:
            self.names.append(name)
            self.dtypes.append(dtype)
            return self.call(name, x, *options[-1], axis=axis, out=out)

        return defaultdict(lambda: run)

    def call_hooked(self, name: str, x: Any, *request: Any) -> Any:
        """Compute with x scaled, which is the one hook here."""
        hooks, others = request[-2:]
        assert set(hooks) == {"scale"}
        self.names.append(f"{name} scaled")
        return self.call(name, (x * np.float32(hooks["scale"])).astype(x.dtype), *others)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    call = Call(monkeypatch)
    found = Asked(call)

    def element_type(x: Any) -> ElementType:
        kinds = {np.dtype(kind.value): kind for kind in Integer}
        return kinds.get(x.dtype) or DType.of(x.dtype)

    monkeypatch.setattr(call.library, "element_type", element_type)
    for module in (tokens, gradients):
        monkeypatch.setattr(module, "calls_of", found.calls_of)
        monkeypatch.setattr(module, "call_hooked", found.call_hooked)
    for module in (tokens, ids, gradients):
        monkeypatch.setattr(module, "library_of", lambda x: (call.library, x))
    return found


def drawn(*shape: int, kind: str = "int64") -> Any:
    return np.random.default_rng(list(shape)).integers(0, COLS, shape).astype(kind)


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
    shape: tuple[int, ...], kind: str, suffix: str, asked: Asked
) -> None:
    x, chosen = array(2, ROWS, COLS), drawn(2, ROWS, *shape, kind=kind)
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
        assert asked.names.pop() == f"token_log_probs{beside}{suffix}"
        assert asked.dtypes.pop() == "float32"


def test_the_gradient_takes_what_was_returned(asked: Asked) -> None:
    x = array(ROWS, COLS)
    for shape in ((), (1,), (3,)):
        chosen = drawn(ROWS, *shape)
        lse, h = np.log(np.exp(x).sum(axis=-1)), np.ones(ROWS, np.float32)
        up, g = np.full(chosen.shape, 0.5, np.float32), np.full(ROWS, 2, np.float32)
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
    assert asked.names[-2:] == [
        "token_log_probs_backward_k3",
        "token_log_probs_backward_entropy_k3",
    ]


def test_a_temperature_is_a_scale_of_x_and_of_its_gradient(asked: Asked) -> None:
    x, chosen = array(ROWS, COLS), drawn(ROWS)
    log_p, lse = tokens.token_log_probs(x, chosen, temperature=2, return_lse=True)
    wanted = log_softmax(x, 2)[np.arange(ROWS), chosen]
    np.testing.assert_allclose(log_p, wanted, rtol=1e-5)
    dx = gradients.token_log_probs_backward(
        x, chosen, lse, np.full(ROWS, 3, np.float32), temperature=2
    )
    hit = np.eye(COLS)[chosen]
    np.testing.assert_allclose(dx, (hit - np.exp(log_softmax(x, 2))) * 1.5, rtol=1e-5, atol=1e-6)
    assert asked.names == ["token_log_probs_lse scaled", "token_log_probs_backward scaled"]


def test_ids_that_are_none_are_refused(asked: Asked) -> None:
    x = array(ROWS, COLS)
    for chosen, error, message in (
        (
            drawn(ROWS).astype(np.float32),
            InvalidTypeError,
            "ids must be int32 or int64, got float32",
        ),
        (drawn(ROWS).astype(bool), InvalidTypeError, "ids must be int32 or int64, got bool"),
        (
            drawn(ROWS + 1),
            InvalidValueError,
            r"shape of x's rows, \(5,\), or one axis more, got \(6,\)",
        ),
        (drawn(ROWS, 2, 2), InvalidValueError, r"got \(5, 2, 2\)"),
        (
            drawn(ROWS, 17),
            InvalidValueError,
            "a row has 1 to 16 ids, got 17; call for some of them",
        ),
    ):
        with pytest.raises(error, match=message):
            tokens.token_log_probs(x, chosen)
        with pytest.raises(error, match=message):
            gradients.token_log_probs_backward(x, chosen, x[:, 0], x[:, 0])
    assert asked.names == []


def test_an_id_that_is_no_column_raises_where_it_is_checked(asked: Asked) -> None:
    x = array(ROWS, COLS)
    for wrong in (-100, COLS):
        chosen = drawn(ROWS)
        chosen[3] = wrong
        assert np.isnan(tokens.token_log_probs(x, chosen)[3])
        with pytest.raises(InvalidValueError, match=f"from 0 to 11, got {wrong}; without checked"):
            tokens.token_log_probs(x, chosen, checked=True)
    tokens.token_log_probs(x, drawn(ROWS), checked=True)


def test_numbers_that_do_not_fit_are_refused(asked: Asked) -> None:
    x, chosen = array(ROWS, COLS), drawn(ROWS)
    for temperature in (0, -1.0, float("nan")):
        with pytest.raises(InvalidValueError, match="temperature must be above 0, got"):
            tokens.token_log_probs(x, chosen, temperature=temperature)
    with pytest.raises(InvalidValueError, match="scale is 1 / temperature; give one of them"):
        tokens.token_log_probs(x, chosen, temperature=2.0, scale=0.5)
    with pytest.raises(InvalidValueError, match="entropy and entropy_upstream, or neither"):
        gradients.token_log_probs_backward(x, chosen, x[:, 0], x[:, 0], x[:, 0])


def test_entropies_keep_axes_where_asked(asked: Asked) -> None:
    x = array(3, 4, COLS)
    log_p = log_softmax(x)
    h = -(np.exp(log_p) * log_p).sum(axis=-1)
    np.testing.assert_allclose(tokens.entropy(x), h, rtol=1e-5)
    found, lse = tokens.entropy(x, keepdim=True, return_lse=True)
    assert found.shape == lse.shape == (3, 4, 1)
    assert tokens.entropy(x, (0, 2), keepdim=True).shape == (1, 4, 1)
    assert asked.names == ["entropy", "entropy_lse", "entropy"]
