"""How far a competitor's results are from float64, computed on the device a few rows at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from softgen.bench.cases import Exact
from softgen.problems.dtypes import DType, FloatType
from softgen.problems.exact import hooked
from softgen.problems.operands import Extent, Measure, Operand
from softgen.problems.problem import Problem
from softgen.tuning.gate import TINY

# Elements at a time. In float64 they take 128 MB, and a reference makes about five such arrays.
CHUNK = 1 << 24
MOST_ELEMENTS = 1 << 28  # of larger inputs evenly spread rows are checked
MOST_ON_HOST = 1 << 22  # the same of choices, whose reference sorts rows by NumPy

# Results that are columns, and how far apart what is compared may be: it is computed in float32.
COLUMNS = ("ids", "top_ids")
NEAR = 4e-6

# What counts as wrong. softgen's own bounds are tighter; a fast exponential in float32 loses about
# |x - max| * 2**-24 and a long sum some more, which is a choice and no mistake. In 16 bits: two
# units of the last place.
TOLERANCE: dict[FloatType, float] = {
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


def checked_rows(rows: int, cols: int, elements: int | None = None) -> npt.NDArray[np.int64]:
    """Return the rows to check: all, or an even spread that includes the first and the last."""
    most = max(2, (elements or MOST_ELEMENTS) // cols)
    if rows <= most:
        return np.arange(rows)
    return np.unique(np.arange(most) * (rows - 1) // (most - 1))


def furthest(
    problem: Problem,
    arrays: Sequence[Any],
    axis: int = -1,
    exact: Exact | None = None,
    most: int | None = None,
) -> Deviation:
    """Return the deviation of the result that is the furthest from its bound, over checked rows.

    The reference is written for NumPy, whose functions hand CuPy's arrays to CuPy; what CuPy lacks
    raises TypeError, and nothing is computed on the host.

    Args:
        problem: what was computed.
        arrays: its operands in their order, all CuPy arrays (or all NumPy's); inputs without NaN or
            infinities. Those with an element a column are of any shape.
        axis: which of their axes is reduced.
        exact: what computes the exact results where there is a hook.
        most: how many results are looked at, from the first on; None for all.
    """
    import cupy

    given = list(zip(problem.operands, _with_rows_first(problem, arrays, axis, exact), strict=True))
    inputs = [array for operand, array in given if not operand.result]
    results = [array for operand, array in given if operand.result]
    outer, cols = inputs[0].shape[:-1], inputs[0].shape[-1]
    xp = cupy.get_array_module(inputs[0])
    chosen = checked_rows(math.prod(outer), cols)
    step = max(1, CHUNK // cols)
    worst = [0.0] * len(results)
    for first in range(0, len(chosen), step):
        part = chosen[first : first + step]
        # A slice is a view; a list of rows would be gathered into a copy.
        dense = len(outer) == 1 and part[-1] - part[0] == len(part) - 1 and exact is None
        where: Any = slice(int(part[0]), int(part[-1]) + 1)
        if not dense:
            where = xp.unravel_index(xp.asarray(part), outer)
        found = [_in_float64(result, where) for result in results]
        rows = [_in_float64(x, where) for x in inputs]
        if exact is None:
            wanted = problem.function.reference(*hooked(problem, rows))
            sizes = problem.function.magnitudes(*rows)
        else:
            wanted, sizes = (exact.of(rows[0], where, found[0]),), (None,)
        for number, operand in enumerate(problem.results[:most]):
            error = _error(operand, found[number], wanted[number], sizes[number])
            worst[number] = max(worst[number], error)
    deviations = [
        Deviation(operand.name, error, TOLERANCE[operand.float_type])
        for operand, error in zip(problem.results, worst, strict=True)
    ]
    return max(deviations, key=lambda each: each.error / each.bound)


def chosen_columns(problem: Problem) -> Operand | None:
    """Return the result that has the columns of a choice; None where nothing is chosen."""
    chosen = problem.function.chosen
    found = (o for o in problem.results if o.name in COLUMNS and o.width == chosen)
    return next(found, None)


def furthest_choice(
    problem: Problem, arrays: Sequence[Any], gives: Sequence[str] = ()
) -> Deviation:
    """Return the deviation of the furthest result of a choice, over some rows, on the host.

    Columns are right where what is compared of them is that of the exact ones, one after another:
    of equal ones any may be chosen. What belongs to columns is compared with that of those found.

    Args:
        problem: what was computed.
        arrays: its operands, of plain rows, all CuPy arrays (or all NumPy's).
        gives: the names of the results to look at; all by default.
    """
    import cupy

    rows, cols = arrays[0].shape
    part = checked_rows(rows, cols, MOST_ON_HOST)
    where, values = cupy.get_array_module(arrays[0]).asarray(part), []
    for operand, array in zip(problem.operands, arrays, strict=True):
        found = array.astype("float64") if operand.shared else _in_float64(array, where)
        values.append(found.get() if hasattr(found, "get") else found)
    count, function, results = len(problem.inputs), problem.function, problem.results
    inputs, found = (
        values[:count],
        dict(zip([o.name for o in results], values[count:], strict=True)),
    )
    which = chosen_columns(problem)
    assert which is not None, problem
    exact = dict(zip(found, function.reference(*inputs), strict=True))
    columns = (len(part), function.chosen)
    mine, right = (each[which.name].reshape(columns).astype(np.int64) for each in (found, exact))
    there = ((mine >= 0) & (mine < problem.cols)).all(axis=1)
    there &= (np.diff(np.sort(mine, axis=1), axis=1) > 0).all(axis=1)
    mine = np.where(there[:, None], mine, right)
    compared = function.compared(*inputs)
    of_mine, of_right = (np.take_along_axis(compared, each, axis=1) for each in (mine, right))
    wrong = ~there | (abs(of_mine - of_right) > NEAR * (1 + abs(of_right))).any(axis=1)
    # Groups whose ranks are all but equal may change places, and with them all of a row.
    allowed = len(part) // 1000 if function.groups else 0
    error = np.inf if wrong.sum() > allowed else 0.0
    deviations = [Deviation(which.name, error, 1.0)]
    wanted = dict(zip(found, function.of_columns(mine, *inputs), strict=True))
    for operand in results:
        if operand is which or (gives and operand.name not in gives):
            continue
        error = _error(operand, found[operand.name], wanted[operand.name], None)
        exactly = operand.measure is Measure.EXACT
        deviations.append(
            Deviation(operand.name, error, 1.0 if exactly else TOLERANCE[operand.float_type])
        )
    return max(deviations, key=lambda each: each.error / each.bound)


def _with_rows_first(
    problem: Problem, arrays: Sequence[Any], axis: int, exact: Exact | None
) -> list[Any]:
    """Return the arrays with the axis that is reduced last.

    As (rows, cols) where the memory of all has them so, and nobody needs the places of rows.
    """
    wide = [operand.extent is Extent.ELEMENT for operand in problem.operands]
    pairs = zip(arrays, wide, strict=True)
    moved = [np.moveaxis(array, axis, -1) if last else array for array, last in pairs]
    if exact is not None or not all(array.flags.c_contiguous for array in moved if array.ndim):
        return moved
    outer = moved[0].ndim - 1  # axes of rows; behind them the columns, or some numbers of a row
    rows = math.prod(moved[0].shape[:-1])
    return [
        array.reshape(rows, *array.shape[outer:]) if array.ndim >= outer else array
        for array in moved
    ]


def _in_float64(array: Any, index: Any) -> Any:
    """Return a new array of the chosen rows, or a number; gathers move bits.

    So CuPy need not know the type.
    """
    if array.ndim == 0:
        return array.astype("float64")
    bits = f"uint{8 * array.dtype.itemsize}"
    return array.view(bits)[index].view(array.dtype).astype("float64")


@np.errstate(invalid="ignore")  # infinity less infinity
def _error(operand: Operand, found: Any, exact: Any, size: Any) -> float:
    """Return the largest error of `found`, which is used up; inf for a NaN, 0 for equal infinities.

    Relative to the exact value, or to the smallest normal number of the type where that is larger;
    of a logarithm, to 1 + its size; of a sum whose terms cancel, to their `size`; of what must be
    exact, inf if there is any.
    """
    same = found == exact
    found -= exact
    error = abs(found)
    if operand.measure is Measure.EXACT:
        error[error > 0] = float("inf")
    else:
        scale = abs(exact)
        if operand.measure is Measure.LOGARITHM:
            scale += 1
        elif operand.measure is Measure.TERMS:
            scale = size
        if operand.measure is not Measure.LOGARITHM:
            tiny = TINY[operand.float_type]
            scale[scale < tiny] = tiny
        error /= scale
    error[same] = 0
    error[error != error] = float("inf")
    return float(error.max())
