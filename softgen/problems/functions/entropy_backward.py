"""entropy_backward: -p (log p + H) * upstream, the gradient of the entropy H from it and lse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.problems.functions.entropy import entropy_of
from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.functions.of_logarithms import OfLogarithms


@dataclass(frozen=True)
class EntropyBackward(OfLogarithms):
    """dx = -p (log p + H) upstream, where log p = x - lse."""

    gradient_of = "entropy"
    saved = ("lse", "entropy")

    formula = "dx = -p (log p + entropy) upstream, log p = x - lse"
    non_finite = "a row whose entropy is NaN gives NaN everywhere; else -inf gives 0"

    def saved_of(self, x: Any) -> tuple[Any, ...]:
        """Return lse and the entropy of the rows of `x`."""
        return (*super().saved_of(x), entropy_of(x))

    def of_logarithms(self, log_p: Any, *row: Any) -> Any:
        """Return dx."""
        import numpy as np

        entropy, upstream = row
        p = np.exp(log_p)
        return -p * (np.where(p == 0, 0, log_p) + entropy) * upstream

    def size_of(self, log_p: Any, *row: Any) -> Any:
        """Return the size of the two terms."""
        import numpy as np

        entropy, upstream = row
        return np.exp(log_p) * (abs(log_p) + entropy) * upstream


ENTROPY_BACKWARD = EntropyBackward()
FUNCTIONS = (ENTROPY_BACKWARD,)

EXHIBITS = (Exhibit("gradient of entropies, Qwen", ENTROPY_BACKWARD, "bfloat16", 8192, 151936),)
