"""Operands: the arrays that a kernel takes, in one list from which everything else follows.

The kernel's signature and header, the manifest, the launcher, the tuner's buffers, the emulator's
job and the reference all read that list; none of them knows how many arrays there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from softgen.spec.dtypes import DType


class Extent(str, Enum):
    """How many elements an operand has."""

    ELEMENT = "element"  # rows x cols
    ROW = "row"  # one per row


class Measure(str, Enum):
    """What the error of a result is relative to."""

    VALUE = "value"  # to the result itself, above the smallest that a type keeps its digits for
    LOGARITHM = "logarithm"  # to 1 + |result|
    EXACT = "exact"  # no error at all


@dataclass(frozen=True)
class Operand:
    """One array.

    Attributes:
        name: as in the kernel's signature.
        dtype: element type.
        extent: rows x cols, or one per row.
        result: whether the kernel writes it; otherwise it only reads it.
        cuda: the C++ type as the text names it: X, Y, or Compute.
        may_be: the operand whose memory it may share, element by element (in place).
        measure: of a result, what its error is relative to.
    """

    name: str
    dtype: DType
    extent: Extent
    result: bool
    cuda: str
    may_be: str = ""
    measure: Measure = Measure.VALUE

    @property
    def parameter(self) -> str:
        """The C++ parameter."""
        return f"{'' if self.result else 'const '}{self.cuda}* {self.name}"

    def elements_per_row(self, cols: int) -> int:
        """Return how many elements belong to a row of `cols` columns."""
        return cols if self.extent is Extent.ELEMENT else 1

    def bytes_per_row(self, cols: int) -> int:
        """Return the bytes that belong to a row of `cols` columns."""
        return self.elements_per_row(cols) * self.dtype.itemsize

    def shape(self, rows: int, cols: int) -> tuple[int, ...]:
        """Return the shape for so many rows."""
        return (rows, cols) if self.extent is Extent.ELEMENT else (rows,)
