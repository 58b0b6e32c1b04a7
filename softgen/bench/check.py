"""How far a competitor's softmax is from float64, computed on the device a few rows at a time."""

from __future__ import annotations

from typing import Any

from softgen.spec.dtypes import DType
from softgen.tuning.gate import TINY

CHUNK = 1 << 25  # elements at a time: 256 MB in float64
MOST_ELEMENTS = 1 << 28  # of larger results evenly spread rows are checked

# What counts as wrong. softgen's own bounds are tighter; a fast exponential in float32 loses about
# |x - max| * 2**-24 and a long sum some more, which is a choice and no mistake. In 16 bits: two
# units of the last place.
TOLERANCE = {
    DType.FLOAT16: 2.0**-9,
    DType.BFLOAT16: 2.0**-6,
    DType.FLOAT32: 1e-4,
    DType.FLOAT64: 1e-11,
}


def checked_rows(rows: int, cols: int) -> list[int]:
    """Return the rows to check: all, or an even spread that includes the first and the last."""
    most = max(2, MOST_ELEMENTS // cols)
    if rows <= most:
        return list(range(rows))
    return sorted({i * (rows - 1) // (most - 1) for i in range(most)})


def max_relative_error(y: Any, x: Any, dtype: DType) -> float:
    """Return the largest error of y = softmax(x) over the checked rows; inf for a NaN.

    Args:
        y: the result, a CuPy array of shape (rows, cols) in `dtype`.
        x: the input, likewise, without NaN or infinities.
        dtype: the element type. Errors are relative to the exact value, or to the smallest normal
            number of the type where that is larger.
    """
    import cupy

    rows, cols = x.shape
    bits = f"uint{8 * dtype.itemsize}"  # gathers move bits, whatever CuPy knows of the type
    chosen = checked_rows(rows, cols)
    step = max(1, CHUNK // cols)
    worst = 0.0
    for first in range(0, len(chosen), step):
        part = chosen[first : first + step]
        # A slice is a view; a list of rows would be gathered into a copy.
        dense = part[-1] - part[0] == len(part) - 1
        index = slice(part[0], part[-1] + 1) if dense else cupy.asarray(part)
        terms = x.view(bits)[index].view(x.dtype).astype(cupy.float64)
        terms -= terms.max(axis=1, keepdims=True)
        cupy.exp(terms, out=terms)
        terms /= terms.sum(axis=1, keepdims=True)
        error = cupy.abs(y.view(bits)[index].view(y.dtype).astype(cupy.float64) - terms)
        cupy.maximum(terms, TINY[dtype], out=terms)
        error /= terms
        error[cupy.isnan(error)] = cupy.inf
        worst = max(worst, float(error.max()))
    return worst
