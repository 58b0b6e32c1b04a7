"""What a row is beside its elements: a logit without a column, and what an empty one gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.problems.dtypes import DType
from softgen.problems.hooks.base import Beside
from softgen.problems.hooks.places import Place, one_term
from softgen.problems.operands import Extent, Operand


@dataclass(frozen=True)
class Sink(Beside):
    """A logit of the row (or its head) that takes part in the sum and has no column.

    Attributes:
        of: the type of the logits.
    """

    of: DType = DType.FLOAT32

    kind = "sink"
    formula = "x and sink[row]"
    sinks = True
    by_row = True  # a logit a row

    @property
    def name(self) -> str:
        """As in names of kernels."""
        return f"sink{self.of.short}"

    def operands(self, compute: DType) -> tuple[Operand, ...]:
        """Return the logits, and where rows find theirs."""
        sink = Operand("sink", self.of, Extent.BROADCAST, False, self.of.cuda)
        return (sink, *one_term("sink"))

    def example(self, rows: int, cols: int) -> tuple[Any, ...]:
        """Return logits below, among and above the elements, and infinities."""
        import numpy as np

        return (np.array([0.5, -3.0, 20.0, -np.inf, 4.0, np.inf]), 2, 6)

    def column(self, rows: int, *values: Any) -> Any:
        """Return the logits."""
        import numpy as np

        sink, every, count = values
        return sink.reshape(-1)[Place(int(every), int(count), 1).of(np.arange(rows))]


@dataclass(frozen=True)
class ZeroRows(Beside):
    """A row of nothing but -inf gives 0 (log_softmax: -inf), and not NaN. It hides no NaN."""

    name = "zeroempty"
    formula = "0 for empty rows"
    zeroes = True

    def operands(self, compute: DType) -> tuple[Operand, ...]:
        """Return nothing: it is the text that differs."""
        return ()

    def example(self, rows: int, cols: int) -> tuple[Any, ...]:
        """Return nothing."""
        return ()
