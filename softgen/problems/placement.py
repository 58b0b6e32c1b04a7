"""Where the rows of a launch lie: the run-time side of the layout `Strided`.

A view of a larger array has a size and a stride for each axis but the last. Axes that follow each
other in every array are one; what is left are the sizes and strides that a kernel takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from softgen.problems.layouts import MOST_OUTER, ROWS, Layout, Strided

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Placement:
    """Outer axes and how far apart their rows are, in elements of each array.

    Attributes:
        sizes: of the outer axes, whose product is the number of rows.
        strides: of the same axes, for each array with an element a column, in operands' order.
    """

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @classmethod
    def contiguous(cls, arrays: int, rows: int, cols: int) -> Placement:
        """Return where the rows of so many contiguous arrays lie."""
        return cls((rows,), ((cols,),) * arrays)

    @property
    def rows(self) -> int:
        """How many there are."""
        return math.prod(self.sizes)

    def joined(self) -> Placement:
        """Return the same with as few axes as there can be, and at least one.

        Axes of size 1 go, and one that ends in all arrays where the next one begins is joined
        with it.
        """
        sizes: list[int] = []
        strides: list[list[int]] = [[] for _ in self.strides]
        for axis, size in enumerate(self.sizes):
            if size == 1:
                continue
            steps = [each[axis] for each in self.strides]
            if sizes and all(
                kept[-1] == size * step for kept, step in zip(strides, steps, strict=True)
            ):
                sizes[-1] *= size
                for kept, step in zip(strides, steps, strict=True):
                    kept[-1] = step
                continue
            sizes.append(size)
            for kept, step in zip(strides, steps, strict=True):
                kept.append(step)
        if not sizes:
            return Placement((1,), ((0,),) * len(self.strides))
        return Placement(tuple(sizes), tuple(map(tuple, strides)))

    def layout(self, cols: int) -> Layout | None:
        """Return the layout that says so, of joined axes; None where there are too many axes."""
        if len(self.sizes) == 1 and (
            self.sizes == (1,) or all(each == (cols,) for each in self.strides)
        ):
            return ROWS
        return Strided(len(self.sizes)) if len(self.sizes) <= MOST_OUTER else None

    def numbers(self, layout: Layout) -> tuple[int, ...]:
        """Return the values of `layout.numbers`; the layout may have more axes than this.

        Those in front have size 1.
        """
        if not isinstance(layout, Strided):
            return ()
        more = layout.outer - len(self.sizes)
        sizes = (1,) * more + self.sizes
        return (*sizes[1:], *(step for each in self.strides for step in (0,) * more + each))

    def indices(self, array: int, cols: int) -> Indices:
        """Return where each element lies, as (rows, cols), counted from the lowest in memory."""
        starts = np.zeros(1, np.int64)
        for size, step in zip(self.sizes, self.strides[array], strict=True):
            starts = (starts[:, None] + np.arange(size, dtype=np.int64) * step).reshape(-1)
        return starts[:, None] + np.arange(cols, dtype=np.int64) - self.extent(array, cols)[0]

    def extent(self, array: int, cols: int) -> tuple[int, int]:
        """Return an array's lowest element and the one behind its highest, from its first row."""
        ends = [
            (size - 1) * step for size, step in zip(self.sizes, self.strides[array], strict=True)
        ]
        return sum(min(0, end) for end in ends), sum(max(0, end) for end in ends) + cols


def outer_strides(
    shape: Sequence[int], byte_strides: Sequence[int], itemsize: int
) -> tuple[int, ...] | None:
    """Return the strides of all axes but the last in elements; None if a copy is needed.

    That is where the last axis is not contiguous, or a stride is no whole number of elements.
    """
    if shape[-1] > 1 and byte_strides[-1] != itemsize:
        return None
    outer = byte_strides[:-1]
    sizes = shape[:-1]
    if any(n > 1 and step % itemsize for n, step in zip(sizes, outer, strict=True)):
        return None
    return tuple(step // itemsize for step in outer)
