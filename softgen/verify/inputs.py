"""What a kernel is verified on: rows of every regime, and what belongs to them."""

from __future__ import annotations

import functools

import numpy as np

from softgen.problems.dtypes import DType
from softgen.problems.numerics import Storage, other_inputs
from softgen.problems.problem import Problem
from softgen.strategies.variants import Variant
from softgen.verify.placements import rows_for
from softgen.verify.problems import ANY_WIDTH
from softgen.verify.regimes import REGIMES, Slices

_WIDE = 4096  # columns from which a regime has fewer rows


def offsets_of(variant: Variant) -> tuple[int, int]:
    """Return how many elements x and y start behind a 16-byte boundary: as few as may be.

    They differ where rows may start anywhere.
    """
    problem = variant.problem
    offset = problem.alignment if problem.alignment < problem.dtype.max_pack else 0
    return offset, 3 * offset if problem.alignment == 1 else offset


def inputs_of(variant: Variant) -> tuple[Storage, ...]:
    """Return the function's inputs: x with rows of every regime, and what belongs to it."""
    x = rows_of(variant)[0]
    return (x, *other_inputs(x, launched_problem(variant)))


def launched_problem(variant: Variant) -> Problem:
    """Return the problem, of one width where a launch says which."""
    return variant.problem.launched_on(ANY_WIDTH)


def rows_of(variant: Variant) -> tuple[Storage, tuple[str, ...]]:
    """Return x and the regime of each of its rows.

    Their number is odd; in a layout that has rows side by side, two outer indices or more.
    """
    problem = launched_problem(variant)
    x, names = _stacked(problem.cols, problem.dtype, Slices.of(variant.strategy, problem))
    step = problem.layout.step
    if step == 1:
        rows = rows_for(problem, len(x))
        return x[:rows], names[:rows]
    rows = max(2, -(-len(x) // step)) * step
    order = np.arange(rows)[::-1] % len(x)  # the last are random ones, of which no two are alike
    return x[order], tuple(names[i] for i in order)


@functools.lru_cache(maxsize=64)
def _stacked(cols: int, dtype: DType, slices: Slices) -> tuple[Storage, tuple[str, ...]]:
    parts, names = [], []
    for name, regime in REGIMES.items():
        if regime.applies(cols):
            count = regime.rows_if_wide if cols >= _WIDE else regime.rows
            parts.append(regime.array(count, cols, dtype, slices))
            names += [name] * count
    x = np.concatenate(parts)
    rows = len(names) - (len(names) + 1) % 2
    return x[:rows], tuple(names[:rows])
