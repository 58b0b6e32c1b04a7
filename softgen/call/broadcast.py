"""How an argument of a call is broadcast over x: what a kernel takes to find a row's part of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from softgen.call.library import Library
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.dtypes import MAX_PACK_BYTES, ElementType
from softgen.problems.hooks.places import Place, place_of
from softgen.problems.problem import natural_alignment


class Broadcast:
    """An array x of rows along an axis, over which others are broadcast.

    Attributes:
        library: whose array it is; others must be of the same, and on its device.
        dtype: its element type.
        shape: that of its rows, without the axis along which they lie.
        cols: elements in a row.
    """

    def __init__(self, x: Any, library_of: Callable[..., tuple[Library, Any]], axis: int) -> None:
        self.library, array = library_of(x)
        self.library_of = library_of
        self.device = self.library.device(array)
        self.dtype = self.library.dtype(array)
        self.whole = tuple(array.shape)
        self.axis = axis if array.ndim else -1
        behind = self.whole[self.axis + 1 :] if self.axis != -1 else ()
        self.shape = (*self.whole[: self.axis], *behind)
        self.cols = int(self.whole[self.axis]) if array.ndim else 1

    def array(self, name: str, given: Any, kinds: Sequence[ElementType], words: str) -> Any:
        """Return the argument `name` as an array of one of the types, of x's library and device.

        `words` are what an error says before the types.
        """
        library, array = self.library_of(given, name)
        if library is not self.library or library.device(array) != self.device:
            raise InvalidValueError(f"{name} must be of x's library and on its device")
        if library.element_type(array) not in kinds:
            accepted = " or ".join(kind.value for kind in kinds)
            raise InvalidTypeError(
                f"{name} must be {words} {accepted}, got {library.element_type(array).value}"
            )
        return array

    def lines(self, name: str, array: Any, kind: str) -> tuple[Any, ...]:
        """Return the hook of an array that is broadcast over x, and what it takes.

        The hook is `kind`, or the one for what does not lie in whole packs of 16 bytes. Kernels
        load an element a column: an array with one for all columns is copied into that many.
        """
        library, size = self.library, self.library.element_type(array).itemsize
        given, whole = tuple(array.shape), (*self.shape, self.cols)
        if self.axis != -1:
            array, whole = self._moved(array), self.whole
        shape = tuple(array.shape)
        if shape[-1:] in ((), (1,)):
            shape = (*shape[:-1], self.cols)
            array = library.broadcast(array, shape)
        self._require_broadcast(name, shape[:-1], whole, given)
        if shape[-1] != self.cols:
            raise self._misfit(name, given, whole)
        steps = library.byte_strides(array)
        if any(step < 0 or step % size for step in steps) or (self.cols > 1 and steps[-1] != size):
            array = library.copy(array)
            steps = library.byte_strides(array)
        if 0 in shape:  # whose strides say nothing
            steps = tuple(step * size for step in _steps(shape))
        place = self._place(name, shape[:-1], [step // size for step in steps[:-1]])
        wanted = min(MAX_PACK_BYTES, natural_alignment(self.dtype, max(1, self.cols)) * size)
        starts = (library.pointer(array), place.stride * size, place.step * size)
        packs = self.axis == -1 and all(start % wanted == 0 for start in starts)
        return (kind if packs else f"{kind}any", array, *place.whole)

    def _moved(self, array: Any) -> Any:
        """Return a view with as many axes as x has, that which is reduced last."""
        ndim = len(self.whole)
        missing = max(0, ndim - len(array.shape))
        if len(array.shape) <= ndim:
            array = array[(None,) * missing] if missing else array
            order = [i for i in range(ndim) if i != self.axis]
            array = self.library.permuted(array, [*order, self.axis])
        return array

    def by_row(self, name: str, array: Any) -> tuple[Any, ...]:
        """Return an array that is broadcast over the rows, and where they find their element."""
        shape = tuple(array.shape)
        self._require_broadcast(name, shape, self.shape, shape)
        array = self.library.contiguous(array)
        place = self._place(name, shape, _steps(shape))
        if place.step == 1 and place.count == 1:
            return (array, 1, place.inner)
        if place.step == 0 and place.stride in (0, 1):
            return (array, place.every, place.count)
        raise self._hard(name, shape)

    def _require_broadcast(
        self, name: str, outer: tuple[int, ...], wanted: tuple[int, ...], shape: tuple[int, ...]
    ) -> None:
        rows = self.shape
        fits = len(outer) <= len(rows) and all(
            mine in (1, theirs) for mine, theirs in zip(outer[::-1], rows[::-1], strict=False)
        )
        if not fits or (0 in shape and 0 not in rows and self.cols):
            raise self._misfit(name, shape, wanted)

    def _misfit(
        self, name: str, shape: tuple[int, ...], wanted: tuple[int, ...]
    ) -> InvalidValueError:
        return InvalidValueError(f"{name} must broadcast to {wanted}, got shape {shape}")

    def _place(self, name: str, shape: tuple[int, ...], steps: Sequence[int]) -> Place:
        missing = len(self.shape) - len(shape)
        sized, rows = _sized((1,) * missing + shape), _sized(self.shape)
        place = place_of(sized, [0] * missing + [*steps], rows)
        if place is None:
            raise self._hard(name, shape)
        return place

    def _hard(self, name: str, shape: tuple[int, ...]) -> InvalidValueError:
        return InvalidValueError(
            f"{name} of shape {shape} is broadcast over rows of shape {self.shape} in more steps "
            "than a kernel takes; expand it to the rows, and make it contiguous"
        )


def _sized(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape with 2 in place of each 0: what fits no rows is what fits some."""
    return tuple(length or 2 for length in shape)


def _steps(shape: tuple[int, ...]) -> list[int]:
    """Return the strides of a contiguous array, in elements."""
    return [math.prod(_sized(shape[axis + 1 :])) for axis in range(len(shape))]
