"""Run-time ends of a row: what is behind is hidden, and not loaded."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

from softgen.problems.dtypes import DType, Integer
from softgen.problems.hooks.base import Hook
from softgen.problems.hooks.places import number, one_term
from softgen.problems.hooks.scale import row_values
from softgen.problems.operands import Extent, Operand


@dataclass(frozen=True)
class End(Hook):
    """Base of hooks that end rows."""

    computes = False  # what is shown stays what it is
    ends = True
    by_row = True  # an end a row
    # Of those that are shown; rows of few elements a thread take longer than that tells.
    instructions = 3.0

    @abc.abstractmethod
    def end(self, x: Any, *values: Any) -> Any:
        """Return the first hidden column of each row, as a column; it may be outside of the row."""

    def enter(self, x: Any, *values: Any) -> Any:
        """Return what is shown."""
        import numpy as np

        shown = np.arange(x.shape[1]) < self.end(x, *values)
        return np.where(shown, x, x.dtype.type(-np.inf))


@dataclass(frozen=True)
class Lengths(End):
    """The number of elements that are shown, a number a row.

    Attributes:
        of: the type of the numbers.
    """

    of: Integer = Integer.INT64

    kind = "lengths"
    formula = "x[:lengths[row]]"

    @property
    def name(self) -> str:
        """As in names of kernels."""
        return f"lengths{self.of.short}"

    def operands(self, compute: DType) -> tuple[Operand, ...]:
        """Return the numbers, and where rows find theirs."""
        lengths = Operand("lengths", self.of, Extent.BROADCAST, False, self.of.cuda)
        return (lengths, *one_term("lengths"))

    def example(self, rows: int, cols: int) -> tuple[Any, ...]:
        """Return none, one, a third, all and more than all, each for two rows."""
        import numpy as np

        return (np.array([cols, 1, cols // 3, 0, cols + 5, cols - 1, -2]), 2, 7)

    def end(self, x: Any, *values: Any) -> Any:
        """Return the lengths."""
        return row_values(x, *values)


@dataclass(frozen=True)
class Causal(End):
    """A row at position p, its number modulo the queries, shows p + offset + 1 elements."""

    name = "causal"
    formula = "x[:row % queries + causal_offset + 1]"

    def operands(self, compute: DType) -> tuple[Operand, ...]:
        """Return the number of queries, and the offset."""
        return (
            number("queries", "above 0: rows until a position comes again", divides=True),
            number("causal_offset", "any: position p sees columns 0 to p + causal_offset"),
        )

    def example(self, rows: int, cols: int) -> tuple[Any, ...]:
        """Return queries of which the first see nothing, and the last almost all."""
        return (11, -2) if cols < 16 else (11, cols - 10)

    def end(self, x: Any, *values: Any) -> Any:
        """Return p + offset + 1."""
        import numpy as np

        queries, offset = map(int, values)
        return (np.arange(len(x)) % queries + offset + 1)[:, None]
