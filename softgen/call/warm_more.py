"""What a warm call does beside x and one result: inputs that it checks, results that it makes.

A run calls it before the launch where an entry has it. A function of one input and one result has
none, and pays for none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from softgen.call.library import Library
from softgen.call.outputs import Output
from softgen.call.warm_run import LAST_LEGACY_STREAM, Prepare, is_captured


def prepare_of(
    library: Library,
    others: Sequence[Any],
    y: Output,
    more: Sequence[Output],
    lend: Prepare | None,
) -> Prepare | None:
    """Return the `prepare` of an entry; None if nothing is left to do before the launch.

    Args:
        library: of all arrays.
        others: the inputs beside x.
        y: the first result.
        more: the results beside it.
        lend: the launcher's own, which lends a workspace.
    """
    if not others and not more:
        return lend
    address = library.address
    inputs = [_input(library, array) for array in others]
    makers = [_maker(library, each) for each in more]
    first = 1 + len(inputs)
    y_bytes = library.dtype(y.target).itemsize * _elements(y.target)
    mallocs = library.mallocs_in_capture and bool(makers)

    def prepare(arguments: Any, stream: int, result: Any, rest: tuple[Any, ...]) -> Any:
        values = arguments[0]
        start, place = values[first], 1
        for array, (alike, size, mask) in zip(rest, inputs, strict=True):
            if not alike(array):
                return None
            values[place] = given = address(array)
            if given & mask or not (given + size <= start or start + y_bytes <= given):
                return None
            place += 1
        if makers:
            # The run has asked where it allocated the first result, not where that was given.
            if mallocs and stream > LAST_LEGACY_STREAM and is_captured(stream):
                return None
            results, place = [result], first
            for make in makers:
                place += 1
                made = make()
                values[place] = address(made)
                results.append(made)
            result = tuple(results)
        return result if lend is None else lend(arguments, stream, result, rest)

    return prepare


def _input(library: Library, array: Any) -> tuple[Callable[[Any], bool], int, int]:
    """Return what tells whether another array will do, its bytes, and a mask of its alignment."""
    itemsize = library.dtype(array).itemsize
    return library.like(array), itemsize * _elements(array), itemsize - 1


def _maker(library: Library, output: Output) -> Callable[[], Any]:
    return library.maker(tuple(output.target.shape), library.dtype(output.target))


def _elements(array: Any) -> int:
    return math.prod(array.shape)
