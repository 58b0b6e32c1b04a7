"""Arrays with an element a column that are broadcast over rows: a bias that is added, a mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.problems.dtypes import DType, ElementType, Integer
from softgen.problems.hooks.base import Hook
from softgen.problems.hooks.places import Place, two_terms
from softgen.problems.operands import Extent, Operand


@dataclass(frozen=True)
class Lines(Hook):
    """Base of hooks that take an array whose lines belong to rows.

    Attributes:
        packs: whether every line starts where a pack of it may: on the problem's alignment, in
            elements of the array (on 16 bytes, where that is less). Else elements move one by one.
    """

    packs: bool = True

    by_row = True
    lined = True
    instructions = 3.0  # it is loaded, widened and applied

    @property
    def dtype(self) -> ElementType:
        """The type of an element."""
        raise NotImplementedError

    def operands(self, compute: DType) -> tuple[Operand, ...]:
        """Return the array, and where rows find their line."""
        array = Operand(self.kind, self.dtype, Extent.BROADCAST, False, self.dtype.cuda)
        return (array, *two_terms(self.kind))

    def lines(self, x: Any, array: Any, *place: Any) -> Any:
        """Return the elements that belong to those of `x`."""
        import numpy as np

        starts = Place(*map(int, place)).of(np.arange(len(x)))
        return array.reshape(-1)[starts[:, None] + np.arange(x.shape[1])]

    def line(self, cols: int) -> int:
        """Return a distance of lines for tests, which is not that of rows."""
        return -(-cols // 16) * 16 + 16 if self.packs else cols + 3

    def registers(self, compute: DType) -> int:
        """Return what addresses take, and a pack on its way."""
        return 16


@dataclass(frozen=True)
class Bias(Lines):
    """Add an array of any float type.

    Attributes:
        of: the type of its elements. One that the type of the arithmetic does not hold is rounded.
    """

    of: DType = DType.FLOAT32

    kind = "bias"
    formula = "x + bias"

    @property
    def name(self) -> str:
        """As in names of kernels."""
        return f"bias{self.of.short}" + ("" if self.packs else "any")

    @property
    def dtype(self) -> DType:
        """The type of an element."""
        return self.of

    def example(self, rows: int, cols: int) -> tuple[Any, ...]:
        """Return two lines in turns for pairs of rows, with -inf in each."""
        import numpy as np

        length = self.line(cols)
        array = np.random.default_rng(cols).standard_normal((2, length)) * 2
        array[0, ::5] = -np.inf
        array[1, : cols // 3] = -np.inf
        return (array, 2, 2, length, 1, 0)

    def enter(self, x: Any, *values: Any) -> Any:
        """Return the sums."""
        return x + self.lines(x, *values).astype(x.dtype)


@dataclass(frozen=True)
class Mask(Lines):
    """Hide elements by an array of booleans: where it is False, an element is -inf."""

    kind = "mask"  # one however its lines start
    formula = "x where mask"
    dtype = Integer.BOOL
    computes = False  # what is shown stays what it is

    @property
    def name(self) -> str:
        """As in names of kernels."""
        return "mask" + ("" if self.packs else "any")

    def example(self, rows: int, cols: int) -> tuple[Any, ...]:
        """Return four lines for pairs of two rows: one hides all, one shows one element."""
        import numpy as np

        length = self.line(cols)
        array = np.random.default_rng(cols).random((4, length)) < 0.6
        array[2] = False
        array[3] = False
        array[3, cols // 2] = True
        return (array, 2, 2, 2 * length, 2, length)

    def enter(self, x: Any, *values: Any) -> Any:
        """Return what is shown."""
        import numpy as np

        return np.where(self.lines(x, *values), x, x.dtype.type(-np.inf))
