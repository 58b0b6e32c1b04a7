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
from softgen.call.warm_run import ALIGNMENT_MASK, LAST_LEGACY_STREAM, Prepare
from softgen.devices.gpu.device import require_device
from softgen.spec.dtypes import DType, ElementType, Integer
from softgen.spec.operands import Extent, Operand


def prepare_of(
    library: Library,
    operands: Sequence[Operand],
    others: Sequence[Any],
    y: Output,
    more: Sequence[Output],
    lend: Prepare | None,
    *,
    arrays: bool = True,
) -> Prepare | None:
    """Return the `prepare` of an entry; None if nothing is left to do before the launch.

    Args:
        library: of all arrays.
        operands: those of the launch, in the order of its values.
        others: the inputs beside x.
        y: the first result.
        more: the results beside it.
        lend: the launcher's own, which lends a workspace.
        arrays: whether it takes the arrays among the inputs; numbers it does.
    """
    first, *after = [place for place, operand in enumerate(operands) if operand.result]
    inputs = [place for place, operand in enumerate(operands) if not operand.result]
    step = lend
    for i, (place, output) in reversed([*enumerate(zip(after, more, strict=True))]):
        step = _making(library, output.target, place, i == 0, step)
    for i, (place, given) in reversed([*enumerate(zip(inputs[1:], others, strict=False))]):
        if operands[place].extent is Extent.NUMBER:
            step = _number(operands[place], place, i, step)
        elif arrays:
            by_element = operands[place].extent is Extent.ELEMENT
            y_bytes = _bytes(y.target)
            step = _checking(library, given, place, i, first, y_bytes, by_element, step)
    return step


def _number(operand: Operand, place: int, index: int, then: Prepare | None) -> Prepare:
    """Return the step that takes a number, of Python's own type for it.

    Args:
        operand: which one.
        place: among the values.
        index: among the inputs beside x.
        then: the next step.
    """
    kinds: dict[ElementType, Any] = {DType.FLOAT32: float, DType.FLOAT64: float}
    kinds |= {Integer.BOOL: bool, Integer.INT32: int, Integer.INT64: int}
    word_of, kind = operand.word, kinds[operand.dtype]
    last: tuple[Any, int] = (None, 0)

    def prepare(arguments: Any, stream: int, result: Any, rest: tuple[Any, ...]) -> Any:
        nonlocal last
        given = rest[index]
        was, word = last
        if given is not was:  # packing takes 0.5 us
            if type(given) is not kind:
                return None
            last = given, (word := word_of(given))
        arguments[0][place] = word
        return result if then is None else then(arguments, stream, result, rest)

    return prepare


def _checking(
    library: Library,
    array: Any,
    place: int,
    index: int,
    first: int,
    y_bytes: int,
    by_element: bool,
    then: Prepare | None,
) -> Prepare:
    """Return the step that takes another input, if a launch may take it for `array`.

    Args:
        library: of all arrays.
        array: what the full path launched on.
        place: among the values.
        index: among the inputs beside x.
        first: where the first result's address is.
        y_bytes: the first result's size, which the input may not share memory with.
        by_element: whether it has an element a column.
        then: the next step.
    """
    address, alike, size = library.address, library.like(array), _bytes(array)
    # Where rows may start is in the kernel's text: they lie as those of the launch did.
    mask = ALIGNMENT_MASK if by_element else library.element_type(array).itemsize - 1
    wanted = address(array) & mask

    def prepare(arguments: Any, stream: int, result: Any, rest: tuple[Any, ...]) -> Any:
        given = rest[index]
        if not alike(given):
            return None
        values = arguments[0]
        start, y_start = address(given), values[first]
        if start & mask != wanted or (start < y_start + y_bytes and y_start < start + size):
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


def _bytes(array: Any) -> int:
    return int(math.prod(array.shape)) * int(array.itemsize)
