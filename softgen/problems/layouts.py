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
from softgen.problems.dtypes import Integer
from softgen.problems.operands import Extent, Operand

# The number of a shard's first column among those of all shards: an operand of kernels that look
# for a column of a row.
FIRST = "first"


class Layout(abc.ABC):
    """Where the elements of a row lie: by default in contiguous rows.

    A subclass is frozen; its fields are compile-time.
    """

    @property
    def like(self) -> Layout:
        """The layout whose tuned settings it takes."""
        return self

    def numbers(self, arrays: Sequence[Operand]) -> tuple[Operand, ...]:
        """Return the numbers that tell a kernel where rows of `arrays` lie; a caller gives none."""
        return ()

    @property
    def step(self) -> int:
        """What the number of rows is a multiple of."""
        return 1

    @property
    def has_one_order(self) -> bool:
        """Whether every kernel sums all rows in one order, wherever they lie."""
        return False

    @property
    def starts_alike(self) -> bool:
        """Whether a row of x and that of y start as far behind a boundary of packs."""
        return True

    @property
    def sharded(self) -> bool:
        """Whether several devices hold rows together."""
        return False

    def pitch(self, cols: int) -> int:
        """Return what the offset of aligned packs is a multiple of, in elements."""
        return cols

    def col_offset(self) -> str:
        """Return how far behind a row's first element column `col` lies, in C++."""
        return "col"

    def last_axes(self, cols: int) -> tuple[int, ...]:
        """Return the lengths of the last axes of an array that a kernel takes."""
        return (cols,)

    def row_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of such an array without the axis that is reduced."""
        return shape[:-1]

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """As in names of kernels, behind the columns; empty for the usual layout."""

    @property
    def command_options(self) -> str:
        """The options of the command line that ask for it; empty for the usual layout."""
        return ""

    def accepts(self, number: str) -> str:
        """Return what one of those numbers may be, in words."""
        return ""

    @property
    def shape_rule(self) -> str:
        """The shape of an array of elements, for the header of an emitted file.

        {cols} stands for the columns.
        """
        return "[rows][{cols}], contiguous"

    def in_memory(self, rows: Any) -> Any:
        """Return an array of (rows, cols) as it lies in memory, in C order."""
        return rows

    def from_memory(self, array: Any, rows: int, cols: int) -> Any:
        """Return what lies in memory so as (rows, cols): the inverse of `in_memory`."""
        return array.reshape(rows, cols)


@dataclass(frozen=True)
class Rows(Layout):
    """The last axis of a contiguous array: rows of contiguous elements, one after another."""

    label = ""  # names of kernels are for this layout


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

    like = ROWS  # rows that follow each other: the same kernel but for where rows start
    starts_alike = False  # each array has its base and its strides

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
    def command_options(self) -> str:
        """For example --strided 1."""
        return f"--strided {self.outer}"

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
        """Return what a size is, at least 1, and a stride, in elements."""
        if number in self.sizes:
            return "at least 1"
        axis = number[-1]
        return f"elements along axis {axis}" if axis.isdigit() else "elements from row to row"

    @property
    def shape(self) -> tuple[str, ...]:
        """The outer axes: their sizes, in words."""
        behind = " / ".join(("rows", *self.sizes))
        return (behind, *self.sizes)

    @property
    def shape_rule(self) -> str:
        """The shape, and how far apart rows are."""
        axes = "".join(f"[{size}]" for size in self.shape)
        return f"{axes}[{{cols}}], strided"


WIDTH = "cols"  # the number of a launch that says how many columns there are


@dataclass(frozen=True)
class AnyWidth(Layout):
    """Contiguous rows, one after another, whose width is a number of a launch.

    A problem's `cols` are the most that there may be, and rows start anywhere. It is for what
    serves widths that nobody knows yet; a kernel of one width is faster.
    """

    label = "anywidth"
    like = ROWS  # rows of a known width
    # The shape, of which the width is a number behind the arrays.
    shape_rule = "[rows][cols], contiguous, cols at most {cols}"

    def numbers(self, arrays: Sequence[Operand]) -> tuple[Operand, ...]:
        """Return the number of columns."""
        return (Operand(WIDTH, Integer.INT64, Extent.NUMBER, result=False, cuda="long long"),)

    def pitch(self, cols: int) -> int:
        """Return one element: rows start anywhere."""
        return 1

    def accepts(self, number: str) -> str:
        """Return what the width is."""
        return "elements in a row, at least 1"


MOST_INNER = 2**40


@dataclass(frozen=True)
class Columns(Layout):
    """An axis of a contiguous array with other axes behind it: memory is (outer, cols, inner).

    There are outer * inner rows, numbered as (outer, inner), which is how their results lie.

    Attributes:
        inner: elements between two neighbours of a row, 2 to 2**40.
    """

    inner: int

    has_one_order = True  # a thread has the same columns of all its rows, wherever memory starts

    def __post_init__(self) -> None:
        if type(self.inner) is not int:
            raise InvalidTypeError(f"inner must be an int, got {self.inner!r}")
        if not 2 <= self.inner <= MOST_INNER:
            raise InvalidValueError(
                f"inner must be from 2 to 2**40, got {self.inner}; with 1 an axis is the last, "
                "whose layout is Rows()"
            )

    @property
    def label(self) -> str:
        """For example in1024."""
        return f"in{self.inner}"

    @property
    def command_options(self) -> str:
        """For example --inner 1024."""
        return f"--inner {self.inner}"

    @property
    def step(self) -> int:
        """The rows of one outer index."""
        return self.inner

    def pitch(self, cols: int) -> int:
        """Return inner: packs lie along it, whatever the columns."""
        return self.inner

    def col_offset(self) -> str:
        """Return the offset of a column."""
        return "col * kInner"

    def last_axes(self, cols: int) -> tuple[int, ...]:
        """Return the columns and inner."""
        return (cols, self.inner)

    def row_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape without the last axis but one."""
        return (*shape[:-2], shape[-1])

    @property
    def shape_rule(self) -> str:
        """The shape."""
        return f"[rows / {self.inner}][{{cols}}][{self.inner}], contiguous"

    def in_memory(self, rows: Any) -> Any:
        """Return the array as (outer, cols, inner)."""
        return rows.reshape(-1, self.inner, rows.shape[-1]).swapaxes(1, 2)

    def from_memory(self, array: Any, rows: int, cols: int) -> Any:
        """Return (outer, cols, inner) as (rows, cols)."""
        return array.reshape(-1, cols, self.inner).swapaxes(1, 2).reshape(rows, cols)


