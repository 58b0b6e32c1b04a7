"""half_centered: y = x - mean(x) / 2: one input, sums as parts, results of both extents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.problems.dtypes import DType, FloatType
from softgen.problems.functions.base import Function, element, element_result, row_result
from softgen.problems.operands import Measure, Operand
from softgen.problems.parts import SUM, Part


@dataclass(frozen=True)
class HalfCentered(Function):
    """Each row less half of its mean, and the halves: a whole mean could round to infinity."""

    @property
    def name(self) -> str:
        """As in names of kernels."""
        return "half_centered"

    @property
    def formula(self) -> str:
        """What the kernel computes."""
        return "halves = mean(x) / 2, y = x - halves"

    @property
    def part(self) -> Part:
        """What a piece of a row reduces to."""
        return SUM

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, y and halves."""
        return (
            element("x", dtype, "X"),
            element_result("y", out_dtype, "Y", Measure.TERMS, may_be="x"),
            row_result("halves", compute, "Compute", Measure.TERMS),
        )

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return y and the halves; NaN in rows that are not finite."""
        import numpy as np

        (x,) = inputs
        half = (x / (2 * x.shape[-1])).sum(axis=-1, keepdims=True)
        half = np.where(np.isfinite(half), half, np.nan)
        return (x - half, half[..., 0])

    def magnitudes(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the size of what cancels in y, and in the halves."""
        (x,) = inputs
        half = (abs(x) / (2 * x.shape[-1])).sum(axis=-1, keepdims=True)
        return (abs(x) + half, half[..., 0])


FUNCTIONS = (HalfCentered(),)
