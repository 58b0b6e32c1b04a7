"""What hooks make of rows on their way in and out, by docs/hooks.md: one rounding each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.differential.dropout import kept
from tests.differential.storage import SMALLEST_NORMAL, Wide


@dataclass
class Hooks:
    """Values of hooks, an element a row (rows, 1) or an element a column (rows, cols); None for no.

    Attributes:
        scale: what elements are times.
        softcap: c of c tanh(x / c).
        bias: what is added.
        mask: where it is False an element is -inf.
        ends: elements that are shown, a number a row, for each hook that says so.
        sink: a logit a row without a column.
        zero: whether a row of nothing but -inf gives 0.
        out_scale: what results are times.
        dropout: threshold, seed, offset and what is kept is times.
    """

    scale: Any = None
    softcap: Any = None
    bias: Any = None
    mask: Any = None
    ends: tuple[Any, ...] = ()
    sink: Any = None
    zero: bool = False
    out_scale: Any = None
    dropout: tuple[int, int, int, Any] | None = None


@dataclass
class Entered:
    """Rows as they are reduced.

    Attributes:
        x: shape (rows, cols), -inf where hidden.
        sink: shape (rows,), or None.
        slack: shape (rows,): by how much elements may be off.
        tiny: an element that is smaller may as well be 0: a product that was flushed.
    """

    x: Wide
    sink: Wide | None
    slack: Wide
    tiny: float


def entered(x: Wide, hooks: Hooks, compute: str) -> Entered:
    """Return what hooks make of x; `compute` is the type that each of them rounds in."""
    kind = np.dtype(compute)
    largest, tiny = np.zeros(len(x), np.longdouble), 0.0
    least = SMALLEST_NORMAL[compute] if compute == "float32" else 0.0
    with np.errstate(all="ignore"):
        here = x.astype(kind)
        if hooks.scale is not None:
            scale = _flushed(np.asarray(hooks.scale).astype(kind))
            here = here * scale
            tiny = least * max(1.0, float(np.abs(scale).max()))  # what is flushed before it, too
        if hooks.softcap is not None:
            c = np.asarray(hooks.softcap).astype(kind).astype(np.longdouble)
            here = (c * np.tanh(here.astype(np.longdouble) / c)).astype(kind)
            largest, tiny = _largest(here), max(tiny, least)
        if hooks.bias is not None:
            here = here + np.asarray(hooks.bias).astype(kind)
            tiny = max(tiny, least)
        if hooks.mask is not None:
            here = np.where(hooks.mask, here, kind.type(-np.inf))
        for end in hooks.ends:
            here = np.where(np.arange(x.shape[1]) < end, here, kind.type(-np.inf))
        sink = None
        if hooks.sink is not None:
            sink = np.asarray(hooks.sink).astype(kind).astype(np.longdouble).reshape(-1)
    slack: Wide = np.zeros(len(x), np.longdouble)
    if hooks.softcap is not None:
        step = 2.0**-52 if compute == "float64" else 2.0**-23
        slack = step * np.maximum(largest, _largest(here))
    return Entered(here.astype(np.longdouble), sink, slack, tiny)


def _flushed(values: Any) -> Any:
    """Return numbers as float32 arithmetic takes them: what is below 1.18e-38 as 0."""
    if values.dtype != np.float32:
        return values
    return np.where(np.abs(values) < np.float32(SMALLEST_NORMAL["float32"]), 0 * values, values)


def _largest(x: Any) -> Wide:
    """Return the largest |x| of each row that is finite."""
    size = np.abs(np.where(np.isfinite(x), x, 0)).astype(np.longdouble)
    largest: Wide = size.max(axis=1)
    return largest


def left(y: Wide, hooks: Hooks) -> Wide:
    """Return results as they go out, of rows that are numbers or NaN."""
    with np.errstate(all="ignore"):
        if hooks.out_scale is not None:
            y = y * np.asarray(hooks.out_scale, np.longdouble)
        if hooks.dropout is not None:
            threshold, seed, offset, times = hooks.dropout
            stays = kept(len(y), y.shape[1], threshold, seed, offset)
            # As PyTorch's: NaN times the 0 of what is dropped is NaN.
            y = np.where(stays, y * np.longdouble(times), y * 0)
    return y
