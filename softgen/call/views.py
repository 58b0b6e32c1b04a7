"""Views: arrays whose rows are apart, where a kernel finds them, and what is copied first."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from softgen.call.library import Library
from softgen.call.outputs import Output
from softgen.errors import InvalidValueError
from softgen.problems.layouts import ROWS, Layout
from softgen.problems.operands import Extent, Operand
from softgen.problems.placement import Placement, outer_strides
from softgen.problems.problem import Problem
from softgen.tuning.policy import debugging

# What NumPy may try to tell whether two views share an element; a few axes take it some hundred.
MOST_WORK = 1 << 16

_copies = itertools.count(1)


class Placed(NamedTuple):
    """The arrays of a launch.

    Attributes:
        inputs: x and the others, or copies.
        outputs: where results go.
        placement: where rows are; None where all arrays are contiguous.
        layout: what a kernel for it has.
    """

    inputs: list[Any]
    outputs: list[Output]
    placement: Placement | None
    layout: Layout


def placed(
    library: Library,
    problem: Problem,
    inputs: Sequence[Any],
    outputs: list[Output],
    most: int | None = None,
) -> Placed | None:
    """Return where the rows of inputs and results are, with as few copies as can be.

    An input is copied where its last axis is not contiguous, and a result that is such is written
    elsewhere and copied. So are they where more than three outer axes are left.

    Args:
        library: of all arrays.
        problem: names the operands.
        inputs: x, of one element or more, and the others; those of a row each are contiguous.
        outputs: as `resolve_outputs` returns them.
        most: the outer axes of a kernel that is there already. Nothing is copied then, and what it
            does not take gives None.

    Raises InvalidValueError, before anything is copied, if a result shares memory with x.
    """
    wide = whole(problem.inputs, inputs)
    targets = whole(problem.results, [each.target for each in outputs])
    if all(map(library.is_contiguous, (*wide, *targets))):
        return Placed([*inputs], outputs, None, ROWS)
    x = inputs[0]
    dense = tuple(math.prod(x.shape[axis + 1 :]) for axis in range(x.ndim - 1))
    for copies, elsewhere in _ways(most is None):
        found = [*(_strides(library, each, copies) for each in wide)]
        found += [_strides(library, target, elsewhere) for target in targets]
        if most is not None and None in found:
            continue
        strides = tuple(dense if each is None else each for each in found)
        placement = Placement(tuple(x.shape[:-1]), strides).joined()
        layout = placement.layout(problem.cols)
        if layout is None or (most is not None and len(placement.sizes) > most):
            continue
        if found[0] is not None:
            for at, target in enumerate(targets, len(wide)):
                if found[at] is not None:
                    _require_apart(library, placement, x, target, at)
        for each, step in zip(wide, found, strict=False):
            if step is None:
                inputs = [_copy(library, each) if one is each else one for one in inputs]
        if None in found[len(wide) :]:
            outputs = _elsewhere(library, problem, outputs)
        return Placed([*inputs], outputs, placement, layout)
    return None


def whole(operands: Sequence[Operand], arrays: Sequence[Any]) -> list[Any]:
    """Return the arrays with an element a column."""
    pairs = zip(operands, arrays, strict=True)
    return [array for operand, array in pairs if operand.extent is Extent.ELEMENT]


def copied(library: Library, problem: Problem, found: Placed) -> Placed:
    """Return the same in contiguous arrays, for a kernel that takes no others."""
    x, *others = found.inputs
    source = x if library.is_contiguous(x) else _copy(library, x)
    inputs = [source, *contiguous(library, problem, others)]
    return Placed(inputs, _elsewhere(library, problem, found.outputs), None, ROWS)


def contiguous(library: Library, problem: Problem, others: Sequence[Any]) -> list[Any]:
    """Return the inputs beside x, with copies of arrays that are views."""
    return [
        array
        if operand.extent in (Extent.NUMBER, Extent.BROADCAST) or library.is_contiguous(array)
        else _copy(library, array)
        for operand, array in zip(problem.inputs[1:], others, strict=True)
    ]


def _elsewhere(library: Library, problem: Problem, outputs: list[Output]) -> list[Output]:
    return [
        each if library.is_contiguous(each.target) else each.elsewhere(library, operand.dtype)
        for operand, each in zip(problem.results, outputs, strict=True)
    ]


def _ways(may_copy: bool) -> Iterator[tuple[bool, bool]]:
    """Yield whether inputs are copied and whether results go elsewhere, the cheapest first."""
    yield False, False
    if may_copy:
        yield from ((False, True), (True, False), (True, True))


def _strides(library: Library, array: Any, copies: bool) -> tuple[int, ...] | None:
    """Return the outer strides in elements; None for an array that is to be copied."""
    if copies and not library.is_contiguous(array):
        return None
    return outer_strides(tuple(array.shape), library.byte_strides(array), array.itemsize)


def _copy(library: Library, array: Any) -> Any:
    count = next(_copies)
    if debugging():
        sys.stderr.write(
            f"softgen: copied an input of shape {tuple(array.shape)} and strides "
            f"{library.byte_strides(array)} in bytes, whose rows no kernel takes where they are; "
            f"{count} such copies so far\n"
        )
    return library.contiguous(array)


def _require_apart(library: Library, placement: Placement, x: Any, target: Any, which: int) -> None:
    """Raise InvalidValueError if the target shares memory with x, unless it is x."""
    if (
        library.pointer(x) == library.pointer(target)
        and placement.strides[0] == placement.strides[which]
        and x.itemsize == target.itemsize
    ):
        return
    if share_memory(library, x, target):
        raise InvalidValueError(
            "out overlaps x without being x; pass x itself (in place), a view that has no element "
            "of x, or an array of its own memory"
        )


def numbers_of(problem: Problem, placement: Placement | None, rows: int) -> dict[int, int]:
    """Return the words of the layout's numbers, by their place among the operands."""
    numbers = problem.layout_numbers
    if not numbers:
        return {}
    arrays = len(problem.whole_rows)
    where = placement or Placement.contiguous(arrays, rows, problem.cols)
    first = len(problem.operands) - len(numbers)
    values = where.numbers(problem.layout)
    return {
        first + i: number.word(value)
        for i, (number, value) in enumerate(zip(numbers, values, strict=True))
    }


