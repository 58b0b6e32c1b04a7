"""Which axes of an array are reduced, and how the array then lies in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from softgen.errors import InvalidValueError
from softgen.problems.layouts import ROWS, Columns, Layout
from softgen.problems.problem import whole_number


class Reduced(NamedTuple):
    """An array's axes that are reduced together.

    Attributes:
        axes: their numbers, rising. Those between the first and the last of them that are none of
            them have length 1, unless `moves`.
        cols: elements of a row: the product of their lengths.
        inner: elements behind them: the distance of neighbours in a row.
        row_shape: the array's shape without them, that of results of a row.
        moves: whether others lie between them, so that memory has no such rows.
    """

    axes: tuple[int, ...]
    cols: int
    inner: int
    row_shape: tuple[int, ...]
    moves: bool

    @property
    def layout(self) -> Layout:
        """Where the elements of a row lie. A row of one element lies as any."""
        return ROWS if self.inner <= 1 or self.cols <= 1 else Columns(self.inner)


def reduced(shape: Sequence[int], axis: Any) -> Reduced:
    """Return what `axis` of an array of that shape means: an int, a tuple of them, None for all.

    A 0-d array is a row of one element.

    Raises numpy.exceptions.AxisError for an axis that is not there, InvalidTypeError for what is no
    int, InvalidValueError for one that is there twice or a tuple of none.
    """
    axes = axes_of(axis, len(shape))
    rest = tuple(length for i, length in enumerate(shape) if i not in axes)
    if not shape:
        return Reduced((), 1, 1, (), False)
    first, last = axes[0], axes[-1]
    between = math.prod(shape[i] for i in range(first, last) if i not in axes)
    cols = math.prod(shape[i] for i in axes)
    return Reduced(axes, cols, math.prod(shape[last + 1 :]), rest, between != 1)


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes that are meant, rising and from 0 on; raise what `reduced` raises."""
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, tuple) else (axis,)
    found = []
    for each in given:
        number = whole_number("axis", each)
        if not -max(1, ndim) <= number < max(1, ndim):
            raise np.exceptions.AxisError(number, ndim)
        found.append(number % max(1, ndim))
    if not found:
        raise InvalidValueError("axis is an empty tuple; give an axis, several, or None for all")
    if len(set(found)) < len(found):
        raise InvalidValueError(f"axis {axis!r} has an axis twice")
    return tuple(sorted(found)) if ndim else ()


def axis_of(axis: Any, dim: int | tuple[int, ...] | None) -> Any:
    """Return the axis that is meant, where a caller may have given `dim` in its place."""
    if dim is None:
        return axis
    if axis != -1 and axis != dim:
        raise InvalidValueError(f"axis={axis!r} and dim={dim!r} differ; give one of them")
    return dim


def is_of_ints(axis: Any) -> bool:
    """Whether `axis` is None, an int or a tuple of ints: True and 1.0 equal 1, and are refused."""
    if axis is None or type(axis) is int:
        return True
    return type(axis) is tuple and all(type(each) is int for each in axis)


def with_axes_kept(result: Any, axis: Any, ndim: int | None = None) -> Any:
    """Return a result of rows with the axes that were reduced, of length 1.

    Args:
        result: an array of CuPy or PyTorch.
        axis: as in `reduced`.
        ndim: of the input, where `axis` is None.
    """
    if ndim is None:
        ndim = len(result.shape) + (len(axis) if isinstance(axis, tuple) else 1)
    axes = axes_of(axis, ndim)
    return result[tuple(None if i in axes else slice(None) for i in range(ndim))]
