"""logsumexp_backward: exp(x - lse) * upstream, the gradient of log-sum-exp from its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.functions.of_logarithms import OfLogarithms


@dataclass(frozen=True)
class LogSumExpBackward(OfLogarithms):
    """dx = exp(x - lse) upstream."""

    gradient_of = "logsumexp"

    formula = "dx = exp(x - lse) upstream"
    non_finite = "a row of lse = -inf, or +inf in a row of lse = +inf, gives NaN; else -inf gives 0"

    def of_logarithms(self, log_p: Any, *row: Any) -> Any:
        """Return dx."""
        import numpy as np

        return np.exp(log_p) * row[0]

    def size_of(self, log_p: Any, *row: Any) -> Any:
        """Return |dx|."""
        return self.of_logarithms(log_p, *row)


LOGSUMEXP_BACKWARD = LogSumExpBackward()
FUNCTIONS = (LOGSUMEXP_BACKWARD,)

EXHIBITS = (
    Exhibit("gradient of a penalty on lse, Llama 3", LOGSUMEXP_BACKWARD, "bfloat16", 4096, 128256),
)
