"""softmax: exp(x - max) / sum(exp(x - max)), and with it, if asked for, log(sum(exp(x)))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.spec.dtypes import DType
from softgen.spec.functions.base import Function, element, element_result, row_result
from softgen.spec.operands import Measure, Operand


@dataclass(frozen=True)
class Softmax(Function):
    """softmax of each row.

    Attributes:
        lse: whether log(sum(exp(x))) of the row is a second result, in the type of the arithmetic.
    """

    lse: bool = False

    @property
    def name(self) -> str:
        """As in names of kernels."""
        return "softmax_lse" if self.lse else "softmax"

    @property
    def formula(self) -> str:
        """What the kernel computes."""
        return "y = softmax(x)" + (", lse = log(sum(exp(x)))" if self.lse else "")

    @property
    def template(self) -> str:
        """The stem of its template."""
        return "softmax"

    @property
    def like(self) -> str:
        """The function whose tuned settings it takes where it has none of its own."""
        return "softmax"

    @property
    def own_terms(self) -> bool:
        """Whether its template has terms of its own where results are float32, or x is float16."""
        return True

    def operands(self, dtype: DType, out_dtype: DType, compute: DType) -> tuple[Operand, ...]:
        """Return x, y and, if asked for, lse."""
        x = element("x", dtype, "X")
        y = element_result("y", out_dtype, "Y", Measure.VALUE, may_be="x")
        lse = row_result("lse", compute, "Compute", Measure.LOGARITHM)
        return (x, y, lse) if self.lse else (x, y)

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return y and, if asked for, lse.

        A row with NaN or +inf, or with nothing but -inf, gives NaN everywhere. Elsewhere -inf gives
        exactly 0.
        """
        import numpy as np

        (x,) = inputs
        maximum = x.max(axis=-1, keepdims=True)
        # NaN wins the maximum and inf - inf is NaN: no kind of row needs a case of its own.
        terms = np.exp(x - maximum)
        total = terms.sum(axis=-1, keepdims=True)
        y = np.where(np.isnan(total), np.nan, terms / total)
        return (y, log_sum_exp(x)) if self.lse else (y,)


def log_sum_exp(x: Any) -> Any:
    """Return log(sum(exp(x))) of each row: -inf for one of -inf, +inf where there is +inf."""
    import numpy as np

    maximum = x.max(axis=-1, keepdims=True)
    shift = np.where(np.isinf(maximum), 0, maximum)
    return (shift + np.log(np.exp(x - shift).sum(axis=-1, keepdims=True)))[..., 0]


SOFTMAX = Softmax()
FUNCTIONS = (SOFTMAX, Softmax(lse=True))