def layout_behind(inner: int) -> Layout:
    """Return the layout of an axis with `inner` elements behind it: Rows() where that is 1."""
    return ROWS if type(inner) is int and inner == 1 else Columns(inner)


def layout_from(inner: int, strided: int, sharded: bool = False) -> Layout:
    """Return the layout that a caller asks for by these; 1, 0 and False are of contiguous rows.

    Raises InvalidValueError for two at once: views have their rows on the last axis, and shards are
    contiguous.
    """
    behind, views = layout_behind(inner), Strided.of(strided)
    if sharded:
        if behind is not ROWS or views is not ROWS:
            raise InvalidValueError(
                f"inner={inner}, strided={strided} and sharded: shards are contiguous rows; give "
                "sharded alone"
            )
        return layout_of("sharded")
    if behind is not ROWS and views is not ROWS:
        raise InvalidValueError(
            f"inner={inner} and strided={strided}: columns are of contiguous arrays; give one"
        )
    return behind if views is ROWS else views


# As names of kernels have it.
LABEL = rf"(?:strided[1-{MOST_OUTER}]|in\d{{1,13}}|anywidth|sharded)"


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
            f"unknown layout {value!r}; known are '', labels such as strided1 and in1024, "
            "'anywidth' and 'sharded'"
        )
    if value == "sharded":
        from softgen.problems.shards import SHARDS

        return SHARDS
    if value == AnyWidth().label:
        return AnyWidth()
    if value.startswith("in"):
        return Columns(int(value[2:]))
    return Strided(int(value[-1]))
