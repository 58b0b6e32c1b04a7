"""References on arrays of another library: bench computes them where its results are, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softgen.problems.operands import Extent, Operand
from softgen.problems.problem import Problem
from tests.cpu.bench.test_bench import BENCHED
from tests.helpers.other_library import Array

ROWS, COLS = 6, 64


def given(problem: Problem) -> list[Any]:
    """Return a problem's inputs as bench has them: arrays of the library, and NumPy's numbers."""
    function, others = problem.function, problem.inputs[1:]
    x = Array(np.random.default_rng(0).standard_normal((ROWS, COLS)))
    timed = function.timed_inputs(ROWS, COLS)
    missing = [each for each in others if each.name not in timed]
    made = function.other_inputs(x) if missing else [timed[each.name] for each in others]
    return [x, *map(_as_in_bench, others, made)]


def _as_in_bench(operand: Operand, value: Any) -> Any:
    held = getattr(value, "held", value)
    return np.ravel(held)[0] if operand.extent is Extent.NUMBER else Array(held)


@pytest.mark.parametrize("name", BENCHED)
def test_a_reference_mixes_no_arrays_of_two_libraries(name: str) -> None:
    problem = Problem.of(name, "float32", COLS)
    inputs = given(problem)
    held = [getattr(each, "held", each) for each in inputs]
    wanted, found = (problem.function.reference(*each) for each in (held, inputs))
    for one, other in zip(wanted, found, strict=True):
        assert isinstance(other, Array)
        np.testing.assert_array_equal(other.held, one)
    for size in problem.function.magnitudes(*inputs):
        assert size is None or isinstance(size, Array)


@pytest.mark.parametrize("name", [each for each in BENCHED if each.startswith("topk_softmax_back")])
def test_no_row_that_is_timed_has_a_column_twice(name: str) -> None:
    function = Problem.of(name, "float32", COLS).function
    for cols in (function.chosen or 20, 21, COLS):
        ids = function.timed_inputs(200, cols)["ids"].reshape(200, -1)
        assert (np.diff(np.sort(ids, axis=1), axis=1) > 0).all()
        assert ids.min() >= 0
        assert ids.max() < cols


LOSSES = (
    "cross_entropy",
    "cross_entropy_grad",
    "cross_entropy_grad_rows",
    "cross_entropy_backward",
)


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_timed_of_a_loss_is_the_plain_loss_of_columns(name: str) -> None:
    """As most callers have it: nothing is smoothed, lse^2 has no weight, and no row is ignored."""
    problem = Problem.of(name, "float64", COLS)
    x = np.random.default_rng(0).standard_normal((ROWS, COLS))
    others = zip(problem.inputs[1:], problem.function.other_inputs(x), strict=True)
    timed = problem.function.timed_inputs(ROWS, COLS)
    given = {operand.name: timed.get(operand.name, value) for operand, value in others}
    terms, hit = np.exp(x), np.eye(COLS)[given["target"]]
    lse = np.log(terms.sum(axis=1))
    wanted = {"lse": lse, "loss": lse - (x * hit).sum(axis=1)}
    wanted["dx"] = given.get("upstream", 1) * (terms / terms.sum(axis=1, keepdims=True) - hit)
    found = problem.function.reference(x, *given.values())
    for operand, result in zip(problem.results, found, strict=True):
        np.testing.assert_allclose(result, wanted[operand.name], rtol=1e-12, atol=1e-15)


def test_a_shard_is_by_default_a_whole_row_of_one_column() -> None:
    """Where a command line says neither which columns a shard has nor of how many."""
    whole, shard = (
        Problem.of(f"cross_entropy_backward{kind}", "float64", 1) for kind in ("", "_shard")
    )
    x = np.random.default_rng(0).standard_normal((ROWS, 1))
    inputs = [x, *whole.function.other_inputs(x)]
    given = {o.name: value for o, value in zip(whole.inputs, inputs, strict=True)}
    given |= {"target": np.zeros(ROWS, np.int64), "loss": np.zeros(ROWS)}
    of_each = ([given.get(o.name, o.default) for o in each.inputs] for each in (whole, shard))
    (wanted,), (found,) = (
        each.function.reference(*values)
        for each, values in zip((whole, shard), of_each, strict=True)
    )
    assert given["label_smoothing"] > 0
    assert wanted.any()
    np.testing.assert_allclose(found, wanted, rtol=1e-13)


def test_a_smoothed_target_whose_terms_cancel_is_exact() -> None:
    """Of dx = p - 1 + (1 - 1 / cols) rounding 1 - 1 / cols to float64 took 13 digits."""
    cols = 5000
    x = np.zeros((1, cols), np.longdouble)
    x[0, 7] = -40
    function = Problem.of("cross_entropy_grad_smooth", "float64", cols).function
    target, numbers = np.array([7]), (np.array([-100]), 1.0, 1, 1, 1.0, 0.0)
    dx = function.reference(x, target, *numbers)[0]
    term = np.exp(np.longdouble(-40))
    wanted = term / (cols - 1 + term) - 1 / np.longdouble(cols)
    assert abs(dx[0, 7] / wanted - 1) < 1e-15
