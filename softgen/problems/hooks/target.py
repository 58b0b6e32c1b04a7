"""A column of each row by its number: what losses know of a row beside its elements."""

from __future__ import annotations

from dataclasses import dataclass

from softgen.problems.dtypes import DType
from softgen.problems.hooks.base import OfFunction


@dataclass(frozen=True)
class Target(OfFunction):
    """The target of a row.

    It ends a row that is ignored before its first column, so that nothing of it is loaded.

    Attributes:
        gradient: whether results are the gradient of softmax: they are scaled, and the target's is
            less.
        given: whether the log-sum-exp of a row is given. Where it is not, the gradient's row reads
            the target's element first: results may be written over it.
        shard: whether these are some of the row's columns, and the target may be another.
        told: whether the target's element is given, and no column is looked for.
        smooths: whether all columns share some of the target's probability, and a sum of distances
            from the maximum beside the terms is found.
        upstreams: whether the gradient with respect to the loss is an array. It is where the
            log-sum-exp is given.
    """

    gradient: bool = False
    given: bool = False
    shard: bool = False
    told: bool = False
    smooths: bool = False
    upstreams: bool = False

    name = "target"

    @property
    def ends(self) -> bool:
        """Rows that are ignored."""
        return not self.told

    @property
    def picks(self) -> bool:
        """Where it writes both the loss and the gradient, and where the element is a result."""
        return (self.gradient or self.shard) and not self.given

    @property
    def reads(self) -> bool:
        """For the loss: it comes while the row is on its way."""
        return not self.given and not self.told

    @property
    def weighs(self) -> bool:
        """Softmax, which is its gradient but for the target."""
        return self.gradient and not self.given

    @property
    def weighs_lse(self) -> bool:
        """As what softmax is times has the row's log-sum-exp in it, by z_loss."""
        return self.weighs

    @property
    def slopes(self) -> bool:
        """The gradient is that with respect to x."""
        return self.gradient

    @property
    def by_row(self) -> bool:
        """Where what is above finds its place by the row's number in 32 bits."""
        return self.given or self.upstreams

    def registers(self, compute: DType) -> int:
        """Return what the target and the numbers of the gradient take."""
        return (8 if self.gradient else 4) * compute.itemsize // 4
