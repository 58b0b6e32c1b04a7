"""Which element of a broadcast array belongs to a row: numbers that the host finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from softgen.problems.dtypes import MAX_PACK_BYTES, Integer
from softgen.problems.operands import Extent, Operand

if TYPE_CHECKING:
    from softgen.problems.problem import Problem

# Rows are divided in 32 bits, which takes a third of the instructions of 64.
MOST_ROWS = 2**31 - 1


def number(name: str, accepts: str, *, divides: bool = False) -> Operand:
    """Return a whole number that a hook takes."""
    kind = Integer.INT64
    return Operand(name, kind, Extent.NUMBER, False, kind.cuda, accepts=accepts, divides=divides)


def _divisor(name: str, accepts: str) -> Operand:
    return number(name, accepts, divides=True)


@dataclass(frozen=True)
class Place:
    """The element row // every % count * stride + row % inner * step of an array.

    The first term is for the axes of rows in front, the second for the last ones: with (batch,
    head, query) rows a mask of (batch, 1, query) has every = heads * queries and inner = queries.
    """

    every: int = 1
    count: int = 1
    stride: int = 0
    inner: int = 1
    step: int = 0

    def of(self, rows: Any) -> Any:
        """Return the elements of row numbers."""
        return rows // self.every % self.count * self.stride + rows % self.inner * self.step

    @property
    def whole(self) -> tuple[int, int, int, int, int]:
        """The numbers that a kernel takes for two terms."""
        return (self.every, self.count, self.stride, self.inner, self.step)

    @property
    def short(self) -> tuple[int, int]:
        """The numbers that a kernel takes for an array of one element a place."""
        return (self.every, self.count)


def two_terms(name: str) -> tuple[Operand, ...]:
    """Return the numbers of a Place, for the array called `name`."""
    return (
        _divisor(f"{name}_every", f"rows that share a line of {name}, one after another"),
        _divisor(f"{name}_count", "how many such lines there are, before they come again"),
        number(f"{name}_stride", "elements between them"),
        _divisor(f"{name}_inner", "rows after which the inner lines come again"),
        number(f"{name}_step", "elements between those"),
    )


def one_term(name: str) -> tuple[Operand, ...]:
    """Return the numbers of a Place, for a contiguous array of one element a place."""
    return (
        _divisor(f"{name}_every", f"rows that share an element of {name}, one after another"),
        _divisor(f"{name}_count", "how many elements there are, before they come again"),
    )


def place_of(shape: Sequence[int], strides: Sequence[int], rows: Sequence[int]) -> Place | None:
    """Return where rows of shape `rows` find their line of a broadcast array; None for nowhere.

    Args:
        shape: of the array without the last axis; as many axes as `rows`, each as long or 1.
        strides: of those axes, in elements.
        rows: the shape of x without the last axis.

    Axes that are next to each other and step alike are one. A Place has room for a broadcast axis
    in front, one that steps, a broadcast one, and one at the end that steps.
    """
    terms: list[tuple[int, int]] = []  # (length, stride), outermost first; stride 0 is broadcast
    for given, stride, length in zip(shape, strides, rows, strict=True):
        if length == 1:
            continue
        step = 0 if given == 1 else stride
        if terms and terms[-1][1] == step * length:  # also two broadcast axes
            terms[-1] = (terms[-1][0] * length, step)
        else:
            terms.append((length, step))
    inner = terms.pop() if terms and terms[-1][1] else (1, 0)
    every = inner[0]
    if terms and not terms[-1][1]:
        every *= terms.pop()[0]
    count, stride = terms.pop() if terms else (1, 0)
    if any(step for _, step in terms):
        return None
    return Place(every, count, stride, *inner)


def packed_lines(problem: Problem) -> dict[str, int]:
    """Return the arrays whose lines are loaded in packs, and on how many bytes each line starts."""
    kinds = {hook.kind for hook in problem.hooks if hook.lined and getattr(hook, "packs", False)}
    if problem.layout.step > 1:  # of which neighbours belong to other rows
        return {}
    return {
        operand.name: min(MAX_PACK_BYTES, problem.alignment * operand.dtype.itemsize)
        for operand in problem.inputs
        if operand.name in kinds
    }
