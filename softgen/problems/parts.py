"""Parts: what a piece of a row reduces to. Each is a monoid, so that a row may be cut anywhere.

templates/parts/<name>/ says in C++ how elements become one and how parts become one: the strategies
that take a kind of part move it, and do not know what is in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A kind of part.

    Attributes:
        name: of its folder of templates.
        cuda: its C++ type.
        long_cuda: the C++ type that a thread adds many elements to; its value() is a part.
        noun: what comments call one.
        plural: what descriptions call several.
        fill: what stands, on load, for columns that are not there, so that they add nothing.
        members: of the C++ type, each one number; empty where the type is a number itself.
    """

    name: str
    cuda: str
    long_cuda: str
    noun: str
    plural: str
    fill: float
    members: tuple[str, ...] = ()

    @property
    def has_maximum(self) -> bool:
        """Whether it has the largest element, and elements are exponentiated."""
        return self.fill < 0

    @property
    def numbers(self) -> int:
        """How many numbers it consists of."""
        return max(1, len(self.members))

    def arguments(self, part: str) -> str:
        """Return the numbers of `part`, an expression in C++, as arguments of a call."""
        return ", ".join(f"{part}.{member}" for member in self.members) or part


# The pair (max, sum of exp(x - max)) of arXiv 1805.02867.
MAX_SUM = Part("max_sum", "MaxSum", "LongMaxSum", "pair", "(max, sum) pairs", -math.inf, ("m", "d"))
# Beside them the sum of (x - max) exp(x - max), which an entropy is made of.
MAX_SUM_DOT = Part(
    *("max_sum_dot", "MaxSumDot", "LongMaxSumDot", "part", "(max, sum, dot) parts", -math.inf),
    members=("m", "d", "s"),
)
# Beside them the sum of max - x, which a mean is made of, and the number of elements.
MAX_SUM_BELOW = Part(
    *("max_sum_below", "MaxSumBelow", "LongMaxSumBelow", "part"),
    *("(max, sum, below) parts", -math.inf),
    members=("m", "d", "s", "w"),
)
# Beside them the largest noisy element, a key, with its column and what it is without noise.
DRAW = Part(
    *("draw", "Draw", "LongDraw", "part", "(max, sum, draw) parts", -math.inf),
    members=("m", "d", "key", "z", "column"),
)
# Beside them the k largest elements, each with its column, as keys whose order is that of integers.
TOP = Part("top", "Top", "Top", "part", "parts", -math.inf)
SUM = Part("sum", "Compute", "LongSum", "sum", "sums", 0.0)  # of terms that no maximum scales
