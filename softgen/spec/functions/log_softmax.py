"""log_softmax: (x - max) - log(sum(exp(x - max))), and with it, if asked for, log(sum(exp(x)))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.spec.dtypes import DType
from softgen.spec.functions.base import Function, element, element_result, row_result
from softgen.spec.functions.exhibit import Exhibit
from softgen.spec.functions.softmax import log_sum_exp
from softgen.spec.operands import Measure, Operand


@dataclass(frozen=True)
class LogSoftmax(Function):
    """log_softmax of each row.

    Attributes:
        lse: whether log(sum(exp(x))) of the row is a second result, in the type of the arithmetic.
    """

    lse: bool = False

    @property
    def name(self) -> str:
        """As in names of kernels."""
        return "log_softmax_lse" if self.lse else "log_softmax"

    @property
    def formula(self) -> str:
        """What the kernel computes."""
        return "y = log_softmax(x)" + (", lse = log(sum(exp(x)))" if self.lse else "")

    @property
    def template(self) -> str:
        """The stem of its template."""
        return "log_softmax"

    @property
    def like(self) -> str:
        """The function whose tuned settings it takes: it moves the same bytes as softmax."""
        return "softmax"

    def operands(self, dtype: DType, out_dtype: DType, compute: DType) -> tuple[Operand, ...]:
        """Return x, y and, if asked for, lse."""
        x = element("x", dtype, "X")
        y = element_result("y", out_dtype, "Y", Measure.LOGARITHM, may_be="x")
        lse = row_result("lse", compute, "Compute", Measure.LOGARITHM)
        return (x, y, lse) if self.lse else (x, y)

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return y and, if asked for, lse.

        A row with NaN or +inf, or with nothing but -inf, gives NaN everywhere. Elsewhere -inf gives
        -inf.
        """
        import numpy as np

        (x,) = inputs
        shifted = x - x.max(axis=-1, keepdims=True)
        total = np.exp(shifted).sum(axis=-1, keepdims=True)
        y = np.where(np.isnan(total), np.nan, shifted - np.log(total))
        return (y, log_sum_exp(x)) if self.lse else (y,)


LOG_SOFTMAX = LogSoftmax()
FUNCTIONS = (LOG_SOFTMAX, LogSoftmax(lse=True))

EXHIBITS = (
    Exhibit("CIFAR-10 classes", LOG_SOFTMAX, "float32", 65536, 10),
    Exhibit("ImageNet classes, training loss", LOG_SOFTMAX, "float16", 1024, 1000),
    Exhibit("Llama 2 vocabulary", LOG_SOFTMAX, "bfloat16", 4096, 32000),
    Exhibit("GPT-2 vocabulary, an odd width", LOG_SOFTMAX, "float32", 2048, 50257),
    Exhibit("scientific data, log-likelihoods", LOG_SOFTMAX, "float64", 4096, 2000),
)
