"""Operands: the arrays and numbers that a kernel takes, in one list that everything follows from.

The kernel's signature and header, the manifest, the launcher, the tuner's buffers, the emulator's
job and the reference all read that list; none of them knows how many arrays there are.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum

from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.dtypes import DType, ElementType, FloatType, Integer

# How a number of a type lies in the eight bytes that a launch takes of it.
_BITS: dict[ElementType, struct.Struct] = {
    kind: struct.Struct(f"<{code}{8 - size}x")
    for kind, code, size in (
        (DType.FLOAT32, "f", 4),
        (DType.FLOAT64, "d", 8),
        (Integer.INT32, "i", 4),
        (Integer.INT64, "q", 8),
        (Integer.BOOL, "?", 1),
    )
}
_WORD = struct.Struct("<Q")


class Extent(str, Enum):
    """How many elements an operand has."""

    ELEMENT = "element"  # rows x cols
    ROW = "row"  # one per row, or a few (`Operand.width`)
    NUMBER = "number"  # one for all rows, passed by value
    COLUMN = "column"  # an array of one per column, for all rows
    BROADCAST = "broadcast"  # an array of its caller's size, of which numbers say what a row finds


class Measure(str, Enum):
    """What the error of a result is relative to."""

    VALUE = "value"  # to the result itself, above the smallest that a type keeps its digits for
    LOGARITHM = "logarithm"  # to 1 + |result|
    TERMS = "terms"  # to the size of what is added up, which Function.magnitudes gives
    EXACT = "exact"  # no error at all


class Limit(str, Enum):
    """What a result never passes, not by its last bit, where its exact value does not."""

    NONE = ""
    AT_LEAST_ZERO = "at least 0"
    AT_MOST_ZERO = "at most 0"
    AT_LEAST_ONE = "at least 1"
    UP_TO_ONE = "from 0 to 1"
    AT_LEAST_MAXIMUM = "at least the row's largest element"


@dataclass(frozen=True)
class Operand:
    """One array, or one number.

    Attributes:
        name: as in the kernel's signature.
        dtype: element type: a float for what is computed with, else an integer or a boolean.
        extent: rows x cols, one per row or per column, one number, or as many as the caller has.
        result: whether the kernel writes it; otherwise it only reads it.
        cuda: the C++ type as the text names it: X, Y, or Compute.
        may_be: the operand whose memory it may share, element by element (in place).
        measure: of a result, what its error is relative to.
        accepts: of a number, which it may be, in words.
        width: elements that a row has, where the extent is that of rows.
        default: of a number, what it is where a command line does not say it; None for no such.
        divides: of a number, whether rows are divided by it in 32 bits: it is 1 to 2^31 - 1.
        limit: of a result, what it never passes.
    """

    name: str
    dtype: ElementType
    extent: Extent
    result: bool
    cuda: str
    may_be: str = ""
    measure: Measure = Measure.VALUE
    accepts: str = ""
    width: int = 1
    default: float | None = None
    divides: bool = False
    limit: Limit = Limit.NONE

    @property
    def behind(self) -> tuple[int, ...]:
        """The axes behind those of the rows, where each row has several elements."""
        return (self.width,) if self.width > 1 else ()

    @property
    def parameter(self) -> str:
        """The C++ parameter."""
        if self.extent is Extent.NUMBER:
            return f"{self.cuda} {self.name}"
        return f"{'' if self.result else 'const '}{self.cuda}* {self.name}"

    @property
    def shared(self) -> bool:
        """Whether all rows have the same array, or number."""
        return self.extent in (Extent.NUMBER, Extent.COLUMN, Extent.BROADCAST)

    @property
    def float_type(self) -> FloatType:
        """The element type of a result, or of what has an element a column: those are floats."""
        assert isinstance(self.dtype, FloatType), self
        return self.dtype

    def elements_per_row(self, cols: int) -> int:
        """Return how many elements belong to a row of `cols` columns, and to no other."""
        return {Extent.ELEMENT: cols, Extent.ROW: self.width}.get(self.extent, 0)

    def bytes_per_row(self, cols: int) -> int:
        """Return the bytes that belong to a row of `cols` columns."""
        return self.elements_per_row(cols) * self.dtype.itemsize

    def shape(self, rows: int, cols: int) -> tuple[int, ...]:
        """Return the shape for so many rows; a broadcast array has that of its caller."""
        of_rows = (rows, *self.behind)
        shapes = {Extent.ELEMENT: (rows, cols), Extent.ROW: of_rows, Extent.COLUMN: (cols,)}
        return shapes.get(self.extent, ())

    def word(self, value: float) -> int:
        """Return a number as a launch takes it: its bits in the low bytes of a 64-bit word.

        Raises InvalidTypeError for what is no number of the type (a NumPy scalar is one), and
        InvalidValueError for one that the type does not hold.
        """
        try:
            word = int(_WORD.unpack(_BITS[self.dtype].pack(value))[0])
        except (struct.error, OverflowError) as error:
            if isinstance(value, int | float):
                raise InvalidValueError(
                    f"{self.name} must fit {self.dtype.value}, got {value!r}"
                ) from error
            raise InvalidTypeError(
                f"{self.name} must be one number of {self.dtype.value}, got {value!r}"
            ) from error
        if self.divides and not 1 <= value < 2**31:
            raise InvalidValueError(f"{self.name} must be from 1 to 2**31 - 1, got {value!r}")
        return word

    def require(self, dtype: object, shape: tuple[int, ...], rows: int, cols: int) -> None:
        """Raise InvalidValueError unless an array in storage form, of `dtype`, can be it."""
        from softgen.problems.storage import storage_dtype

        kind, free = storage_dtype(self.dtype), self.extent is Extent.BROADCAST
        wanted = shape if free else self.shape(rows, cols)
        if dtype != kind or shape != wanted or (free and 0 in shape):
            of = "an array with elements" if free else f"shape {wanted}"
            raise InvalidValueError(f"{self.name} must be {kind} of {of}, got {dtype} of {shape}")
