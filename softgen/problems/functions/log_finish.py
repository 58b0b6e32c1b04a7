"""log_finish: (x - m) - log(d), the log-softmax of a piece of rows whose pairs (m, d) are known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from softgen.problems.dtypes import DType, FloatType
from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.functions.finish import Finish
from softgen.problems.operands import Limit, Measure, Operand


@dataclass(frozen=True)
class LogFinish(Finish):
    """log_softmax of each row from its pair, which is given."""

    name = "log_finish"
    formula = "y = (x - maxima) - log(sums)"
    call = "softgen.finish(x, m, d, log=True)"
    like = "finish"  # whose bytes it moves with the same launch
    shifts = False  # nothing takes the place of a maximum of -inf
    non_finite = (
        "a pair of NaN, or of a row of only -inf, gives NaN everywhere; else -inf stays -inf"
    )

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, maxima, sums and y."""
        *inputs, y = super().operands(dtype, out_dtype, compute)
        return *inputs, replace(y, measure=Measure.LOGARITHM, limit=Limit.AT_MOST_ZERO)

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return y; NaN where the pair is NaN or is that of a row of -inf, (-inf, 0)."""
        import numpy as np

        x, m, d = inputs
        return ((x - m[..., None]) - np.log(d)[..., None],)


LOG_FINISH = LogFinish()
FUNCTIONS = (LOG_FINISH,)

EXHIBITS = (Exhibit("a shard of a vocabulary, logarithms", LOG_FINISH, "bfloat16", 4096, 64128),)
