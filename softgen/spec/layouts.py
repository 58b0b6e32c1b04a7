"""Layouts: where the elements of a row lie in memory.

A row is what is reduced. `rows` numbers them in the order of the row results, whatever the layout.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.spec.dtypes import Integer
from softgen.spec.operands import Extent, Operand


@dataclass(frozen=True)
class Layout(abc.ABC):
    """Where the elements of a row lie. A subclass is frozen; its fields are compile-time."""

    @property
    def like(self) -> Layout:
        """The layout whose tuned settings it takes."""
        return self

    def numbers(self, arrays: Sequence[Operand]) -> tuple[Operand, ...]:
        """Return the numbers that tell a kernel where rows of `arrays` lie; a caller gives none."""
        return ()

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """As in names of kernels, behind the columns; empty for the usual layout."""

    def accepts(self, number: str) -> str:
        """Return what one of those numbers may be, in words."""
        return ""

    @property
    @abc.abstractmethod
    def shape_rule(self) -> str:
        """The shape of an array of elements, for the header of an emitted file.

        {cols} stands for the columns, and {name} for the array's name.
        """

    @abc.abstractmethod
    def in_memory(self, rows: Any) -> Any:
        """Return an array of (rows, cols) as it lies in memory, in C order."""

    @abc.abstractmethod
    def from_memory(self, array: Any, rows: int, cols: int) -> Any:
        """Return what lies in memory so as (rows, cols): the inverse of `in_memory`."""


@dataclass(frozen=True)
class Rows(Layout):
    """The last axis of a contiguous array: rows of contiguous elements, one after another."""

    @property
    def label(self) -> str:
        """Nothing: names of kernels are for this layout."""
        return ""

    @property
    def shape_rule(self) -> str:
        """The shape."""
        return "[rows][{cols}], contiguous"

    def in_memory(self, rows: Any) -> Any:
        """Return the array."""
        return rows

    def from_memory(self, array: Any, rows: int, cols: int) -> Any:
        """Return the array of that shape."""
        return array.reshape(rows, cols)


ROWS: Layout = Rows()

MOST_OUTER = 3


@dataclass(frozen=True)
class Strided(Layout):
    """The last axis of a view: rows of contiguous elements, each array's rows where strides say.

    The outer axes that are left when all that can be are joined have a size and, in each array, a
    stride: numbers of a launch (`Placement`). Rows are numbered in C order of those axes.

    Attributes:
        outer: how many outer axes there are, 1 to 3.
    """

    outer: int

    def __post_init__(self) -> None:
        if type(self.outer) is not int:
            raise InvalidTypeError(f"strided must be an int, got {self.outer!r}")
        if not 1 <= self.outer <= MOST_OUTER:
            raise InvalidValueError(f"strided must be from 0 to {MOST_OUTER}, got {self.outer}")

    @classmethod
    def of(cls, outer: int) -> Layout:
        """Return the layout of views with so many outer axes; with 0 that of contiguous arrays."""
        return cls(outer) if outer or type(outer) is not int else ROWS

    @property
    def label(self) -> str:
        """For example strided1."""
        return f"strided{self.outer}"

    @property
    def like(self) -> Layout:
        """Rows that follow each other: the same kernel but for where rows start."""
        return ROWS

    @property
    def sizes(self) -> tuple[str, ...]:
        """What the sizes of the outer axes are called, but for the first, which is not asked."""
        return tuple(f"size{axis}" for axis in range(1, self.outer))

    def strides(self, name: str) -> tuple[str, ...]:
        """Return what the strides of an array are called."""
        if self.outer == 1:
            return (f"{name}_stride",)
        return tuple(f"{name}_stride{axis}" for axis in range(self.outer))

    def numbers(self, arrays: Sequence[Operand]) -> tuple[Operand, ...]:
        """Return the sizes, then the strides of each array with an element a column."""
        whole = [array.name for array in arrays if array.extent is Extent.ELEMENT]
        names = [*self.sizes, *(stride for name in whole for stride in self.strides(name))]
        return tuple(
            Operand(name, Integer.INT64, Extent.NUMBER, result=False, cuda="long long")
            for name in names
        )

    def accepts(self, number: str) -> str:
        """Return what a size or a stride may be."""
        return "at least 1" if number in self.sizes else "in elements"

    @property
    def shape(self) -> tuple[str, ...]:
        """The outer axes: their sizes, in words."""
        behind = " / ".join(("rows", *self.sizes))
        return (behind, *self.sizes)

    @property
    def shape_rule(self) -> str:
        """The shape, and how far apart rows are."""
        axes = "".join(f"[{size}]" for size in self.shape)
        return f"{axes}[{{cols}}], strides {', '.join(self.strides('{name}'))}, 1"

    def in_memory(self, rows: Any) -> Any:
        """Return the array: where its rows lie is the launch's."""
        return rows

    def from_memory(self, array: Any, rows: int, cols: int) -> Any:
        """Return the array of that shape."""
        return array.reshape(rows, cols)


# As names of kernels have it.
LABEL = rf"strided[1-{MOST_OUTER}]"


def layout_of(value: Layout | str) -> Layout:
    """Return the layout whose label is `value`; InvalidValueError says what is accepted."""
    if isinstance(value, Layout):
        return value
    if not isinstance(value, str):
        raise InvalidTypeError(f"a layout is a Layout or its label, got {value!r}")
    if not value:
        return ROWS
    if not re.fullmatch(LABEL, value):
        raise InvalidValueError(
            f"unknown layout {value!r}; known are '' and labels such as strided1"
        )
    return Strided(int(value[-1]))
