"""How far a result may be off, by the tables of docs/numerics.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.differential.functions import EXACT, INF, LOGARITHM, TERMS, VALUE, Wanted
from tests.differential.storage import (
    LARGEST,
    SMALLEST_NORMAL,
    Stored,
    Wide,
    exact,
    is_small,
    rounded,
    steps,
)

BOUND = {"float32": 2e-6, "float64": 1e-14}
# Below it float32's and float64's own steps count, so that a bound stays what it is there.
FLOOR = {"float32": 1e-30, "float64": 1e-290}
ONEFLOW = 9e-8  # of |x - max| = 1, beside float32's bound


@dataclass
class About:
    """What of a run decides how exact a result is.

    Attributes:
        dtype: the result's type.
        compute: the type of all arithmetic.
        slack: by how much elements of each row may be off, shape (rows,).
        tiny: a maximum that is smaller may be 0.
        hidden: elements that are -inf, of a result with an element a column; else None.
        below_max: max - x of elements, where the kernel rounds a fused exponent; else None.
    """

    dtype: str
    compute: str
    slack: Wide
    tiny: float = 0.0
    hidden: Any = None
    below_max: Any = None


def objection(stored: Stored, wanted: Wanted, about: About) -> str:
    """Return what is wrong with a result, in words; empty for nothing."""
    got, right = exact(stored, about.dtype), np.asarray(wanted.exact, np.longdouble)
    if got.shape != right.shape:
        return f"shape {got.shape}, wanted {right.shape}"
    with np.errstate(all="ignore"):
        bad = _bad(got, stored, right, wanted, about)
        if bad.any():
            return _said("", bad, got, right)
        slack = np.nan_to_num(_beside(about.slack, right), nan=0.0)
        for limit, sign, words in ((wanted.above, 1, "at least"), (wanted.below, -1, "at most")):
            if limit is None:
                continue
            edge = np.broadcast_to(np.asarray(limit, np.longdouble), right.shape)
            # A limit is rounded as a result is; an element that may be off moves it.
            edge = exact(rounded(edge - sign * slack * (edge != 0), about.dtype), about.dtype)
            if about.compute == "float32":  # whose sums and products are flushed
                small = np.abs(edge) < max(SMALLEST_NORMAL["float32"], about.tiny)
                edge = np.where(small, -sign * np.abs(edge), edge)
            bad = np.isfinite(got) & ((got - edge) * sign < 0)
            if bad.any():
                return _said(f"inequality, {words} ", bad, got, edge)
    return ""


def _beside(of_rows: Wide, right: Wide) -> Wide:
    """Return numbers of rows in the shape of a result."""
    return np.broadcast_to(of_rows.reshape(-1, *(1,) * (right.ndim - 1)), right.shape)


def _bad(got: Wide, stored: Stored, right: Wide, wanted: Wanted, about: About) -> Any:
    """Return where a result is neither of the right kind nor within its bound."""
    off = _off(right, wanted, about)
    largest = exact(rounded(_out(right, off), about.dtype), about.dtype)
    if is_small(about.dtype):
        number = steps(got, about.dtype)
        low, high = steps(right - off, about.dtype), steps(right + off, about.dtype)
        near = (number >= low - 1) & (number <= high + 1)
        if about.compute == "float32":
            least = SMALLEST_NORMAL["float32"] * (1 + 2**-8)
            near |= (got == 0) & (np.abs(right) < least)
    else:
        near = np.abs(got - right) <= off
        near |= got == exact(rounded(right, about.dtype), about.dtype)
    # Infinity is right only where what is within the bound is rounded to it: never in 8 bits.
    near = np.where(np.isinf(got), got == largest, near)
    near &= ~np.isnan(got)
    right_kind = np.where(np.isnan(right), np.isnan(got), near)
    if wanted.also is not None:
        right_kind |= _beside(np.asarray(wanted.also), right) & ((got == INF) | np.isnan(got))
    right_kind |= (wanted.factor > LARGEST[about.compute]) & ~np.isfinite(got)
    if about.hidden is not None and wanted.measure in (VALUE, LOGARITHM):
        same = got == exact(rounded(right, about.dtype), about.dtype)
        right_kind = np.where(about.hidden & ~np.isnan(right), same, right_kind)
    return ~np.asarray(right_kind, bool)


def _out(right: Wide, off: Wide) -> Wide:
    """Return the value farthest from 0 that is within the bound."""
    return np.where(right < 0, right - off, right + off)


def _off(right: Wide, wanted: Wanted, about: About) -> Any:
    """Return how far a result may be off before it is rounded to a type of 8 or 16 bits."""
    small = is_small(about.dtype)
    kind = about.compute if small else about.dtype
    slack = _beside(about.slack, right)
    size: Wide = np.abs(np.where(np.isfinite(right), right, 0))
    if wanted.measure == EXACT:
        return slack + about.tiny
    if wanted.measure == VALUE:
        floor = np.maximum(size, FLOOR[kind])
        if small:
            return slack * size
        if kind == "float64":
            return floor * (BOUND[kind] * (1 + np.abs(np.log(floor)) / 90) + slack)
        step = BOUND[kind] + slack
        if about.below_max is not None:
            step = step + ONEFLOW * np.minimum(about.below_max, -np.log(FLOOR[kind]))
        return floor * step
    if wanted.measure == LOGARITHM:
        terms = size if wanted.size is None else np.where(np.isfinite(wanted.size), wanted.size, 0)
        return BOUND[kind] * (1 + (0 if small else np.maximum(terms, size))) + slack
    assert wanted.measure == TERMS
    terms = np.where(np.isfinite(wanted.size), wanted.size, 0)
    least: Any = BOUND[kind] * FLOOR[kind]
    if about.compute == "float32":
        least = least + SMALLEST_NORMAL["float32"] * np.asarray(wanted.flushed)
    moves = terms if wanted.moves is None else np.nan_to_num(wanted.moves, posinf=0.0)
    return terms * BOUND[kind] + moves * slack + least


def _said(what: str, bad: Any, got: Wide, right: Wide) -> str:
    """Return a message on the first element that is bad, and how many are."""
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    # float64's 17 digits; what is beyond it is said as long double.
    return (
        f"{int(bad.sum())} of {bad.size} elements; [{', '.join(map(str, at))}] is {got[at]:.17g}, "
        f"{what or 'wanted '}{right[at]:.17g}"
    )
