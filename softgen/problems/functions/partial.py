"""partial: the pair (max(x), sum(exp(x - max))) of each row, which pieces of a row combine by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.problems.dtypes import DType, FloatType
from softgen.problems.functions.base import Function, element, row_result
from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.operands import Limit, Measure, Operand


@dataclass(frozen=True)
class Partial(Function):
    """The pair (m, d) of each row (Milakov & Gimelshein, arXiv 1805.02867, section 3.1)."""

    name = "partial"
    formula = "maxima = max(x), sums = sum(exp(x - max(x)))"
    call = "softgen.partial(x)"
    non_finite = "a row with NaN or +inf gives NaN twice, one of only -inf gives -inf and 0"

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, maxima and sums."""
        maxima = row_result("maxima", compute, "Compute", Measure.EXACT)
        sums = sums_result(compute)
        return (element("x", dtype, "X"), maxima, sums)

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return m and d: (-inf, 0) for a row of -inf, NaN twice where there is NaN or +inf."""
        (x,) = inputs
        return pair(x)


def sums_result(compute: DType) -> Operand:
    """Return the sum of exp(x - max) of each row, of which the largest element's term is 1."""
    return row_result("sums", compute, "Compute", Measure.VALUE, limit=Limit.AT_LEAST_ONE)


def pair(x: Any, weights: Any = 1) -> tuple[Any, Any]:
    """Return m and d of each row: the largest x, and the sum of weights * exp(x - m)."""
    import numpy as np

    maximum = x.max(axis=-1, keepdims=True)
    shift = np.where(np.isneginf(maximum), 0, maximum)
    d = (weights * np.exp(x - shift)).sum(axis=-1)
    return np.where(np.isnan(d), np.nan, maximum[..., 0]), d


PARTIAL = Partial()
FUNCTIONS = (PARTIAL,)

EXHIBITS = (
    Exhibit("a quarter of the Llama 3 vocabulary, pairs", PARTIAL, "bfloat16", 4096, 32064),
)
