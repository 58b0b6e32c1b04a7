"""The exact results of a problem: its function and its hooks, in float64 or wider."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from softgen.problems.dtypes import FLOAT32_TINY, DType
from softgen.problems.functions.base import Function
from softgen.problems.hooks.base import Hook
from softgen.problems.operands import Extent, Measure
from softgen.problems.problem import Problem

Storage = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


def reference(function: Function, *inputs: Float64, wide: bool = False) -> tuple[Float64, ...]:
    """Return the results of each row in float64, by torch's rules for NaN and infinity.

    Args:
        function: what is computed.
        inputs: exact values; the first of shape (rows, cols).
        wide: compute in long double and round once, as is needed to judge results of float64.
            Where that is no wider than float64 (of Linux, it is on x86 and Arm) results are off by
            up to |x - max| 2^-53, as a kernel's are.
    """
    if inputs[0].shape[0] == 0:  # of which there is no maximum
        one_row = (np.zeros((1, *i.shape[1:])) if np.ndim(i) else i for i in inputs)
        return tuple(each[:0] for each in reference(function, *one_row, wide=wide))
    with np.errstate(all="ignore"):
        results = function.reference(*widened(inputs, wide))
        return tuple(np.asarray(each, np.float64) for each in results)


def widened(inputs: Sequence[Storage], wide: bool) -> tuple[Storage, ...]:
    """Return inputs in float64, or `wide` in long double, and integers as they are."""
    kind = np.longdouble if wide else np.float64
    given = map(np.asarray, inputs)
    return tuple(each if each.dtype.kind in "iu" else each.astype(kind) for each in given)


def hooked(problem: Problem, inputs: Sequence[Storage]) -> tuple[Float64, ...]:
    """Return the function's inputs from the kernel's: x as the hooks leave it, each rounding once.

    What the function does itself on the way in comes last. A sink is a column more.

    Args:
        problem: names the hooks.
        inputs: exact values of all inputs, what the hooks take last.
    """
    (x, *others), given = _split(problem, inputs)
    with np.errstate(all="ignore"):
        for hook, values in given:
            if hook.computes:  # what one before has not rounded is rounded now
                x = _flushed(problem, x.astype(problem.compute_dtype.value))
                x = _flushed(problem, hook.enter(x, *values))
            else:
                x = hook.enter(x, *values)
        for own in problem.function.modifiers:
            if own.computes:
                x = _flushed(problem, x.astype(problem.compute_dtype.value))
                x = _flushed(problem, own.enter(x, *others))
        for hook, values in given:
            column = hook.column(len(x), *values)
            if column is not None:
                others = list(problem.function.beside_a_sink(x.shape[1], *others))
                x = np.column_stack((x, column))
    return (x, *others)


def _split(
    problem: Problem, inputs: Sequence[Storage]
) -> tuple[list[Storage], list[tuple[Hook, list[Storage]]]]:
    """Return the function's inputs, and each hook with what it takes, in the arithmetic's type."""
    kind = problem.compute_dtype
    at = len(inputs) - len(problem.hook_operands)
    rest, found = iter(inputs[at:]), []
    for hook in problem.hooks:
        operands = hook.operands(kind)
        values = [next(rest) for _ in operands]
        for i, operand in enumerate(operands):
            if isinstance(operand.dtype, DType):
                values[i] = values[i].astype(kind.value)
        found.append((hook, values))
    return list(inputs[:at]), found


def _flushed(problem: Problem, values: Storage) -> Storage:
    """Return values of the arithmetic where -ftz=true makes 0 of the smallest."""
    if problem.compute_dtype is DType.FLOAT32:
        return np.where(np.abs(values) < FLOAT32_TINY, values.dtype.type(0), values)
    return values


def exact_results(
    problem: Problem, inputs: Sequence[Storage], wide: bool = False
) -> tuple[Float64, ...]:
    """Return the results of each row in float64, as `reference`, by all hooks.

    Args:
        problem: names the function and the hooks.
        inputs: exact values of all inputs, what the hooks take last.
        wide: as in `reference`.
    """
    entered = hooked(problem, inputs)
    results = list(reference(problem.function, *entered, wide=wide))
    if not problem.hooks:
        return tuple(results)
    rows, x = len(inputs[0]), entered[0]
    for i, operand in enumerate(problem.results):
        if operand.extent is not Extent.ELEMENT:
            continue
        y = results[i][:, :-1] if problem.sinks else results[i]
        if problem.zero_rows and rows:
            nothing = 0.0 if operand.measure is Measure.VALUE else -np.inf
            y = np.where(np.isneginf(x).all(axis=1, keepdims=True), nothing, y)
        with np.errstate(all="ignore"):
            for hook, values in _split(problem, inputs)[1]:
                y = hook.leave(y, *values)
                if problem.slopes:  # what is 0, as of a row that is ignored, stays so
                    y = np.where(y == 0, y, y * hook.slope(x, *values))
        results[i] = y
    return tuple(results)


def gain(problem: Problem, inputs: Sequence[Storage]) -> Any:
    """Return the largest derivative of what the hooks make of x, of all rows or of each."""
    (x, *_), given = _split(problem, inputs)
    return math.prod(hook.gain(x, *values) for hook, values in given)


def of_empty_row(problem: Problem) -> tuple[float, ...]:
    """Return the results of a row without elements: those of one of as few -inf as may be."""
    nothing = np.full((1, problem.function.least_cols), -np.inf)
    with np.errstate(all="ignore"):
        others = problem.function.other_inputs(nothing)
    return tuple(float(each.flat[0]) for each in reference(problem.function, nothing, *others))


def slack(problem: Problem, x: Float64) -> Float64 | float:
    """Return by how much the elements of each row may be off, as a column; 0 where none may.

    That is a hook's own error: `Hook.steps`, of the largest element that is finite. A result goes
    by differences of elements.
    """
    steps = sum(hook.steps(problem.compute_dtype) for hook in problem.hooks)
    if not steps or not x.size:
        return 0.0
    last = 2.0**-52 if problem.compute_dtype is DType.FLOAT64 else 2.0**-23
    largest: Float64 = np.abs(np.where(np.isfinite(x), x, 0)).max(axis=1, keepdims=True)
    return steps * last * largest
