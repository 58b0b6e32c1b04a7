"""softgen.scipy's own part: what reaches a kernel, and what cupyx; both are NumPy here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from softgen import scipy
from softgen.errors import InvalidTypeError
from tests.helpers.scipy_cases import CUPYX_CASES, KERNEL_CASES, Case


def exact_logsumexp(x: Any, axis: Any = None, keepdim: bool = False) -> Any:
    top = np.max(x, axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        lse = np.log(np.exp(x - top).sum(axis, keepdims=True)) + top
    return lse if keepdim else np.squeeze(lse, axis)


def exact_softmax(x: Any, axis: Any) -> Any:
    terms = np.exp(x - np.max(x, axis, keepdims=True))
    return terms / terms.sum(axis, keepdims=True)


@pytest.fixture
def beyond(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return the calls that cupyx gets; those of kernels are computed."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(scipy, "library_of", lambda x: (None, np.asarray(x)))
    api = SimpleNamespace(
        softmax=exact_softmax,
        log_softmax=lambda x, axis: x - exact_logsumexp(x, axis, True),
        logsumexp=exact_logsumexp,
    )
    monkeypatch.setattr(scipy, "api", api)
    monkeypatch.setattr(scipy, "_cupy", lambda: np)
    names = ("softmax", "log_softmax", "logsumexp")
    special = {name: lambda *given, name=name: calls.append((name, *given)) for name in names}
    monkeypatch.setattr(scipy, "_cupyx", lambda: SimpleNamespace(**special))
    return calls


X = [[1.0, 0.5, 0.2, 3.0], [1.0, -1.0, 7.0, 3.0], [2.0, 12.0, 13.0, 3.0]]


def test_the_cases_of_scipys_pages(beyond: list[Any]) -> None:
    """The values are those that SciPy 1.15 documents, some of them in six digits."""
    whole = [
        *(4.48309e-06, 2.71913e-06, 2.01438e-06, 3.31258e-05),
        *(4.48309e-06, 6.06720e-07, 1.80861e-03, 3.31258e-05),
        *(1.21863e-05, 2.68421e-01, 7.29644e-01, 3.31258e-05),
    ]
    np.testing.assert_allclose(scipy.softmax(X).ravel(), whole, rtol=5e-6)
    first = [0.211942, 1.01300e-05, 2.75394e-06, 0.333333]
    np.testing.assert_allclose(scipy.softmax(X, axis=0)[0], first, rtol=5e-6)
    np.testing.assert_allclose(scipy.log_softmax([10.0, 1.0]), [-1.234e-4, -9.0001234], rtol=1e-4)
    assert scipy.logsumexp(np.arange(10)) == pytest.approx(9.4586297444267107, rel=1e-15)
    assert not beyond


@pytest.mark.parametrize("case", KERNEL_CASES, ids=lambda case: case.name)
def test_what_scipys_tests_are_about(case: Case, beyond: list[Any]) -> None:
    found = getattr(scipy, case.name)(case.x, **case.options)
    np.testing.assert_allclose(found, case.wanted, rtol=1e-12, atol=1e-13)
    assert np.shape(found) == np.shape(case.wanted)
    assert not beyond


@pytest.mark.parametrize("case", CUPYX_CASES, ids=lambda case: case.name)
def test_what_is_left_to_cupyx(case: Case, beyond: list[Any]) -> None:
    getattr(scipy, case.name)(case.x, **case.options)
    ((name, *_),) = beyond
    assert name == case.name


@pytest.mark.parametrize("kind", ["int8", "uint64", "bool"])
def test_integers_are_computed_in_float64(kind: str, beyond: list[Any]) -> None:
    x = np.array([[1, 0, 1], [0, 0, 1]], kind)
    for name in ("softmax", "log_softmax", "logsumexp"):
        found = getattr(scipy, name)(x, axis=1)
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, getattr(scipy, name)(x.astype("float64"), axis=1))


def test_axes_and_those_that_are_kept(beyond: list[Any]) -> None:
    x = np.random.default_rng(0).standard_normal((3, 4, 5))
    for axis, shape in ((None, (1, 1, 1)), ((0, 2), (1, 4, 1)), (-1, (3, 4, 1))):
        kept = scipy.logsumexp(x, axis, keepdims=True)
        assert kept.shape == shape
        np.testing.assert_allclose(np.exp(x - kept), scipy.softmax(x, axis))
        np.testing.assert_array_equal(scipy.logsumexp(x, axis), kept.squeeze(axis))


def test_the_sign_of_a_sum_of_exponentials(beyond: list[Any]) -> None:
    x = np.array([[1.0, 2.0], [-np.inf, -np.inf], [np.nan, 1.0], [np.inf, 1.0]])
    lse, sign = scipy.logsumexp(x, axis=1, return_sign=True)
    np.testing.assert_array_equal(lse, scipy.logsumexp(x, axis=1))
    np.testing.assert_array_equal(sign, [1, 0, np.nan, 1])
    assert not beyond


def test_what_cupyx_gets(beyond: list[Any]) -> None:
    x = np.ones((2, 3))
    scipy.logsumexp(x, 1, b=[1, -1, 2], keepdims=True, return_sign=True)
    ((name, a, axis, b, *rest),) = beyond
    assert (name, axis, rest) == ("logsumexp", 1, [True, True])
    np.testing.assert_array_equal(a, x)
    np.testing.assert_array_equal(b, [1, -1, 2])
    beyond.clear()
    scipy.softmax(x * 1j)
    scipy.log_softmax(x, ())
    scipy.logsumexp(x * 1j, 0)
    assert [call[0] for call in beyond] == ["softmax", "log_softmax", "logsumexp"]
    assert beyond[2][2:] == (0, None, False, False)


def test_a_tensor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type("Tensor", (), {"__module__": "torch"})
    monkeypatch.setattr(scipy, "library_of", lambda x: (None, x))
    monkeypatch.setattr(scipy, "_cupy", lambda: np)
    with pytest.raises(InvalidTypeError, match=r"got torch.Tensor; softgen.torch has"):
        scipy.softmax(kind())


def test_what_is_not_on_a_gpu_is_refused() -> None:
    with pytest.raises(InvalidTypeError, match=r"got numpy.ndarray; .* cupy.asarray"):
        scipy.logsumexp(np.ones(3))
