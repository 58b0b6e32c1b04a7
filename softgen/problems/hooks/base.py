"""The interface of a hook: what it takes, what it does, and how exactly."""

from __future__ import annotations

import abc
from typing import Any

from softgen.problems.dtypes import DType
from softgen.problems.operands import Operand


class Hook(abc.ABC):
    """A modifier of elements on their way in or out. Its fields decide the text of a kernel.

    A hook has a template in templates/hooks/, and its values are arguments of a launch. Every
    method that computes takes arrays of the type of the arithmetic, and rounds once.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """As in names of kernels: lower-case letters and digits."""

    @property
    def kind(self) -> str:
        """What a problem has at most one of, and the stem of the template."""
        return self.name

    @property
    @abc.abstractmethod
    def formula(self) -> str:
        """What it does, for the header of an emitted file, as in "with scale * x"."""

    @abc.abstractmethod
    def operands(self, compute: DType) -> tuple[Operand, ...]:
        """Return what the kernel takes for it; `compute` is the type of all arithmetic."""

    @abc.abstractmethod
    def example(self, rows: int, cols: int) -> tuple[Any, ...]:
        """Return values of its operands for tests; the same on every call."""

    def other_examples(self, rows: int) -> tuple[dict[str, Any], ...]:
        """Return other values of some operands, by name: for verification."""
        return ()

    def enter(self, x: Any, *values: Any) -> Any:
        """Return the elements as they come in, of shape (rows, cols); -inf where hidden."""
        return x

    def column(self, rows: int, *values: Any) -> Any:
        """Return a logit a row that takes part in the sum and has no column; None without one."""
        return None

    def leave(self, y: Any, *values: Any) -> Any:
        """Return the results as they go out, of shape (rows, cols)."""
        return y

    @property
    def placed(self) -> bool:
        """Whether it has to know the column of an element, or that one is not there."""
        return True

    @property
    def ends(self) -> bool:
        """Whether it ends a row at run time: what lies behind is not loaded."""
        return False

    @property
    def picks(self) -> bool:
        """Whether it reads an element by its column, before any result is written over it."""
        return False

    @property
    def reads(self) -> bool:
        """Whether it reads an element by its column when it finds what belongs to a row."""
        return self.picks

    @property
    def enters(self) -> bool:
        """Whether it modifies or hides elements on their way in."""
        return True

    @property
    def computes(self) -> bool:
        """Whether elements that are shown become other numbers, of which -ftz=true flushes some."""
        return self.enters

    @property
    def leaves(self) -> bool:
        """Whether it modifies results one by one."""
        return False

    @property
    def weighs(self) -> bool:
        """Whether it multiplies all results of a row by a number, as their common factor."""
        return False

    @property
    def weighs_lse(self) -> bool:
        """Whether that number depends on the row's maximum and sum, too."""
        return False

    @property
    def slopes(self) -> bool:
        """Whether results are with respect to elements as they came in, past the hooks before."""
        return False

    def slope(self, entered: Any, *values: Any) -> Any:
        """Return the derivative of what enters, where that is `entered`."""
        raise NotImplementedError(f"{self} has no derivative here")

    def gain(self, x: Any, *values: Any) -> Any:
        """Return the largest size of that derivative, or of each row of `x` as a column."""
        return 1.0

    @property
    def sinks(self) -> bool:
        """Whether it gives a row a logit without a column."""
        return False

    @property
    def zeroes(self) -> bool:
        """Whether a row of nothing but -inf gives 0, and not NaN."""
        return False

    @property
    def by_row(self) -> bool:
        """Whether it has to know the number of a row."""
        return False

    @property
    def lined(self) -> bool:
        """Whether it has an array of lines, which rows may share."""
        return False

    def steps(self, compute: DType) -> float:
        """Return how far off the difference of two elements may be that it makes, where inexact.

        In steps of 2^-23 (float64: 2^-52) of the largest |x|.
        """
        return 0.0

    @property
    def instructions(self) -> float:
        """About how many it takes an element."""
        return 1.0

    def registers(self, compute: DType) -> int:
        """Return the registers that a thread needs for it, so that it does not spill."""
        return 2 * len(self.operands(compute))

    def __str__(self) -> str:
        return self.name


class Beside(Hook):
    """Base of hooks that leave elements what they are on their way in, whichever they are."""

    placed = False  # it knows no column
    enters = False  # elements stay what they are
    instructions = 0.0  # it is done once a row


class Leaving(Beside):
    """Base of hooks that modify results, by a number that all of a row are multiplied by."""

    weighs = True  # on the way out


class OfFunction(Hook):
    """Base of what a function does itself, as hooks do: `Function.modifiers`.

    Callers name it nowhere. Its text finds the inputs of the function by their names.

    Attributes:
        gradient: whether results are gradients, which it modifies.
    """

    gradient: bool

    enters = False  # elements stay what they are

    @property
    def formula(self) -> str:
        """What it is."""
        return f"{self.name}[row]"

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
    def leaves(self) -> bool:
        """Gradients."""
        return self.gradient
