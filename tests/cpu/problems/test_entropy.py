"""What the entropy is, and the gradients that are made of logarithms: in float64, by definition."""

from __future__ import annotations

import numpy as np
import pytest

from softgen.problems.functions.base import Function
from softgen.problems.numerics import Float64, reference

INF = np.inf


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ([3.0] * 8, np.log(8)),
        ([0.0, -INF, -INF], 0.0),
        ([0.0, np.log(3)], np.log(4) - 0.75 * np.log(3)),
        ([-1e30, 0.0, -1e300], 0.0),
        ([1e300, 1e300, -INF], np.log(2)),
        ([-INF, -INF], np.nan),
        ([0.0, INF], np.nan),
        ([0.0, np.nan], np.nan),
    ],
)
def test_the_entropy_of_a_row(row: list[float], wanted: float) -> None:
    for name in ("entropy", "entropy_lse"):
        found = reference(Function.of(name), np.array([row]))[0]
        np.testing.assert_allclose(found, [wanted], rtol=1e-15, atol=1e-15)


def test_with_it_comes_lse() -> None:
    x = np.random.default_rng(0).standard_normal((3, 9))
    lse = reference(Function.of("entropy_lse"), x)[1]
    np.testing.assert_allclose(lse, np.log(np.exp(x).sum(axis=1)), rtol=1e-14)


def differences(function: Function, x: Float64, upstream: Float64) -> Float64:
    """Return the gradient of sum(upstream * function(x)) by central differences."""
    step, dx = 1e-5, np.zeros_like(x)
    for i in np.ndindex(*x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[i] += sign * step
            ends.append((upstream * reference(function, moved)[0]).sum())
        dx[i] = (ends[0] - ends[1]) / (2 * step)
    return dx


@pytest.mark.parametrize("name", ["logsumexp", "entropy"])
def test_a_gradient_is_that_of_its_function(name: str) -> None:
    x = np.random.default_rng(1).standard_normal((3, 7)) * 2
    function = Function.of(f"{name}_backward")
    others = function.other_inputs(x)
    found = reference(function, x, *others)[0]
    np.testing.assert_allclose(
        found, differences(Function.of(name), x, others[-1]), rtol=1e-8, atol=1e-9
    )
    (size,) = function.magnitudes(x, *others)
    assert (abs(found) <= size * (1 + 1e-12)).all()


def test_gradients_of_rows_with_infinities_are_pytorchs() -> None:
    x = np.array([[0.0, -INF, 1.0], [-INF, -INF, -INF], [0.0, INF, 1.0]])
    for name in ("logsumexp_backward", "entropy_backward"):
        function = Function.of(name)
        with np.errstate(all="ignore"):
            others = function.other_inputs(x)
        dx = reference(function, x, *others)[0]
        assert dx[0, 1] == 0
        assert np.isfinite(dx[0]).all()
        assert np.isnan(dx[1]).all()
        wanted = [0, np.nan, 0] if name == "logsumexp_backward" else [np.nan] * 3
        np.testing.assert_array_equal(dx[2], wanted)


@pytest.mark.parametrize(
    "name", ["entropy_lse", "entropy_backward", "token_log_probs_k3", "token_log_probs_backward"]
)
def test_no_rows_have_results_of_no_rows(name: str) -> None:
    function, x = Function.of(name), np.zeros((0, 9))
    others = [each[:0] for each in function.other_inputs(np.zeros((1, 9)))]
    for result in (*reference(function, x, *others), *function.magnitudes(x, *others)):
        assert result is None or result.shape[0] == 0
