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
