"""What a warm call does beside x and one result: inputs that it checks, results that it makes.

A run calls it before the launch where an entry has it. A function of one input and one result has
none, and pays for none. It is a chain with a step for each further array, which hands on to the
next: a loop over them takes 0.4 us more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from softgen.call.library import Library
from softgen.call.outputs import Output
from softgen.call.warm_run import LAST_LEGACY_STREAM, Prepare
from softgen.devices.gpu.device import require_device


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
    first, step = 1 + len(others), lend
    for i, output in reversed([*enumerate(more, 1)]):
        step = _making(library, output.target, first + i, i == 1, step)
    for place, array in reversed([*enumerate(others, 1)]):
        step = _checking(library, array, place, first, _bytes(library, y.target), step)
    return step


def _checking(
    library: Library, array: Any, place: int, first: int, y_bytes: int, then: Prepare | None
) -> Prepare:
    """Return the step that takes another input, if a launch may take it for `array`.

    Args:
        library: of all arrays.
        array: what the full path launched on.
        place: among the values.
        first: where the first result's address is.
        y_bytes: the first result's size, which the input may not share memory with.
        then: the next step.
    """
    address, alike, size = library.address, library.like(array), _bytes(library, array)
    between_elements = library.dtype(array).itemsize - 1

    def prepare(arguments: Any, stream: int, result: Any, rest: tuple[Any, ...]) -> Any:
        given = rest[place - 1]
        if not alike(given):
            return None
        values = arguments[0]
        start, y_start = address(given), values[first]
        if start & between_elements or (start < y_start + y_bytes and y_start < start + size):
            return None
        values[place] = start
        return result if then is None else then(arguments, stream, result, rest)

    return prepare


def _making(
    library: Library, array: Any, place: int, second: bool, then: Prepare | None
) -> Prepare:
    """Return the step that makes another result, of the shape and dtype of `array`.

    Args:
        library: of all arrays.
        array: what the full path made.
        place: among the values.
        second: whether there is one result before it, not a tuple of them.
        then: the next step.
    """
    address, mallocs = library.address, library.mallocs_in_capture
    is_capturing = require_device().cuda.runtime.streamIsCapturing
    make = library.maker(tuple(array.shape), library.dtype(array))

    def prepare(arguments: Any, stream: int, result: Any, rest: tuple[Any, ...]) -> Any:
        # The run has asked where it made the first result, and not where that was given.
        if mallocs and stream > LAST_LEGACY_STREAM and is_capturing(stream):
            return None
        made = make()
        arguments[0][place] = address(made)
        found = (result, made) if second else (*result, made)
        return found if then is None else then(arguments, stream, found, rest)

    return prepare


def _bytes(library: Library, array: Any) -> int:
    return int(math.prod(array.shape)) * library.dtype(array).itemsize
