"""What a kernel should give, and what is wrong with what it gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.differential.bounds import About, objection
from tests.differential.functions import INF, LOGARITHM, Results, Row, results_of
from tests.differential.rows import Entered, Hooks, entered, left
from tests.differential.storage import Stored, Wide


def expected(
    name: str, x: Wide, given: Mapping[str, Any], hooks: Hooks, compute: str
) -> tuple[Results, Entered]:
    """Return the results of a function by name, and the rows that they are of."""
    rows = entered(x, hooks, compute)
    results = results_of(name, rows, given)
    if "y" in results:
        y = results["y"]
        if hooks.zero:
            nothing = -INF if y.measure == LOGARITHM else 0.0
            y.exact = np.where(Row(rows).empty[:, None], nothing, y.exact)
        if hooks.out_scale is not None or hooks.dropout is not None:
            y.exact, y.below, y.above = left(y.exact, hooks), None, None
    return results, rows


def objections(
    results: Results,
    rows: Entered,
    got: Mapping[str, tuple[Stored, str]],
    hooks: Hooks,
    compute: str,
    *,
    fused: bool = False,
) -> list[str]:
    """Return what is wrong with results, a line each.

    Args:
        results: what is right.
        rows: of which rows.
        got: what a kernel gave, and its type.
        hooks: what was done to elements.
        compute: the type of the arithmetic.
        fused: whether exponents are OneFlow's, which docs/numerics.md allows more.
    """
    found = []
    for name, (stored, dtype) in got.items():
        about = About(dtype, compute, rows.slack, rows.tiny)
        if name == "y":
            about.hidden = rows.x == -INF
            if fused:
                with np.errstate(all="ignore"):
                    below = rows.x.max(axis=1, keepdims=True) - rows.x
                about.below_max = np.where(np.isfinite(below), below, 0)
        wrong = objection(stored, results[name], about)
        if wrong:
            found.append(f"{name}: {wrong}")
    return found
