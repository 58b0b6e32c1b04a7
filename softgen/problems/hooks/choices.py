"""The columns that were chosen of each row: what the gradient of a choice knows of it."""

from __future__ import annotations

from dataclasses import dataclass

from softgen.problems.dtypes import DType
from softgen.problems.hooks.base import OfFunction


@dataclass(frozen=True)
class Choices(OfFunction):
    """The weights and columns of a row's choice, and the gradient with respect to the weights.

    Attributes:
        count: how many a row has.
        gradient: whether results are gradients, to which those of the choice are added.
        total: whether all columns share a sum of the row, as those of softmax do.
        divided: whether weights are divided by their sum.
    """

    count: int = 1
    gradient: bool = True
    total: bool = True
    divided: bool = False

    name = "choices"

    @property
    def weighs(self) -> bool:
        """Softmax, by that sum."""
        return self.total

    def registers(self, compute: DType) -> int:
        """Return what addresses, sums and the loop take: with 8 bfloat16 spilled 108 bytes."""
        return 12 + 2 * compute.itemsize // 4
