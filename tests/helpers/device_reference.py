"""softmax in float64 on the device, and how far a result is from it, in units of its bound."""

from __future__ import annotations

from typing import Any

import numpy as np

from softgen.problems.dtypes import DType
from softgen.problems.functions.base import Function
from softgen.problems.functions.log_softmax import LOG_SOFTMAX
from softgen.problems.functions.softmax import SOFTMAX
from softgen.problems.numerics import numpy_dtype
from softgen.verify.regimes import REGIMES

CHUNK = 1 << 25  # elements compared at a time: 256 MB in float64

FRACTION_BITS = {DType.FLOAT16: 10, DType.BFLOAT16: 7}
SMALLEST_NORMAL = {DType.FLOAT16: -14, DType.BFLOAT16: -126}


def device_normal(rows: int, cols: int, dtype: DType, scale: float = 3.0) -> Any:
    """Return normal values of `scale`, repeating after a prime number of elements."""
    import cupy

    period = np.random.default_rng(cols).standard_normal(1_000_003, np.float32) * scale
    repeats = -(-rows * cols // period.size)
    flat = cupy.tile(cupy.asarray(period.astype(numpy_dtype(dtype))), repeats)
    return flat[: rows * cols].reshape(rows, cols)


def hard_rows(cols: int, dtype: DType) -> Any:
    """Return rows of every regime that means anything for so many columns, on the host."""
    applying = [regime for regime in REGIMES.values() if regime.applies(cols)]
    return np.concatenate([regime.array(1, cols, dtype) for regime in applying])


def on_host(*arrays: Any) -> tuple[Any, ...]:
    """Return NumPy's arrays; bfloat16 in storage form."""
    import cupy

    host = [cupy.asnumpy(array) for array in arrays]
    return tuple(a.view("uint16") if a.dtype.name == "bfloat16" else a for a in host)


def in_float64(x: Any, algorithm: Function) -> Any:
    """Return the algorithm of the rows of x, all of them in float64 at once.

    It is off by less than 1e-15, relative: what x - max loses is made up for.
    """
    import cupy

    wide = x.astype(cupy.float64)
    largest = wide.max(axis=1, keepdims=True)
    shifted = wide - largest
    lost = 0.0
    if x.dtype == cupy.float64:
        # What the subtraction rounded off, exactly (Knuth's two-sum): as an error of the exponent
        # it would be all that the bound leaves to a kernel.
        back = shifted - wide
        lost = (wide - (shifted - back)) - (largest + back)
        lost[~cupy.isfinite(lost)] = 0
    terms = cupy.exp(shifted) * (1 + lost)
    total = terms.sum(axis=1, keepdims=True)
    return terms / total if algorithm == SOFTMAX else shifted + (lost - cupy.log(total))


def error_over_bound(
    result: Any, x: Any, algorithm: Function, out: DType, exponent_error: float = 0.0
) -> float:
    """Return the worst error over the documented bound: at most 1 is right. NaN patterns count.

    `exponent_error` is Strategy.exponent_error of what computed it; see problems/numerics.py.
    """
    import cupy

    cols = x.shape[-1]
    x, result = x.reshape(-1, cols), result.reshape(-1, cols)
    step = max(1, CHUNK // cols)
    worst = 0.0
    for first in range(0, x.shape[0], step):
        part = x[first : first + step]
        wanted = in_float64(part, algorithm)
        got = result[first : first + step].astype(cupy.float64)
        bound = _bound(wanted, algorithm, out)
        if exponent_error:
            assert algorithm == SOFTMAX, "only a result of softmax has such a bound"
            assert out is DType.FLOAT32, "only in float32"
            largest = part.max(axis=1, keepdims=True)
            bound *= 1 + (largest - part).astype(cupy.float64) * (exponent_error / 2e-6)
        ratio = cupy.abs(got - wanted) / bound
        ratio[(got == wanted) | (cupy.isnan(got) & cupy.isnan(wanted))] = 0
        ratio[cupy.isnan(ratio)] = cupy.inf
        worst = max(worst, float(ratio.max()))
    return worst


def _bound(wanted: Any, algorithm: Function, out: DType) -> Any:
    import cupy

    size = cupy.abs(wanted)
    if out in FRACTION_BITS:
        # The rounded value or its neighbour: at most one and a half units of the last place.
        exponent = cupy.maximum(cupy.frexp(size)[1] - 1, SMALLEST_NORMAL[out])
        return 1.5 * cupy.ldexp(cupy.ones_like(size), exponent - FRACTION_BITS[out])
    relative = 2e-6 if out is DType.FLOAT32 else 1e-14
    if algorithm == LOG_SOFTMAX:
        return relative * size + relative
    tiny = 1e-30 if out is DType.FLOAT32 else 1e-300  # below it only the magnitude counts
    if out is DType.FLOAT64:  # see softgen/problems/numerics.py
        relative = relative * (1 + cupy.abs(cupy.log(cupy.maximum(size, tiny))) / 90)
    return cupy.where(size > tiny, relative * size, tiny)
