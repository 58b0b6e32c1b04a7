"""Parts: what a piece of a row reduces to. Each is a monoid, so that a row may be cut anywhere.

templates/parts/<name>/ says in C++ how elements become one and how parts become one: the strategies
that take a kind of part move it, and few know what is in it (docs/parts.md).
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
        totals: what `totals` calls the sums of a row beside its maximum, in the order of members.
        is_pair: whether it is (max, sum), which the templates of all strategies know.
        is_whole: whether functions take one as it is, and not its members.
        packs: whether its folder has the files of packed 16-bit elements.
        combines_slots: whether `of_slots` calls combine(), combine_lanes() and nothing().
        chooses: whether it has the largest elements of a row: lists and boards take its place.
        draws: whether hooks tell it which element they draw.
        slice_registers: registers of a thread that holds a slice of a row, beside those for a pair.
        walk_registers: those of one that reads a row in packs.
    """

    name: str
    cuda: str
    long_cuda: str
    noun: str
    plural: str
    fill: float = -math.inf
    members: tuple[str, ...] = ()
    totals: tuple[str, ...] = ("total",)
    is_pair: bool = False
    is_whole: bool = False
    packs: bool = False
    combines_slots: bool = False
    chooses: bool = False
    draws: bool = False
    slice_registers: int = 0
    walk_registers: int = 0

    @property
    def has_maximum(self) -> bool:
        """Whether it has the largest element, and elements are exponentiated."""
        return self.fill < 0

    @property
    def numbers(self) -> int:
        """How many numbers it consists of."""
        return max(1, len(self.members))

    def arguments(self, part: str) -> str:
        """Return `part`, an expression in C++, as arguments of a call."""
        if self.is_whole or not self.members:
            return part
        return ", ".join(f"{part}.{member}" for member in self.members)


# The pair (max, sum of exp(x - max)) of arXiv 1805.02867.
MAX_SUM = Part(
    *("max_sum", "MaxSum", "LongMaxSum", "pair", "(max, sum) pairs"),
    members=("m", "d"),
    is_pair=True,
    packs=True,
)
# Beside them the sum of (x - max) exp(x - max), which an entropy is made of.
MAX_SUM_DOT = Part(
    *("max_sum_dot", "MaxSumDot", "LongMaxSumDot", "part", "(max, sum, dot) parts"),
    members=("m", "d", "s"),
    totals=("total", "dot_total"),
    packs=True,
    walk_registers=8,  # fitted (cdccd377)
)
# Beside them the sum of max - x, which a mean is made of, and the number of elements.
MAX_SUM_BELOW = Part(
    *("max_sum_below", "MaxSumBelow", "LongMaxSumBelow", "part", "(max, sum, below) parts"),
    members=("m", "d", "s", "w"),
    totals=("total", "below_total", "weight_total"),
    packs=True,
    slice_registers=16,  # fitted (a9d5504e)
    walk_registers=8,
)
# Beside them the largest score, an element with noise, with that element and its column.
DRAW = Part(
    *("draw", "Draw", "LongDraw", "part", "(max, sum, draw) parts"),
    members=("m", "d", "score", "z", "column"),
    is_whole=True,
    combines_slots=True,
    draws=True,
)
# Beside them the k largest elements, each with its column, as keys whose order is that of integers.
TOP = Part(
    *("top", "Top", "Top", "part", "parts"),
    packs=True,
    chooses=True,
    walk_registers=16,  # of what is found on the way; fitted (6b50a95c)
)
# Of terms that no maximum scales.
SUM = Part("sum", "Compute", "LongSum", "sum", "sums", fill=0.0, packs=True)

PARTS = (MAX_SUM, MAX_SUM_DOT, MAX_SUM_BELOW, DRAW, TOP, SUM)
