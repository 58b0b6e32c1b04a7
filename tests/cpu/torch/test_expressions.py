"""What bench has PyTorch compute in place of a kernel, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from softgen.bench.torch_expressions import OF_LOGITS
from softgen.problems.operands import Extent
from softgen.problems.problem import Problem

torch = pytest.importorskip("torch")

ROWS, COLS = 6, 64


@pytest.mark.parametrize("name", OF_LOGITS)
def test_it_takes_the_inputs_of_the_kernel_and_gives_its_first_result(name: str) -> None:
    problem = Problem.of(name, "float64", COLS)
    x = np.random.default_rng(0).standard_normal((ROWS, COLS))
    timed = problem.function.timed_inputs(ROWS, COLS)
    made = problem.function.other_inputs(x)
    inputs = [x]
    for operand, other in zip(problem.inputs[1:], made, strict=True):
        value = np.asarray(timed.get(operand.name, other))
        if operand.name in ("target", "ids"):
            value = np.arange(ROWS) * 7 % COLS
        is_number = operand.extent is Extent.NUMBER
        inputs.append(np.ravel(value)[0] if is_number else np.atleast_1d(value))
    wanted, *_ = problem.function.reference(*inputs)
    of_torch = [each if each.ndim == 0 else torch.from_numpy(each) for each in inputs]
    found = OF_LOGITS[name](*of_torch)
    np.testing.assert_allclose(found.numpy(), wanted.reshape(found.shape), rtol=1e-10, atol=1e-12)
