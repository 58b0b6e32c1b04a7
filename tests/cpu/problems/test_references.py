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
