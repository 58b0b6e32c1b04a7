"""A column of each row by its number: what losses know of a row beside its elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.spec.dtypes import DType
from softgen.spec.hooks.base import Hook
from softgen.spec.operands import Operand


@dataclass(frozen=True)
class Target(Hook):
    """The target of a row. Functions have it, and callers name it nowhere: `Function.modifiers`.

    It ends a row that is ignored before its first column, so that nothing of it is loaded.

    Attributes:
        gradient: whether results are the gradient of softmax: they are scaled, and the target's is
            less.
        given: whether the log-sum-exp of a row is given. Where it is not, the gradient's row reads
            the target's element first: results may be written over it.
        shard: whether these are some of the row's columns, and the target may be another.
        told: whether the target's element is given, and no column is looked for.
    """

    gradient: bool = False
    given: bool = False
    shard: bool = False
    told: bool = False

    @property
    def name(self) -> str:
        """As the others have one; it is in no kernel's name."""
        return "target"

    @property
    def formula(self) -> str:
        """What it is."""
        return "target[row]"

    def operands(self, compute: DType) -> tuple[Operand, ...]:
        """Return nothing: the function has them."""
        return ()

    def example(self, rows: int, cols: int) -> tuple[Any, ...]:
        """Return nothing."""
        return ()

    @property
    def placed(self) -> bool:
        """Where results are modified."""
        return self.gradient

    @property
    def ends(self) -> bool:
        """Rows that are ignored."""
        return not self.told

    @property
    def enters(self) -> bool:
        """Elements stay what they are."""
        return False

    @property
    def leaves(self) -> bool:
        """Gradients."""
        return self.gradient

    @property
    def picks(self) -> bool:
        """Where it writes both the loss and the gradient, and where the element is a result."""
        return (self.gradient or self.shard) and not self.given

    @property
    def by_row(self) -> bool:
        """Where what is above finds its place by the row's number in 32 bits."""
        return self.given

    def registers(self, compute: DType) -> int:
        """Return what the target and the numbers of the gradient take."""
        return (8 if self.gradient else 4) * compute.itemsize // 4
