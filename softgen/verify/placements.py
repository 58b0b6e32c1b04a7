"""Where the rows of views lie that are verified: with gaps, and in another order than in memory."""

from __future__ import annotations

import math

from softgen.problems.layouts import Strided
from softgen.problems.placement import Placement
from softgen.problems.problem import Problem


def rows_for(problem: Problem, rows: int) -> int:
    """Return how many rows, of `rows` >= 9 at most, `placement_of` can deal out: an odd number."""
    if not isinstance(problem.layout, Strided):
        return rows
    step = math.prod([3] * len(problem.layout.sizes))
    return (rows // step - (rows // step + 1) % 2) * step


def placement_of(problem: Problem, rows: int, *, in_place: bool = False) -> Placement | None:
    """Return where rows of a view lie, each array's elsewhere; None where they follow each other.

    Rows start on the problem's alignment and no more. In place all arrays have x's strides.
    """
    if not isinstance(problem.layout, Strided):
        return None
    arrays, outer = len(problem.whole_rows), problem.layout.outer
    if rows == 1:
        return Placement((1,), ((0,),) * arrays)
    inner = (3,) * (outer - 1)
    sizes = (rows // math.prod(inner), *inner)
    of_x = _strides(problem, sizes, gap=1, turned=False)
    others = [_strides(problem, sizes, gap=1 + i, turned=True) for i in range(1, arrays)]
    return Placement(sizes, (of_x, *([of_x] * (arrays - 1) if in_place else others)))


def _strides(problem: Problem, sizes: tuple[int, ...], gap: int, turned: bool) -> tuple[int, ...]:
    """Return strides of rows that leave gaps: C order with a first axis that goes down, or turned.

    Turned, the first axis is the innermost in memory.
    """
    unit = problem.alignment
    step = (-(-problem.cols // unit) + gap) * unit
    found = []
    for size in sizes if turned else reversed(sizes):
        found.append(step)
        step = size * step + gap * unit
    return tuple(found) if turned else (-found[-1], *reversed(found[:-1]))
