"""The tuner's gate: the comparison on the device sees what is wrong, wherever it is."""

from __future__ import annotations

import dataclasses

import pytest

from softgen.devices.gpu.compile import compile_source
from softgen.devices.gpu.kernel import LoadedKernel
from softgen.problems.dtypes import DType
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.safe import Safe
from softgen.strategies.variants import Variant
from softgen.tuning.gate import Gate
from softgen.tuning.measure import Buffers

pytestmark = pytest.mark.gpu

ROWS, COLS = 77, 1001
STORE = "row_y[col] = "


def kernel(dtype: DType, old: str = "", new: str = "") -> LoadedKernel:
    """Return the kernel that the gate compares with, or one that is broken in one place."""
    source = render(Variant(Problem.of("softmax", dtype, COLS), Safe(128)))
    assert old in source.text
    name = f"{source.name}_broken" if old else source.name
    text = source.text.replace(old, new, 1) if old else source.text
    return compile_source(dataclasses.replace(source, name=name, text=text))


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.short)
def test_what_the_gate_says(dtype: DType) -> None:
    problem = Problem.of("softmax", dtype, COLS)
    buffers = Buffers.allocate(problem, ROWS)
    gate = Gate(problem, buffers)
    rows = buffers.rows
    size = rows * COLS
    assert gate.objection(kernel(dtype)) is None
    nothing = gate.objection(kernel(dtype, STORE, "if (rows < 0) row_y[col] = "))
    assert nothing == f"{size} of {size} results differ from the safe kernel's"
    last = f"if (row < {rows - 1} || col < {COLS - 1}) row_y[col] = "
    assert gate.objection(kernel(dtype, STORE, last)) == (
        f"1 of {size} results differ from the safe kernel's"
    )
    first = "if (row > 0 || col > 0) row_y[col] = "
    assert gate.objection(kernel(dtype, STORE, first)) == (
        f"1 of {size} results differ from the safe kernel's"
    )
