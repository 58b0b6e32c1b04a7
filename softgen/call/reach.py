"""Whether an array that rows share has what a kernel finds in it, by the numbers of a caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from softgen.call.library import Library
from softgen.call.views import extent
from softgen.errors import InvalidValueError
from softgen.problems.hooks.places import Place, packed_lines
from softgen.problems.operands import Extent, Operand
from softgen.problems.problem import Problem

_FIELDS = ("every", "count", "stride", "inner", "step")


def finding(problem: Problem) -> tuple[int, ...]:
    """Return the places, among the inputs behind the first, of what `require_reach` looks at."""
    others = problem.inputs[1:]
    arrays = [o.name for o in others if o.extent is Extent.BROADCAST]
    names = {f"{array}_{field}" for array in arrays for field in _FIELDS}
    return tuple(place for place, operand in enumerate(others) if operand.name in names)


def require_neighbours(library: Library, problem: Problem, others: Sequence[Any]) -> None:
    """Raise InvalidValueError for an array of numbered places whose neighbours are apart.

    Of one with lines, whose distance is a number, those are the elements of a line.
    """
    inputs = problem.inputs[1:]
    names = {operand.name for operand in inputs}
    for operand, array in zip(inputs, others, strict=True):
        if operand.extent is not Extent.BROADCAST or library.is_contiguous(array):
            continue
        strides = library.byte_strides(array)
        line = array.shape[-1] == 1 or strides[-1] == operand.dtype.itemsize
        if not line or f"{operand.name}_stride" not in names:
            raise InvalidValueError(
                f"the kernel finds elements of {operand.name} side by side, and {operand.name} "
                f"has strides {strides} in bytes; make it contiguous"
            )


def require_reach(library: Library, problem: Problem, others: Sequence[Any]) -> None:
    """Raise InvalidValueError unless every place that rows may find is in its array.

    Those of all counts, as threads may look for a row behind the last. Lines that are loaded in
    packs have to start on one.
    """
    given = dict(zip(problem.inputs[1:], others, strict=True))
    numbers = {o.name: value for o, value in given.items() if o.extent is Extent.NUMBER}
    for operand in given:
        if operand.divides:
            operand.word(numbers[operand.name])  # it refuses what is no divisor
    packed = packed_lines(problem)
    for operand, array in given.items():
        if operand.extent is not Extent.BROADCAST or f"{operand.name}_every" not in numbers:
            continue
        place = _place(operand.name, numbers)
        lined = f"{operand.name}_stride" in numbers
        _require_inside(library, operand, array, place, problem.cols if lined else 1)
        if operand.name in packed:
            _require_packs(library, operand, array, place, packed[operand.name])


def _place(name: str, numbers: Mapping[str, Any]) -> Place:
    names = (f"{name}_{field}" for field in _FIELDS)
    usual = (1, 1, 1, 1, 0)
    return Place(*(int(numbers.get(each, one)) for each, one in zip(names, usual, strict=True)))


def _require_inside(
    library: Library, operand: Operand, array: Any, place: Place, length: int
) -> None:
    starts = ((place.count - 1) * place.stride, (place.inner - 1) * place.step)
    first = sum(min(0, start) for start in starts)
    last = sum(max(0, start) for start in starts) + length - 1
    size, start = operand.dtype.itemsize, library.pointer(array)
    low, high = extent(library, array) if 0 not in array.shape else (start, start)
    if start + first * size < low or start + (last + 1) * size > high:
        raise InvalidValueError(
            f"by the numbers behind {operand.name} rows find elements {first} to {last} of it, and "
            f"it has {(low - start) // size} to {(high - start) // size - 1}"
        )


def _require_packs(
    library: Library, operand: Operand, array: Any, place: Place, wanted: int
) -> None:
    steps = (place.stride * (place.count > 1), place.step * (place.inner > 1))
    starts = (library.pointer(array), *(step * operand.dtype.itemsize for step in steps))
    if any(start % wanted for start in starts):
        raise InvalidValueError(
            f"the plan needs lines of {operand.name} that start on {wanted} bytes; plan with the "
            "hook of that name and `any`, which loads elements one by one"
        )
