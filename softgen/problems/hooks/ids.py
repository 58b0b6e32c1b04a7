"""Some columns of each row by their numbers: what is asked of tokens beside all elements."""

from __future__ import annotations

from dataclasses import dataclass

from softgen.problems.dtypes import DType
from softgen.problems.hooks.base import OfFunction

MOST_HELD = 16  # ids of a row that each thread has in registers

REGIONS = 8  # ids that take as many registers as regions and addresses do


@dataclass(frozen=True)
class Ids(OfFunction):
    """The ids of a row.

    Attributes:
        count: how many a row has.
        gradient: whether results are gradients, made of log p, to which those of the ids are added.
        entropy: whether they have that of the entropy too.
        later: whether elements are read when the row is here. Where that of an id is read before,
            no load of the row starts before the id is there.
    """

    count: int = 1
    gradient: bool = False
    entropy: bool = False
    later: bool = False

    name = "ids"

    @property
    def reads(self) -> bool:
        """One element, as it comes while the row is on its way; of more ids each is read later."""
        return self.count == 1 and not (self.gradient or self.later)

    @property
    def held(self) -> bool:
        """Whether threads have them in registers, one after another."""
        return self.count <= MOST_HELD

    def registers(self, compute: DType) -> int:
        """Return what the ids and the numbers of the gradient take.

        With the entropy's gradient packs of 2 float64 spilled 24 bytes in 1024 threads.
        """
        if not self.gradient:
            return 3
        count = self.count if self.held else REGIONS
        numbers = count + (12 if self.entropy else 4)
        return count + numbers * compute.itemsize // 4
