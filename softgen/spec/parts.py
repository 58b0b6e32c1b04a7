"""Parts: what a piece of a row reduces to. Each is a monoid, so that a row may be cut anywhere.

templates/parts/<name>/ says in C++ how elements become one and how parts become one: the strategies
that take a kind of part move it, and do not know what is in it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A kind of part.

    Attributes:
        name: of its folder of templates.
        cuda: its C++ type.
        fill: what stands, on load, for columns that are not there, so that they add nothing.
    """

    name: str
    cuda: str
    fill: float


MAX_SUM = Part("max_sum", "MaxSum", float("-inf"))  # (max, sum of exp(x - max)), arXiv 1805.02867
SUM = Part("sum", "Compute", 0.0)  # of terms that no maximum scales
