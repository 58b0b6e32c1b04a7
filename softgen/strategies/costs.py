"""Terms of the scores that order candidates: what is lost for each doubling away from the best."""

from __future__ import annotations

import math
from typing import NamedTuple


class Term(NamedTuple):
    """What a number of a setting costs.

    Attributes:
        weight: the cost of a doubling.
        best: the number that costs nothing.
    """

    weight: float
    best: float = 1

    def below(self, value: float, times: int = 1) -> float:
        """Return the cost of a value below `times` the best, 0 above."""
        return self.weight * max(0.0, math.log2(self.best * times / value))

    def above(self, value: float) -> float:
        """Return the cost of a value above the best, 0 below."""
        return self.weight * max(0.0, math.log2(value / self.best))

    def away(self, value: float) -> float:
        """Return the cost of a value above or below the best."""
        return self.weight * abs(math.log2(value / self.best))
