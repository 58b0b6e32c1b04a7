"""ceiling: min(x, ceiling), so that no logit stands out by more than its distance from others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softgen import register
from softgen.problems.dtypes import DType
from softgen.problems.hooks.base import Hook
from softgen.problems.operands import Extent, Operand


@dataclass(frozen=True)
class Ceiling(Hook):
    """Lower elements to at most a number. NaN and -inf stay."""

    name = "ceiling"  # as in names of kernels
    formula = "min(x, ceiling)"  # for the header of an emitted file
    placed = False  # it does not ask for the column of an element

    def operands(self, compute: DType) -> tuple[Operand, ...]:
        """Return the number."""
        accepts = "any number"
        return (Operand("ceiling", compute, Extent.NUMBER, False, "Compute", accepts=accepts),)

    def example(self, rows: int, cols: int) -> tuple[Any, ...]:
        """Return a number that lowers some elements of a test."""
        return (0.5,)

    def enter(self, x: Any, *values: Any) -> Any:
        """Return min(x, ceiling)."""
        import numpy as np

        return np.minimum(x, x.dtype.type(values[0]))

    def slope(self, entered: Any, *values: Any) -> Any:
        """Return 1 below the number and 0 at it."""
        return (entered < values[0]).astype(entered.dtype)


register(Ceiling(), templates=Path(__file__).parent / "templates")