def share_memory(library: Library, a: Any, b: Any) -> bool:
    """Whether two arrays have a byte in common; also where that is too hard to tell."""
    if 0 in a.shape or 0 in b.shape:  # PyTorch gives both the address 0
        return False
    ends = [extent(library, each) for each in (a, b)]
    if ends[0][0] >= ends[1][1] or ends[1][0] >= ends[0][1]:
        return False
    if library.is_contiguous(a) and library.is_contiguous(b):
        return True
    shares: Any = np.shares_memory  # whose type hints know no max_work but 0 and -1
    try:
        return bool(
            shares(*(np.asarray(_View(library, each)) for each in (a, b)), max_work=MOST_WORK)
        )
    except np.exceptions.TooHardError:
        return True


def extent(library: Library, array: Any) -> tuple[int, int]:
    """Return the address of an array's lowest byte, and the one behind its highest."""
    start = library.pointer(array)
    steps = [
        step * (size - 1)
        for size, step in zip(array.shape, library.byte_strides(array), strict=True)
    ]
    low, high = sum(min(0, step) for step in steps), sum(max(0, step) for step in steps)
    return start + low, start + high + int(array.itemsize)


class _View:
    """Memory of a GPU as NumPy takes arrays of others: it looks at addresses alone."""

    def __init__(self, library: Library, array: Any) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{array.itemsize}",
            "shape": tuple(array.shape),
            "strides": library.byte_strides(array),
            "data": (library.pointer(array), True),
        }
