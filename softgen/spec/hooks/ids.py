"""Some columns of each row by their numbers: what is asked of tokens beside all elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.spec.dtypes import DType
from softgen.spec.hooks.base import Hook
from softgen.spec.operands import Operand


@dataclass(frozen=True)
class Ids(Hook):
    """The ids of a row. Functions have it, and callers name it nowhere: `Function.modifiers`.

    Attributes:
        count: how many a row has.
        gradient: whether results are gradients, made of log p, to which those of the ids are added.
        entropy: whether they have that of the entropy too.
    """

    count: int = 1
    gradient: bool = False
    entropy: bool = False

    @property
    def name(self) -> str:
        """As the others have one; it is in no kernel's name."""
        return "ids"

    @property
    def formula(self) -> str:
        """What it is."""
        return "ids[row]"

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
    def enters(self) -> bool:
        """Elements stay what they are."""
        return False

    @property
    def leaves(self) -> bool:
        """Gradients."""
        return self.gradient

    def registers(self, compute: DType) -> int:
        """Return what the ids and the numbers of the gradient take.

        With the entropy's gradient packs of 2 float64 spilled 24 bytes in 1024 threads.
        """
        if not self.gradient:
            return 2
        numbers = self.count + (12 if self.entropy else 4)
        return self.count + numbers * compute.itemsize // 4
