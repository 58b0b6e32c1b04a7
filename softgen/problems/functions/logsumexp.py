"""logsumexp: log(sum(exp(x))), one number a row; x is read once and no element is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.problems.dtypes import DType, FloatType
from softgen.problems.functions.base import Function, element, lse_result
from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.functions.softmax import log_sum_exp
from softgen.problems.operands import Operand


@dataclass(frozen=True)
class LogSumExp(Function):
    """log(sum(exp(x))) of each row."""

    name = "logsumexp"
    formula = "lse = log(sum(exp(x)))"
    call = "softgen.logsumexp(x)"
    non_finite = "a row with NaN gives NaN, else one with +inf gives +inf, one of only -inf -inf"
    keeps_infinity = True

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x and lse."""
        return (element("x", dtype, "X"), lse_result(out_dtype, "Y"))

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return lse: -inf for a row of -inf, +inf where there is +inf, NaN where there is NaN."""
        (x,) = inputs
        return (log_sum_exp(x),)


LOGSUMEXP = LogSumExp()
FUNCTIONS = (LOGSUMEXP,)

EXHIBITS = (
    Exhibit("Llama 3 vocabulary, log-likelihoods", LOGSUMEXP, "bfloat16", 4096, 128256),
    Exhibit("scores of 1024 keys, what softmax divides by", LOGSUMEXP, "float32", 4096, 1024),
)
