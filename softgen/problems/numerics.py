"""What a right answer is: storage of the dtypes, the float64 reference, and the error bounds.

NumPy has no bfloat16 and ml_dtypes is optional, so arrays travel in storage form: float16, float32
and float64 as themselves, bfloat16 and the types of 8 bits as uint16 and uint8 holding their bits;
integers and booleans as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from softgen.errors import InvalidValueError
from softgen.problems.dtypes import FLOAT32_TINY, DType, ElementType, Float8, FloatType, Integer
from softgen.problems.exact import Float64 as Float64
from softgen.problems.exact import Storage as Storage
from softgen.problems.exact import exact_results as exact_results
from softgen.problems.exact import gain, hooked, slack, widened
from softgen.problems.exact import of_empty_row as of_empty_row
from softgen.problems.exact import reference as reference
from softgen.problems.operands import Extent, Limit, Measure, Operand
from softgen.problems.problem import Problem
from softgen.problems.storage import numpy_dtype as numpy_dtype
from softgen.problems.storage import storage_dtype as storage_dtype

# Allowed error of a result stored in 32 or 64 bits. softmax: relative, to a result above the floor;
# below it the same step is an absolute one (there float32 kernels lose digits, then flush).
# log_softmax: absolute plus relative, hence relative to 1 + |result|. A gradient that is a sum of
# terms (Measure.TERMS): relative to their size, which its `Function.magnitudes` gives.
_BOUND: dict[FloatType, float] = {DType.FLOAT32: 2e-6, DType.FLOAT64: 1e-14}
_FLOOR: dict[FloatType, float] = {DType.FLOAT32: 1e-30, DType.FLOAT64: 1e-290}

# float64's softmax rounds x - max, by up to 2^-53 of it, and exp makes that a relative error of
# |x - max| 2^-53: 7.4e-14 at the floor. |ln y| is |x - max| or more, so the bound is for errors
# relative to y (1 + |ln y| / 90), where 1e-14 / 90 is 2^-53. To mend it would take the rounding's
# error, six additions an element in float64, of which most GPUs do one for 32 or 64 in float32.
_EXPONENT_STEP = 90.0

# A result stored in 16 or 8 bits is the correctly rounded value or its neighbour. log_softmax near
# 0 is the logarithm of a float32 sum near 1, so there its absolute bound of float32 counts instead.
_ULPS = 1.0

# From where to where results are that have a limit of their own.
_LIMITS = {
    Limit.AT_LEAST_ZERO: (0.0, np.inf),
    Limit.AT_MOST_ZERO: (-np.inf, 0.0),
    Limit.AT_LEAST_ONE: (1.0, np.inf),
    Limit.UP_TO_ONE: (0.0, 1.0),
}


@dataclass(frozen=True)
class Accuracy:
    """How far a result is from the float64 reference.

    Attributes:
        worst: the largest error, in `unit`; inf where NaN, infinity or an exact value is missed.
        bound: the largest error allowed.
        unit: "relative" (log_softmax: to 1 + |y|; float64's softmax: to y (1 + |ln y| / 90);
            float32's with an `exponent_error`: to y (1 + |x - max| exponent_error / 2e-6)) or
            "ulp".
        index: of the largest error, (row, col) or (row,); None for an empty result.
        ok: whether every element is within the bound.
        message: what is wrong there, in words; empty if ok.
    """

    worst: float
    bound: float
    unit: str
    index: tuple[int, ...] | None
    ok: bool
    message: str = ""


def encode(values: npt.ArrayLike, dtype: ElementType) -> Storage:
    """Return `values` in storage form, rounded once, to nearest, ties to even.

    In 8 bits they saturate: what is beyond the largest finite number, infinities too, becomes it.

    Raises InvalidValueError for an integer or a boolean whose value the type does not have.
    """
    if isinstance(dtype, Integer):
        return _integers(np.asarray(values), dtype)
    with np.errstate(invalid="ignore"):  # a signaling NaN, as a file may hold
        wide = np.asarray(values).astype(np.float64)
    if dtype is DType.BFLOAT16:
        return _bfloat16_bits(wide)
    if isinstance(dtype, Float8):
        return _float8_bits(wide, dtype)
    with np.errstate(all="ignore"):
        return wide.astype(dtype.value)


def decode(storage: Storage, dtype: ElementType) -> Storage:
    """Return the exact values of an array in storage form: floats as float64."""
    if isinstance(dtype, Integer):
        return storage
    if dtype is DType.BFLOAT16:
        storage = (storage.astype(np.uint32) << 16).view(np.float32)
    if isinstance(dtype, Float8):
        return _of_float8(storage, dtype)
    with np.errstate(invalid="ignore"):  # a signaling NaN
        return storage.astype(np.float64)


def _integers(values: npt.NDArray[Any], dtype: Integer) -> Storage:
    """Return the values in `dtype`, which must have them all."""
    with np.errstate(invalid="ignore"):
        found = values.astype(storage_dtype(dtype))
    if not np.array_equal(found, values):
        raise InvalidValueError(
            f"{dtype.value} does not hold all of the {values.dtype} values that are given"
        )
    return found


def _bfloat16_bits(wide: Float64) -> Storage:
    """Round through a float32 that keeps what fell off in its last bit, so it rounds but once."""
    with np.errstate(all="ignore"):
        single = wide.astype(np.float32)
    bits = np.atleast_1d(single).view(np.uint32).reshape(wide.shape).copy()
    bits -= (np.abs(single.astype(np.float64)) > np.abs(wide)).astype(np.uint32)  # towards zero
    truncated = bits.view(np.float32)
    bits |= (truncated.astype(np.float64) != wide).astype(np.uint32)  # sticky
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(wide), np.uint32(0x7FC0), rounded).astype(np.uint16)


def _float8_bits(wide: Float64, dtype: Float8) -> Storage:
    """Round to the nearest of all numbers of the type that are finite and not negative."""
    numbers = _of_float8(np.arange(dtype.largest_bits + 1, dtype=np.uint8), dtype)
    middles = (numbers[1:] + numbers[:-1]) / 2
    size = np.minimum(np.abs(wide), numbers[-1])
    below = np.searchsorted(middles, size)  # of two that are as near the smaller one
    tied = size == middles[np.minimum(below, len(middles) - 1)]
    bits = below + (tied & (below % 2 == 1)) + np.where(np.signbit(wide), 0x80, 0)
    return np.where(np.isnan(wide), 0x7F, bits).astype(np.uint8)


def _of_float8(storage: Storage, dtype: Float8) -> Float64:
    """Return exact values. Both types are float16's first bits, e4m3 with another bias."""
    bits = storage.astype(np.uint16)
    if dtype is Float8.E5M2:
        halves: npt.NDArray[np.float16] = (bits << 8).view(np.float16)
        return halves.astype(np.float64)
    halves = ((bits & 0x80) << 8 | (bits & 0x7F) << 7).view(np.float16)
    return np.where(bits & 0x7F == 0x7F, np.nan, halves.astype(np.float64) * 256)


def other_inputs(x: Storage, problem: Problem) -> tuple[Storage, ...]:
    """Return what belongs to x among a function's inputs, in storage form, for tests.

    What is given of a row, as its lse, is of what hooks make of x.
    """
    of_hooks = hook_examples(problem, len(x))
    found = _belonging(decode(x, problem.dtype), problem)
    if problem.hooks and not problem.function.reduces:
        arrays = zip((x, *found, *of_hooks), problem.inputs, strict=True)
        entered, *_ = hooked(problem, [decode(array, o.dtype) for array, o in arrays])
        found = _belonging(entered.astype(np.float64), problem)
    return (*found, *of_hooks)


def _belonging(x: Float64, problem: Problem) -> tuple[Storage, ...]:
    """Return the function's inputs beside exact elements, in storage form."""
    with np.errstate(all="ignore"):
        values = problem.function.other_inputs(x)
        pairs = zip(values, problem.inputs[1:], strict=False)
        return tuple(encode(value, operand.dtype) for value, operand in pairs)


def varied_inputs(inputs: Sequence[Storage], problem: Problem) -> list[tuple[Storage, ...]]:
    """Return the inputs with other numbers of the function and of hooks, for each that they have.

    The first ones of all are in one launch, and so on.
    """
    rows = len(inputs[0])
    of_each = [problem.function.other_numbers(rows)]
    of_each += [hook.other_examples(rows) for hook in problem.hooks]
    found = []
    for values in zip_longest(*of_each, fillvalue={}):
        given = {name: value for each in values for name, value in each.items()}
        found.append(
            tuple(
                encode(given[operand.name], operand.dtype) if operand.name in given else array
                for operand, array in zip(problem.inputs, inputs, strict=True)
            )
        )
    return found


def hook_examples(problem: Problem, rows: int) -> tuple[Storage, ...]:
    """Return what the hooks take, in storage form, for tests and for timing."""
    kind, cols = problem.compute_dtype, problem.cols
    return tuple(
        encode(value, operand.dtype)
        for hook in problem.hooks
        for operand, value in zip(hook.operands(kind), hook.example(rows, cols), strict=True)
    )


def in_memory(array: Storage, operand: Operand, problem: Problem) -> Storage:
    """Return an operand as it lies in memory, where those of elements have a layout."""
    if operand.extent is not Extent.ELEMENT:
        return array
    stored: Storage = problem.layout.in_memory(array)
    return stored


def from_memory(array: Storage, operand: Operand, problem: Problem, rows: int) -> Storage:
    """Return what lies in memory in the operand's shape: the inverse of `in_memory`."""
    if operand.extent is not Extent.ELEMENT:
        return array.reshape(operand.shape(rows, problem.cols))
    shaped: Storage = problem.layout.from_memory(array, rows, problem.cols)
    return shaped


def unit_of(dtype: FloatType) -> str:
    """Return what errors of results of that type are counted in, "ulp" or "relative"."""
    return "ulp" if dtype.itemsize <= 2 else "relative"


def check(
    results: Sequence[Storage],
    inputs: Sequence[Storage],
    problem: Problem,
    exponent_error: float = 0.0,
) -> Accuracy:
    """Compare `results` with the reference of `inputs`, all in storage form, in operands' order.

    Args:
        results: what was computed.
        inputs: of what.
        problem: names their types.
        exponent_error: by how much |x - max| = 1 adds to the allowed relative error of a softmax
            result in float32: Strategy.exponent_error of what computed it.

    Returns the accuracy of the result that is the furthest from its bound.
    """
    values = [decode(v, operand.dtype) for v, operand in zip(inputs, problem.inputs, strict=True)]
    exact_inputs = widened(hooked(problem, values), wide=False)
    wide = problem.compute_dtype is DType.FLOAT64
    exact = exact_results(problem, values, wide)
    with np.errstate(all="ignore"):
        got = (decode(v, o.dtype) for v, o in zip(results, problem.results, strict=True))
        off = slack(problem, exact_inputs[0])  # with the sink
        as_wide = widened(exact_inputs, wide) if wide else exact_inputs
        exact = problem.function.settled(exact, tuple(got), *as_wide, off=off)
        exact = widened(exact, wide=False)
        sizes = problem.function.magnitudes(*as_wide)  # those of float64 overflow in float64
        if isinstance(off, np.ndarray):
            sizes = _with_moves(sizes, problem, exact_inputs, off)
        times = gain(problem, values) if problem.slopes else 1.0
        sizes = tuple(size if size is None else size * times for size in sizes)
    found = [
        _check(*each, exact_inputs[0], off, times, problem, exponent_error)
        for each in zip(_limited(problem, values), results, exact, sizes, strict=True)
    ]
    return max(found, key=lambda one: (not one.ok, one.worst / one.bound))


def _with_moves(
    sizes: Sequence[Float64 | None], problem: Problem, inputs: Sequence[Storage], off: Float64
) -> tuple[Float64 | None, ...]:
    """Return the sizes of terms and beside them what comes of elements that are `off`.

    What else is known of a row stays: p (log p + H) of entropies moves by `off` where it is 0.
    """
    function = problem.function
    results = (function.reference(x, *inputs[1:]) for x in (inputs[0], inputs[0] + off))
    more = (
        abs(moved - at) / _BOUND[problem.compute_dtype] for at, moved in zip(*results, strict=True)
    )
    return tuple(
        size if size is None else size + np.where(np.isfinite(each), each, 0)
        for size, each in zip(sizes, more, strict=True)
    )


def _limited(problem: Problem, values: Sequence[Storage]) -> tuple[Operand, ...]:
    """Return the results with the limits that they have for such inputs.

    A z_loss below 0 is taken from a loss, which may then be 0 or less by any rounding.
    """
    given = zip(problem.inputs, values, strict=True)
    if not any(operand.name == "z_loss" and bool(np.any(value < 0)) for operand, value in given):
        return problem.results
    return tuple(
        replace(operand, limit=Limit.NONE) if operand.limit is Limit.AT_LEAST_ZERO else operand
        for operand in problem.results
    )


def _check(
    operand: Operand,
    result: Storage,
    exact: Float64,
    size: Float64 | None,
    with_sink: Float64,
    off: Float64 | float,
    times: Float64 | float,
    problem: Problem,
    exponent_error: float,
) -> Accuracy:
    x = with_sink[:, :-1] if problem.sinks else with_sink
    if isinstance(operand.dtype, Integer):
        return _check_integers(operand, result, exact)
    unit = unit_of(operand.float_type)
    bound = _ULPS if unit == "ulp" else _BOUND[operand.float_type]
    if result.size == 0:
        return Accuracy(0.0, bound, unit, None, ok=True)
    rounded = decode(encode(exact, operand.dtype), operand.dtype)
    got = decode(result, operand.dtype)
    if operand.extent is Extent.ROW and isinstance(off, np.ndarray):
        off = off if operand.behind else off[:, 0]
    with np.errstate(all="ignore"):
        if unit == "ulp":
            single = problem.compute_dtype is DType.FLOAT32
            flushed: Float64 | float = FLOAT32_TINY * (1 + 2**-8) if single else 0.0
            if operand.extent is Extent.ELEMENT:  # which slopes multiply
                flushed = flushed * np.maximum(times, 1.0)
                if operand.measure is Measure.TERMS and single:  # by any upstream
                    least = _BOUND[DType.FLOAT32] * _FLOOR[DType.FLOAT32]
                    flushed = np.maximum(flushed, least)
            error = _ulp_error(operand, result, got, exact, size, off, flushed)
        else:
            more = exponent_error * _below_maximum(x) if exponent_error else 0.0
            error = _relative_error(operand, got, exact, size, more, off)
        # What overflows the result's type is right as that type's infinity.
        error = np.where((got == rounded) & np.isinf(error), 0.0, error)
    error[np.isnan(exact) != np.isnan(got)] = np.inf
    error[np.isnan(exact) & np.isnan(got)] = 0
    if operand.name == "lse" and len(problem.results) > 1:
        # Beside other results it goes by the maximum, which may leave NaN out.
        error[np.isnan(exact) & np.isposinf(got) & np.isposinf(with_sink).any(axis=1)] = 0
    if operand.extent is Extent.ELEMENT and operand.measure is not Measure.TERMS:
        exactly = np.isneginf(x) & ~np.isnan(exact)
        error[exactly] = np.where(got[exactly] == rounded[exactly], 0, np.inf)
    top = with_sink.max(axis=1, initial=-np.inf)
    passed = _passes_limit(operand, got, exact, top, off, problem)
    error[passed] = np.inf
    worst_at = int(np.argmax(error))
    index = tuple(int(i) for i in np.unravel_index(worst_at, result.shape))
    worst = float(error.flat[worst_at])
    if worst <= bound:
        return Accuracy(worst, bound, unit, index, ok=True)
    count = int(np.count_nonzero(~(error <= bound)))
    place = ", ".join(map(str, index))
    message = (
        f"{count} of {error.size} elements are off by more than {bound:g} ({unit}); the worst is "
        f"{operand.name}[{place}] = {float(got.flat[worst_at])!r}, wanted "
        f"{float(exact.flat[worst_at])!r}, error {worst:.3g}"
    )
    if passed.flat[worst_at]:
        message += f"; {operand.name} is {operand.limit.value}, to the last bit"
    return Accuracy(worst, bound, unit, index, ok=False, message=message)


def _check_integers(operand: Operand, result: Storage, exact: Storage) -> Accuracy:
    """Return the accuracy of integers, which are right or wrong."""
    wrong = np.argwhere(result != exact)
    if not len(wrong):
        return Accuracy(0.0, 1.0, "relative", None, ok=True)
    index = tuple(int(i) for i in wrong[0])
    place = ", ".join(map(str, index))
    message = (
        f"{len(wrong)} of {result.size} elements are wrong; the first is {operand.name}[{place}] "
        f"= {result[index]}, wanted {int(exact[index])}"
    )
    return Accuracy(math.inf, 1.0, "relative", index, ok=False, message=message)


def _passes_limit(
    operand: Operand,
    got: Float64,
    exact: Float64,
    top: Float64,
    off: Float64 | float,
    problem: Problem,
) -> npt.NDArray[np.bool_]:
    """Return which results pass their limit where the exact ones do not: see Limit.

    `top` is the largest element of each row, which may be `off`.
    """
    if operand.limit is Limit.UP_TO_ONE and problem.leaves:  # which hooks multiply
        return np.zeros(got.shape, bool)
    if operand.limit is Limit.AT_LEAST_MAXIMUM:
        least = decode(encode(top - off, operand.dtype), operand.dtype)
        return (got < least) & (exact >= least)
    low, high = _LIMITS.get(operand.limit, (-np.inf, np.inf))
    return ((got < low) & (exact >= low)) | ((got > high) & (exact <= high))


def _relative_error(
    operand: Operand,
    got: Float64,
    exact: Float64,
    size: Float64 | None,
    more: Float64 | float,
    off: Float64 | float,
) -> Float64:
    """Return the error of results of 32 or 64 bits; inf where just one of the two is infinite.

    `more` is allowed of a softmax result in float32 beside the bound, and elements may be `off`.
    """
    off = off / _BOUND[operand.float_type]
    if operand.measure is Measure.VALUE:
        scale = np.maximum(np.abs(exact), _FLOOR[operand.float_type])
        if operand.dtype is DType.FLOAT64:
            scale *= 1 + np.abs(np.log(scale)) / _EXPONENT_STEP + off
        elif operand.extent is Extent.ELEMENT:
            scale *= 1 + more / _BOUND[operand.float_type] + off
        else:
            scale *= 1 + off
    elif operand.measure is Measure.LOGARITHM:
        scale = 1 + np.abs(exact) + off
    elif size is not None:
        scale = np.maximum(size, _FLOOR[operand.float_type])
    else:
        scale = np.zeros_like(exact) + off
    error: Float64 = np.where(got == exact, 0.0, np.abs(got - exact) / scale)
    return np.where(np.isnan(error), np.inf, error)


def _below_maximum(x: Float64) -> Float64:
    """Return z = max - x, up to where float32's floor is: from there on z e^-z falls below it."""
    distance: Float64 = np.max(x, axis=1, keepdims=True) - x
    return np.minimum(distance, -math.log(_FLOOR[DType.FLOAT32]))


def _ulp_error(
    operand: Operand,
    result: Storage,
    got: Float64,
    exact: Float64,
    size: Float64 | None,
    off: Float64 | float,
    flushed: Float64 | float,
) -> Float64:
    """Return the distance of 8 or 16-bit results from the correctly rounded ones, in steps.

    float32 arithmetic is compiled with -ftz=true, so a bfloat16 result that is less than `flushed`
    may be 0: float32's smallest normal number (or rounded up to it), times what a gradient then is
    multiplied by, and of a gradient what one of float32 may be off by: an upstream gradient may
    multiply what was flushed. Other hooks multiply a result before anything is flushed.
    """
    wanted = _steps(encode(exact, operand.dtype))
    error: Float64 = np.abs(_steps(result) - wanted).astype(np.float64)
    if operand.measure is Measure.LOGARITHM:
        excused = np.abs(got - exact) <= _BOUND[DType.FLOAT32] + off
    elif size is not None:  # where terms cancel, their own rounding counts, and that of the result
        step = 2.0**-10 if operand.dtype is DType.FLOAT16 else 2.0**-7
        excused = np.abs(got - exact) <= _BOUND[DType.FLOAT32] * size + step * np.abs(exact)
        excused |= (got == 0) & (np.abs(exact) < flushed)
    else:
        excused = (got == 0) & (np.abs(exact) < flushed)
    # Of an infinite result a share is infinite too, and would excuse anything.
    return np.minimum(error, np.where(excused & np.isfinite(exact), 1.0, np.inf))


def _steps(storage: Storage) -> npt.NDArray[np.int64]:
    """Number values of 8 or 16 bits in order, -0 and 0 alike; infinity follows the largest."""
    bits = storage.view(f"uint{8 * storage.itemsize}").astype(np.int64)
    sign = 1 << (8 * storage.itemsize - 1)
    magnitude = bits & (sign - 1)
    return np.where(bits & sign, -magnitude, magnitude)
