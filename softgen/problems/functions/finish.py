"""finish: exp(x - m) / d, the softmax of a piece of rows whose pairs (m, d) are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.problems.dtypes import DType, FloatType
from softgen.problems.functions.base import Function, element, element_result, row_input
from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.functions.partial import pair
from softgen.problems.operands import Limit, Measure, Operand


@dataclass(frozen=True)
class Finish(Function):
    """softmax of each row from its pair, which is given."""

    name = "finish"
    formula = "y = exp(x - maxima) / sums"
    call = "softgen.finish(x, m, d)"
    non_finite = "a pair of NaN, or of a row of only -inf, gives NaN everywhere; else -inf gives 0"
    reduces = False

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, maxima, sums and y."""
        return (
            element("x", dtype, "X"),
            row_input("maxima", compute, "Compute"),
            row_input("sums", compute, "Compute"),
            element_result("y", out_dtype, "Y", Measure.VALUE, "x", Limit.UP_TO_ONE),
        )

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return y; NaN where the pair is NaN or is that of a row of -inf, (-inf, 0)."""
        import numpy as np

        x, m, d = inputs
        shift = np.where(np.isneginf(m), 0, m)[..., None]
        return (np.exp(x - shift) / d[..., None],)

    def other_inputs(self, x: Any) -> tuple[Any, ...]:
        """Return the pairs of the rows themselves."""
        return pair(x)


FINISH = Finish()
FUNCTIONS = (FINISH,)

EXHIBITS = (
    Exhibit("a quarter of the Llama 3 vocabulary, results", FINISH, "bfloat16", 4096, 32064),
)
