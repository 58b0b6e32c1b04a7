"""How far a result of `softgen run` is from float64, and how far it may be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from softgen.spec.problem import Algorithm, DType, Problem

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Elements compared at a time: the float64 temporaries of a large result would not fit in memory.
CHUNK = 4 * 2**20

# Smallest normal numbers of the 16-bit types; a smaller result has no relative precision.
_TINY = {DType.FLOAT16: 2.0**-14, DType.BFLOAT16: 2.0**-126}


@dataclass(frozen=True)
class Closeness:
    """What is reported of a result.

    Attributes:
        relative: largest relative error (log_softmax: relative to 1 + |y|); inf where a result is
            NaN or infinite and should not be.
        error: largest error in `unit`, which is what the bound is for.
        bound: largest error allowed.
        unit: "relative", or "ulp" for results of 16 bits.
        wrong: what is wrong, in words; empty if every element is within the bound.
    """

    relative: float = 0.0
    error: float = 0.0
    bound: float = 0.0
    unit: str = "relative"
    wrong: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the numbers that are reported; JSON has no infinity."""
        return {
            "max_relative_error": self.relative if math.isfinite(self.relative) else None,
            "error_in_unit": self.error if math.isfinite(self.error) else None,
            "bound": self.bound,
            "unit": self.unit,
        }


def measure(problem: Problem, x: NDArray[Any], y: NDArray[Any]) -> Closeness:
    """Compare y with the float64 result of x, both (rows, cols) in storage form."""
    from softgen.spec.numerics import check

    step = max(1, CHUNK // problem.cols)
    worst = check(y[:0], x[:0], problem)
    first_wrong, relative = "", 0.0
    for first in range(0, len(x), step):
        rows = slice(first, first + step)
        found = check(y[rows], x[rows], problem)
        worst = max(worst, found, key=lambda accuracy: accuracy.worst)
        if not found.ok and not first_wrong:
            start = f"from row {first}: " if first else ""
            first_wrong = start + found.message
        in_rows = found.worst
        if found.unit != "relative":
            in_rows = _relative_error(problem, x[rows], y[rows]) if found.ok else math.inf
        relative = max(relative, in_rows)
    return Closeness(relative, worst.worst, worst.bound, worst.unit, first_wrong)


def _relative_error(problem: Problem, x: NDArray[Any], y: NDArray[Any]) -> float:
    """Return the largest relative error of a 16-bit result whose special values are right."""
    import numpy as np

    from softgen.spec.numerics import decode, reference

    exact = reference(problem.algorithm, decode(x, problem.dtype))
    size = np.abs(exact)
    if problem.algorithm is Algorithm.SOFTMAX:
        scale = np.maximum(size, _TINY[problem.out_dtype])
    else:
        scale = 1 + size
    with np.errstate(invalid="ignore"):
        error = np.abs(decode(y, problem.out_dtype) - exact) / scale
    return float(np.max(error[np.isfinite(error)], initial=0.0))
