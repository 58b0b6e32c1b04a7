"""entropy: -sum(p log p) of p = softmax(x), one number a row; x is read once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.problems.dtypes import DType, FloatType
from softgen.problems.functions.base import Function, element, lse_result, row_result
from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.operands import Limit, Measure, Operand
from softgen.problems.parts import MAX_SUM_DOT


@dataclass(frozen=True)
class Entropy(Function):
    """log d - s / d of each row: d = sum(exp(x - m)), s = sum((x - m) exp(x - m)), m = max(x).

    Attributes:
        lse: whether log(sum(exp(x))) of the row is a second result, in the type of the arithmetic.
    """

    lse: bool = False

    template = "entropy"
    like = "logsumexp"  # whose bytes it moves with the same launch
    part = MAX_SUM_DOT

    @property
    def name(self) -> str:
        """As in names of kernels."""
        return "entropy_lse" if self.lse else "entropy"

    @property
    def formula(self) -> str:
        """What the kernel computes."""
        more = ", lse = log(sum(exp(x)))" if self.lse else ""
        return f"entropy = -sum(p log p) in nats, p = softmax(x){more}"

    @property
    def call(self) -> str:
        """How people call it on arrays."""
        return f"softgen.entropy(x{', return_lse=True' if self.lse else ''})"

    @property
    def non_finite(self) -> str:
        """What a row with NaN or an infinity gives, for the header of an emitted file."""
        lse = " (lse: NaN, +inf, -inf)" if self.lse else ""
        return f"a row with NaN or +inf, or of only -inf, gives NaN{lse}; else -inf adds nothing"

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, the entropy and, if asked for, lse."""
        x = element("x", dtype, "X")
        entropy = entropy_result(out_dtype)
        lse = lse_result(compute)
        return (x, entropy, lse) if self.lse else (x, entropy)

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the entropy, NaN where softmax is, and lse if asked for."""
        from softgen.problems.functions.softmax import log_sum_exp

        (x,) = inputs
        return (entropy_of(x), log_sum_exp(x)) if self.lse else (entropy_of(x),)


def entropy_result(out_dtype: FloatType) -> Operand:
    """Return the entropy of each row."""
    return row_result("entropy", out_dtype, "Y", Measure.LOGARITHM, limit=Limit.AT_LEAST_ZERO)


def entropy_of(x: Any) -> Any:
    """Return -sum(p log p) of each row, in nats: 0 log 0 is 0."""
    import numpy as np

    z = x - x.max(axis=-1, keepdims=True)
    terms = np.exp(z)
    d = terms.sum(axis=-1)
    return np.log(d) - np.where(terms == 0, 0, z * terms).sum(axis=-1) / d


ENTROPY = Entropy()
FUNCTIONS = (ENTROPY, Entropy(lse=True))

EXHIBITS = (Exhibit("Qwen vocabulary, entropies", ENTROPY, "bfloat16", 8192, 151936),)
