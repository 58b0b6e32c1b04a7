"""logmeanexp: log(mean(exp(x))), one number a row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softgen import register
from softgen.problems.dtypes import DType, FloatType
from softgen.problems.functions.base import Function, element, row_result
from softgen.problems.functions.softmax import log_sum_exp
from softgen.problems.operands import Measure, Operand


@dataclass(frozen=True)
class LogMeanExp(Function):
    """log(mean(exp(x))) of each row."""

    name = "logmeanexp"  # as in names of kernels
    formula = "lme = log(mean(exp(x)))"  # for the header of an emitted file
    keeps_infinity = True  # +inf in a row gives +inf, not NaN
    shardable = False  # kCols are the columns of one device
    barred = frozenset({"sink"})  # whether it counts as a column is not said

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x and lme."""
        return (element("x", dtype, "X"), row_result("lme", out_dtype, "Y", Measure.LOGARITHM))

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return lme: -inf for a row of -inf, +inf where there is +inf, NaN where there is NaN."""
        import numpy as np

        (x,) = inputs
        return (log_sum_exp(x) - np.log(x.dtype.type(x.shape[-1])),)


register(LogMeanExp(), templates=Path(__file__).parent / "templates")
