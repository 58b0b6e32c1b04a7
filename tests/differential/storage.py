"""Numbers as they are stored, and their exact values: an own reading of each type's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Wide = npt.NDArray[Any]  # of long double
Stored = npt.NDArray[Any]

# Exponent bits, fraction bits, and the bias of the exponent.
_SMALL = {
    "float16": (5, 10, 15),
    "bfloat16": (8, 7, 127),
    "float8_e4m3fn": (4, 3, 7),
    "float8_e5m2": (5, 2, 15),
}
_STORED = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}

LARGEST = {
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
    "float16": 65504.0,
    "bfloat16": 255 * 2.0**120,
    "float32": float(np.finfo(np.float32).max),
    "float64": float(np.finfo(np.float64).max),
}
SMALLEST_NORMAL = {
    "float16": 2.0**-14,
    "bfloat16": 2.0**-126,
    "float32": 2.0**-126,
    "float64": 2.0**-1022,
}


def is_small(dtype: str) -> bool:
    """Return whether a type has 8 or 16 bits."""
    return dtype in _SMALL


def stored_as(dtype: str) -> np.dtype[Any]:
    """Return NumPy's type that holds the bits."""
    return np.dtype(_STORED.get(dtype, dtype))


def _table(dtype: str) -> npt.NDArray[np.float64]:
    """Return the values of all patterns of bits without a sign."""
    exponents, fractions, bias = _SMALL[dtype]
    found = []
    for bits in range(1 << (exponents + fractions)):
        exponent, fraction = bits >> fractions, bits & ((1 << fractions) - 1)
        if exponent == 0:
            value = fraction * 2.0 ** (1 - bias - fractions)
        else:
            value = (1 + fraction / 2**fractions) * 2.0 ** (exponent - bias)
        if dtype == "float8_e4m3fn":  # one NaN and no infinity
            value = np.nan if bits == 0x7F else value
        elif exponent == (1 << exponents) - 1:
            value = np.nan if fraction else np.inf
        found.append(value)
    return np.array(found)


_TABLES = {dtype: _table(dtype) for dtype in _SMALL}


def exact(stored: Stored, dtype: str) -> Wide:
    """Return the exact values of stored numbers."""
    with np.errstate(invalid="ignore"):
        if dtype not in _SMALL:
            return np.asarray(stored).astype(np.longdouble)
        bits = np.asarray(stored).view(f"uint{8 * stored_as(dtype).itemsize}").astype(np.int64)
        sign = 1 << sum(_SMALL[dtype][:2])
        values = _TABLES[dtype][bits & (sign - 1)]
        found: Wide = np.where(bits & sign, -values, values).astype(np.longdouble)
        return found


def steps(values: Any, dtype: str) -> npt.NDArray[np.int64]:
    """Return the numbers of a type's values that are nearest to `values`: 0 for 0, 1 for the next.

    Of two that are as near it is the even one.
    Of types of 8 bits what is too large is the largest; else it is the infinity behind that. For
    NaN the number means nothing.
    """
    table = _TABLES[dtype]
    finite = table[np.isfinite(table)].astype(np.longdouble)
    wide = np.asarray(values, np.longdouble)
    size = np.abs(np.where(np.isnan(wide), 0, wide))
    # From there on the type's rounding would give the number behind the largest.
    beyond = finite[-1] + (finite[-1] - finite[-2]) / 2
    middles = (finite[1:] + finite[:-1]) / 2
    below = np.searchsorted(middles, size)
    at = np.minimum(below, len(middles) - 1)
    below = below + ((size == middles[at]) & (below < len(middles)) & (below % 2 == 1))
    if not dtype.startswith("float8"):
        below = np.where(size >= beyond, len(finite), below)
    return np.where(np.signbit(wide), -below, below).astype(np.int64)


def rounded(values: Any, dtype: str) -> Stored:
    """Return `values` as they are stored: rounded once, to the nearest, ties to even."""
    wide = np.asarray(values, np.longdouble)
    with np.errstate(all="ignore"):
        if dtype not in _SMALL:
            return wide.astype(dtype)
        sign = 1 << sum(_SMALL[dtype][:2])
        number = steps(wide, dtype)
        bits = np.abs(number) | np.where(np.signbit(wide), sign, 0)
        quiet = 0x7F if dtype == "float8_e4m3fn" else sign - 1
        stored = np.where(np.isnan(wide), quiet, bits)
    unsigned = stored.astype(f"uint{8 * stored_as(dtype).itemsize}")
    return unsigned.view(stored_as(dtype))
