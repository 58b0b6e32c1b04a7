"""merge: the pair (m, d) of whole rows from the pairs of their pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.problems.dtypes import DType, FloatType
from softgen.problems.functions.base import Function, element, row_result
from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.functions.partial import pair, sums_result
from softgen.problems.operands import Measure, Operand


@dataclass(frozen=True)
class Merge(Function):
    """One pair of many a row: the monoid of Milakov & Gimelshein, arXiv 1805.02867, section 3.1."""

    name = "merge"
    formula = "maxima, sums = merge of the pairs (ms, ds)"
    non_finite = "a row with NaN or +inf gives NaN twice, one of only -inf gives -inf and 0"

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return the pieces' maxima and sums, a column a piece, then maxima and sums."""
        return (
            element("ms", dtype, "X"),
            element("ds", dtype, "X"),
            row_result("maxima", compute, "Compute", Measure.EXACT),
            sums_result(compute),
        )

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the pair: (-inf, 0) where all are, NaN twice where there is NaN or +inf."""
        m, d = inputs
        return pair(m, d)

    def other_inputs(self, x: Any) -> tuple[Any, ...]:
        """Return sums that pieces with the maxima `x` may have."""
        import numpy as np

        finite = np.where(np.isfinite(x), x, 0)
        return (np.where(np.isneginf(x), 0, 1 + abs(finite) % 7),)


MERGE = Merge()
FUNCTIONS = (MERGE,)

EXHIBITS = (Exhibit("pairs of 64 pieces", MERGE, "float32", 65536, 64, "safe"),)
