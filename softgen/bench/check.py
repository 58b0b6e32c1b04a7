"""How far a competitor's results are from float64, computed on the device a few rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from softgen.spec.dtypes import DType
from softgen.spec.exact import hooked
from softgen.spec.operands import Measure, Operand
from softgen.spec.problem import Problem
from softgen.tuning.gate import TINY

# Elements at a time: 128 MB in float64, of which a reference makes some five arrays.
CHUNK = 1 << 24
MOST_ELEMENTS = 1 << 28  # of larger inputs evenly spread rows are checked

# What counts as wrong. softgen's own bounds are tighter; a fast exponential in float32 loses about
# |x - max| * 2**-24 and a long sum some more, which is a choice and no mistake. In 16 bits: two
# units of the last place.
TOLERANCE = {
    DType.FLOAT16: 2.0**-9,
    DType.BFLOAT16: 2.0**-6,
    DType.FLOAT32: 1e-4,
    DType.FLOAT64: 1e-11,
}


@dataclass(frozen=True)
class Deviation:
    """How far a result is from the exact one.

    Attributes:
        result: its name among the operands.
        error: the largest, as the operand's measure has it; inf for a NaN.
        bound: the largest that is not wrong.
    """

    result: str
    error: float
    bound: float


def checked_rows(rows: int, cols: int) -> list[int]:
    """Return the rows to check: all, or an even spread that includes the first and the last."""
    most = max(2, MOST_ELEMENTS // cols)
    if rows <= most:
        return list(range(rows))
    return sorted({i * (rows - 1) // (most - 1) for i in range(most)})


def furthest(problem: Problem, arrays: Sequence[Any]) -> Deviation:
    """Return the deviation of the result that is the furthest from its bound, over checked rows.

    The reference is written for NumPy, whose functions hand CuPy's arrays to CuPy; what CuPy lacks
    raises TypeError, and nothing is computed on the host.

    Args:
        problem: what was computed.
        arrays: its operands in their order, all CuPy arrays (or all NumPy's); inputs without NaN or
            infinities.
    """
    import cupy

    given = list(zip(problem.operands, arrays, strict=True))
    inputs = [array for operand, array in given if not operand.result]
    results = [array for operand, array in given if operand.result]
    rows, cols = inputs[0].shape
    asarray = cupy.get_array_module(inputs[0]).asarray
    chosen = checked_rows(rows, cols)
    step = max(1, CHUNK // cols)
    worst = [0.0] * len(results)
    for first in range(0, len(chosen), step):
        part = chosen[first : first + step]
        # A slice is a view; a list of rows would be gathered into a copy.
        dense = part[-1] - part[0] == len(part) - 1
        index = slice(part[0], part[-1] + 1) if dense else asarray(part)
        exact = problem.function.reference(
            *hooked(problem, [_in_float64(x, index) for x in inputs])
        )
        for number, operand in enumerate(problem.results):
            found = _in_float64(results[number], index)
            worst[number] = max(worst[number], _error(operand, found, exact[number]))
    deviations = [
        Deviation(operand.name, error, TOLERANCE[operand.float_type])
        for operand, error in zip(problem.results, worst, strict=True)
    ]
    return max(deviations, key=lambda each: each.error / each.bound)


def _in_float64(array: Any, index: Any) -> Any:
    """Return a new array of the chosen rows, or a number; gathers move bits.

    So CuPy need not know the type.
    """
    if array.ndim == 0:
        return array.astype("float64")
    bits = f"uint{8 * array.dtype.itemsize}"
    return array.view(bits)[index].view(array.dtype).astype("float64")


def _error(operand: Operand, found: Any, exact: Any) -> float:
    """Return the largest error of `found`, which is used up; inf for a NaN.

    Relative to the exact value, or to the smallest normal number of the type where that is larger;
    of a logarithm, to 1 + its size; of what must be exact, inf if there is any.
    """
    found -= exact
    error = abs(found)
    if operand.measure is Measure.EXACT:
        error[error > 0] = float("inf")
    else:
        scale = abs(exact)
        if operand.measure is Measure.LOGARITHM:
            scale += 1
        else:
            tiny = TINY[operand.float_type]
            scale[scale < tiny] = tiny
        error /= scale
    error[error != error] = float("inf")
    return float(error.max())
