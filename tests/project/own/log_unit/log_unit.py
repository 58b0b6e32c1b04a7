"""log_unit: x - log(|exp(x)|), a function with a part of its own: (max, sum of squares)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softgen import register
from softgen.problems.dtypes import DType, FloatType
from softgen.problems.functions.base import Function, element, element_result, row_result
from softgen.problems.operands import Measure, Operand
from softgen.problems.parts import Part

MAX_SQUARES = Part(
    *("max_squares", "MaxSquares", "LongMaxSquares", "part", "(max, squares) parts"),
    members=("m", "q"),
    combines_slots=True,
)


@dataclass(frozen=True)
class LogUnit(Function):
    """The logarithms of each row's exponentials, made a vector of length 1, and of its length."""

    name = "log_unit"
    formula = "length = log(|exp(x)|), y = x - length"
    part = MAX_SQUARES
    barred = frozenset({"sink"})  # a sink, which is no column

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, y and the length."""
        return (
            element("x", dtype, "X"),
            element_result("y", out_dtype, "Y", Measure.LOGARITHM, may_be="x"),
            row_result("length", compute, "Compute", Measure.LOGARITHM),
        )

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return y and the length; NaN where log_softmax has NaN."""
        import numpy as np

        (x,) = inputs
        m = x.max(axis=-1, keepdims=True)
        z = x - np.where(m == -np.inf, 0, m)
        log_of_length = np.log((np.exp(z) ** 2).sum(axis=-1, keepdims=True)) / 2
        return (z - log_of_length, (m + log_of_length)[..., 0])


register(LogUnit(), templates=Path(__file__).parent / "templates")
