"""The functions of a row in long double, by docs/functions.md, losses.md, tokens.md and partial.md.

NaN and infinities are as in docs/numerics.md, which are PyTorch's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.differential.rows import Entered
from tests.differential.storage import SMALLEST_NORMAL, Wide

Inputs = Mapping[str, Any]
NAN, INF = np.nan, np.inf

# How a result is compared: see bounds.py.
VALUE, LOGARITHM, TERMS, EXACT = "value", "logarithm", "terms", "exact"


@dataclass
class Wanted:
    """A result as it should be.

    Attributes:
        exact: the result.
        measure: what its error is relative to.
        size: of a gradient, the size of what is added up in it.
        also: where +inf is as good as NaN; None for nowhere.
        moves: how far it moves a unit that elements are off; by default `size`.
        factor: what terms are times at first: where that overflows, what is not finite is right.
        flushed: by how much it is off a unit where an input below 1.18e-38 is taken for 0.
        below: a result is that or less; None for no limit.
        above: the same of more.
    """

    exact: Wide
    measure: str
    size: Any = None
    also: Any = None
    moves: Any = None
    factor: Any = 0.0
    flushed: Any = 0.0
    below: Any = None
    above: Any = None


Results = dict[str, Wanted]


class Row:
    """What is known of rows: their maximum, sums, and which are no ordinary ones."""

    def __init__(self, rows: Entered) -> None:
        x = self.x = rows.x
        every = x if rows.sink is None else np.column_stack((x, rows.sink))
        self.nan = np.isnan(every).any(axis=1)
        self.infinite = (every == INF).any(axis=1)
        self.empty = (every == -INF).all(axis=1)
        self.odd = self.nan | self.infinite | self.empty
        self.m = np.where(self.nan, NAN, np.where(self.infinite, INF, _max(every)))
        shift = np.where(self.odd, 0, self.m)[:, None]
        self.z = np.where(self.odd[:, None], 0, every - shift)
        terms = np.where(self.odd[:, None], 0, np.exp(self.z))
        self.d = np.where(self.odd, NAN, terms.sum(axis=1))
        self.log_d = np.log(self.d)
        moment = (np.where(terms > 0, self.z, 0) * terms).sum(axis=1)
        self.entropy = self.log_d - moment / self.d
        self.log_p = (self.z - self.log_d[:, None])[:, : x.shape[1]]
        self.p = (terms / self.d[:, None])[:, : x.shape[1]]
        special = np.where(self.nan, NAN, np.where(self.infinite, INF, -INF))
        self.lse = np.where(self.odd, special, self.m + self.log_d)

    def lse_result(self, *, alone: bool = False) -> Wanted:
        """Return lse; beside other results a row with NaN and +inf gives either."""
        also = None if alone else self.nan & self.infinite
        return Wanted(self.lse, LOGARITHM, also=also, above=np.where(self.odd, -INF, self.m))

    def entropy_result(self) -> Wanted:
        """Return the entropy."""
        return Wanted(self.entropy, LOGARITHM, above=0.0)

    def picked(self, columns: Any) -> tuple[Wide, Any]:
        """Return the elements of columns (rows, k), 0 where there is none, and which there are."""
        known = (columns >= 0) & (columns < self.x.shape[1])
        at = np.where(known, columns, 0).astype(np.int64)
        return np.where(known, np.take_along_axis(self.x, at, axis=1), 0), known


def _max(x: Wide) -> Wide:
    largest: Wide = np.where(np.isnan(x), -INF, x).max(axis=1)
    return largest


def _columns(given: Any) -> Any:
    """Return integers as (rows, k)."""
    array = np.asarray(given).astype(np.int64)
    return array.reshape(len(array), -1)


def _number(given: Any) -> Any:
    return np.asarray(given).reshape(-1)[0]


def _softmax(row: Row, given: Inputs) -> Results:
    return {"y": Wanted(row.p, VALUE, below=1.0, above=0.0), "lse": row.lse_result()}


def _log_softmax(row: Row, given: Inputs) -> Results:
    return {"y": Wanted(row.log_p, LOGARITHM, below=0.0), "lse": row.lse_result()}


def _logsumexp(row: Row, given: Inputs) -> Results:
    return {"lse": row.lse_result(alone=True)}


def _entropy(row: Row, given: Inputs) -> Results:
    return {"entropy": row.entropy_result(), "lse": row.lse_result()}


def _token_log_probs(row: Row, given: Inputs) -> Results:
    columns = _columns(given["ids"])
    x, known = row.picked(columns)
    log_p = (x - row.m[:, None]) - row.log_d[:, None]
    log_p = np.where(known & ~row.odd[:, None], log_p, NAN).reshape(np.shape(given["ids"]))
    return {
        "log_probs": Wanted(log_p, LOGARITHM, below=0.0),
        "entropy": row.entropy_result(),
        "lse": row.lse_result(),
    }


def _pair(row: Row, *, infinite: Any) -> tuple[Wanted, Wanted]:
    """Return m and d; `infinite` is m of a row with +inf."""
    m = np.where(row.nan, NAN, np.where(row.infinite, infinite, row.m))
    d = np.where(row.empty, 0, row.d)
    ordinary = ~row.odd
    low, high = np.where(ordinary, 1.0, -INF), np.where(ordinary, float(row.z.shape[1]), INF)
    # Of n equal terms a sum that is right to its bound may be a little more than n.
    return Wanted(m, EXACT), Wanted(d, VALUE, above=low, below=high * (1 + 2e-6))


def _partial(row: Row, given: Inputs) -> Results:
    m, d = _pair(row, infinite=NAN)
    return {"maxima": m, "sums": d}


def _partial_target(row: Row, given: Inputs) -> Results:
    target = _columns(given["target"])
    ignored = target[:, 0] == _number(given["ignore_index"])
    x, known = row.picked(target - np.int64(_number(given["first"])))
    m, d = _pair(row, infinite=INF)
    m.exact, d.exact = np.where(ignored, -INF, m.exact), np.where(ignored, 0, d.exact)
    m.also = row.nan & row.infinite & ~ignored  # as of lse
    d.above = np.where(ignored, -INF, d.above)
    here = known[:, 0] & ~ignored
    logits = np.where(here, x[:, 0], INF)
    return {"maxima": m, "sums": d, "logits": Wanted(logits, EXACT)}


def _merged(given: Inputs, first: str) -> tuple[Wide, Wide]:
    """Return the pair of rows of pairs (m, d), m NaN or infinite where they say so."""
    ms, ds = given[first], given["ds"]
    nan, infinite = np.isnan(ms).any(axis=1), (ms == INF).any(axis=1)
    m = np.where(nan, NAN, np.where(infinite, INF, _max(ms)))
    shift = np.where(np.isfinite(m), m, 0)[:, None]
    terms = np.where(ms == -INF, 0, ds * np.exp(np.where(np.isfinite(ms), ms - shift, 0)))
    return m, np.where(nan | infinite, NAN, terms.sum(axis=1))


def _merge(row: Row, given: Inputs) -> Results:
    m, d = _merged(given, "ms")
    return {"maxima": Wanted(np.where(np.isnan(d), NAN, m), EXACT), "sums": Wanted(d, VALUE)}


def _with_z(loss: Wide, lse: Wide, z_loss: Any) -> Wanted:
    """Return the loss with z_loss lse^2 added."""
    z = np.longdouble(_number(z_loss))
    more = z * lse * lse if z else np.zeros_like(lse)
    # Infinity less what overflows float32 is NaN in PyTorch, too.
    also = (loss == INF) & (more < -float(np.finfo(np.float32).max))
    return Wanted(loss + more, LOGARITHM, size=np.abs(loss) + np.abs(more), also=also)


def _without(ignored: Any, loss: Wanted) -> Wanted:
    """Return losses that are 0 in rows that are ignored."""
    loss.exact, loss.size = np.where(ignored, 0, loss.exact), np.where(ignored, 0, loss.size)
    loss.also = loss.also & ~ignored
    return loss


def _merge_losses(row: Row, given: Inputs) -> Results:
    m, d = _merged(given, "ms")
    lse = np.where(np.isfinite(m), m + np.log(np.where(d > 0, d, 1)), m)
    logits = given["logits"]
    nothing = ~np.isfinite(m) | (logits == INF)
    loss = np.where(nothing, NAN, (m - logits) + np.log(np.where(nothing, 1, d)))
    ignored = _columns(given["target"])[:, 0] == _number(given["ignore_index"])
    found = _without(ignored, _with_z(loss, lse, given["z_loss"]))
    if _number(given["z_loss"]) >= 0:
        found.above = np.where(logits <= m, 0.0, -INF)
    also = np.isnan(given["ms"]).any(axis=1) & (given["ms"] == INF).any(axis=1)
    above = np.where(np.isfinite(m) & ~ignored, m, -INF)
    low = np.where((given["ds"] >= 1).any(axis=1), above, -INF)
    return {
        "loss": found,
        "lse": Wanted(np.where(ignored, -INF, lse), LOGARITHM, also=also, above=low),
    }


def _losses(row: Row, given: Inputs, z_loss: Any) -> tuple[Results, Any, Any, Any]:
    """Return loss and lse, and of rows the target, whether it is a column and who is ignored."""
    target = _columns(given["target"])
    ignored = target[:, 0] == _number(given["ignore_index"])
    x, known = row.picked(target)
    of_class = known[:, 0] & ~row.odd
    loss = np.where(of_class, (row.m - x[:, 0]) + row.log_d, NAN)
    smoothing = np.longdouble(_number(given.get("label_smoothing", np.zeros(1))))
    if smoothing:  # 0 times infinity is NaN, as in PyTorch
        mean = (row.m[:, None] - row.x).mean(axis=1) + row.log_d
        loss = (1 - smoothing) * loss + smoothing * np.where(of_class, mean, NAN)
    lse = row.lse_result()
    lse.exact = np.where(ignored, -INF, lse.exact)
    lse.above = np.where(ignored, -INF, lse.above)
    found = _without(ignored, _with_z(loss, row.lse, z_loss))
    if _number(z_loss) >= 0:
        found.above = 0.0
    return {"loss": found, "lse": lse}, target[:, 0], known[:, 0], ignored


def _cross_entropy(row: Row, given: Inputs) -> Results:
    return _losses(row, given, given["z_loss"])[0]


def _cross_entropy_probs(row: Row, given: Inputs) -> Results:
    q = given["probs"]
    log_p = np.where(row.odd[:, None], NAN, row.log_p)
    loss = -(q * log_p).sum(axis=1)  # 0 times infinity is NaN, as in PyTorch
    found = Wanted(loss, LOGARITHM, above=0.0)
    return {"loss": found, "lse": row.lse_result(), "mass": Wanted(q.sum(axis=1), VALUE)}


def _size(log_p: Wide, p: Wide, step: float) -> Wide:
    """Return p (1 + |log p| / step), 0 where p is."""
    return np.where(p > 0, p * (1 + np.abs(np.where(p > 0, log_p, 0)) / step), 0)


def _hit(columns: Any, cols: int) -> Any:
    return np.arange(cols) == np.asarray(columns)[:, None]


def _cross_entropy_grad(row: Row, given: Inputs) -> Results:
    results, target, known, ignored = _losses(row, given, given["z_loss"])
    g = np.asarray(given["upstream"], np.longdouble).reshape(-1)[:, None]
    scale = (1 + 2 * np.longdouble(_number(given["z_loss"])) * row.lse)[:, None]
    hit = _hit(target, row.x.shape[1])
    smoothing = np.longdouble(_number(given.get("label_smoothing", np.zeros(1))))
    ought = (1 - smoothing) * hit + smoothing / row.x.shape[1]
    dx = np.where((known & ~row.odd)[:, None], g * (row.p * scale - ought), NAN)
    size = np.abs(g) * (_size(row.log_p, row.p, 90) * np.abs(scale) + ought)
    dx = np.where(ignored[:, None], 0, dx)
    # PyTorch has infinity there, too, and NaN where that is times a p of 0.
    factor = np.where(ignored[:, None], 0, np.abs(g) * (1 + np.abs(scale - 1)))
    results["dx"] = Wanted(dx, TERMS, size=size, factor=factor)
    return results


def _of_given_lse(x: Wide, lse: Any) -> tuple[Wide, Wide]:
    """Return log p and p, where lse is finite and x no NaN or +inf; of -inf p is 0."""
    log_p = x - np.where(np.isfinite(lse), lse, NAN)[:, None]
    return log_p, np.where(x == -INF, 0, np.exp(log_p))


def _cross_entropy_backward(row: Row, given: Inputs) -> Results:
    x, lse = row.x, given["lse"]
    g = np.asarray(given["upstream"], np.longdouble).reshape(-1)[:, None]
    smoothing, z_loss = (np.longdouble(_number(given[n])) for n in ("label_smoothing", "z_loss"))
    target = _columns(given["target"])[:, 0]
    ignored = target == _number(given["ignore_index"])
    column = target - np.int64(_number(given.get("first", np.zeros(1, np.int64))))
    log_p, p = _of_given_lse(x, lse)
    finite = np.isfinite(lse)
    of_z = np.where(finite, 2 * z_loss * np.where(finite, lse, 0), 0)[:, None]
    hit = _hit(column, x.shape[1])
    rest = smoothing / int(_number(given.get("classes", np.full(1, x.shape[1]))))
    dx = g * (p * (1 + of_z) - rest - (1 - smoothing) * hit)
    if "loss" in given:  # of a shard: the loss says whether the target is a column somewhere
        known = ~np.isnan(given["loss"]) | (g[:, 0] == 0)
    else:
        known = (target >= 0) & (target < x.shape[1])
    dx = np.where((known & np.isfinite(lse))[:, None], dx, NAN)
    size = np.abs(g) * (_size(log_p, p, 90) * (1 + np.abs(of_z)) + rest + (1 - smoothing) * hit)
    dx = np.where(ignored[:, None], 0, dx)
    # PyTorch has infinity there, too, and NaN where that is times a p of 0.
    factor = np.where(ignored[:, None], 0, np.abs(g) * (1 + np.abs(of_z)))
    return {"dx": Wanted(dx, TERMS, size=size, factor=factor)}


def _cross_entropy_probs_backward(row: Row, given: Inputs) -> Results:
    x, q, lse = row.x, given["probs"], given["lse"]
    scale, up, rest = (given[name][:, None] for name in ("scale", "upstream", "rest"))
    log_p = x - lse[:, None]  # NaN for two infinities, as in PyTorch
    p = np.exp(log_p)
    size = _size(log_p, p, 16) * np.abs(scale) + np.abs(q * up) + np.abs(rest)
    return {"dx": Wanted(p * scale - q * up - rest, TERMS, size=size)}


def _token_log_probs_backward(row: Row, given: Inputs) -> Results:
    x, lse = row.x, given["lse"]
    columns = _columns(given["ids"])
    g = np.asarray(given["upstream"], np.longdouble).reshape(columns.shape)
    log_p, p = _of_given_lse(x, lse)
    dx, size = np.zeros_like(x), np.zeros_like(x)
    weight = _size(log_p, p, 16)
    nothing = ~np.isfinite(lse)
    for k in range(columns.shape[1]):
        hit, of_id = _hit(columns[:, k], x.shape[1]), g[:, k : k + 1]
        dx = dx + of_id * (hit - p)
        size = size + np.abs(of_id) * (hit + weight)
        none = (columns[:, k] < 0) | (columns[:, k] >= x.shape[1])
        nothing = nothing | (none & (g[:, k] != 0))
    if "entropy" in given:
        entropy, h = given["entropy"][:, None], given["entropy_upstream"][:, None]
        log = np.where(p > 0, log_p, 0)
        dx = dx - p * (log + entropy) * h
        size = size + np.abs(h) * weight * (np.abs(log) + np.abs(entropy))
        moves = size + p * np.abs(h)  # log p moves as elements do
    wanted = Wanted(np.where(nothing[:, None], NAN, dx), TERMS, size=size)
    wanted.moves = moves if "entropy" in given else None
    return {"dx": wanted}


def _logsumexp_backward(row: Row, given: Inputs) -> Results:
    # By PyTorch's formula exp(x - lse) g: where lse is +inf, so are the finite elements' 0.
    x, lse, g = row.x, given["lse"][:, None], given["upstream"][:, None]
    log_p = x - lse
    p = np.exp(log_p)
    size = np.abs(g) * np.where(np.isfinite(p), _size(log_p, p, 16), 0)
    return {"dx": Wanted(p * g, TERMS, size=size)}


def _entropy_backward(row: Row, given: Inputs) -> Results:
    x, lse = row.x, given["lse"][:, None]
    entropy, g = given["entropy"][:, None], given["upstream"][:, None]
    log_p = x - lse
    p = np.exp(log_p)
    log = np.where(p > 0, log_p, 0)
    dx = np.where(np.isnan(entropy) | np.isnan(p), NAN, -p * (log + entropy) * g)
    size = np.abs(g) * _size(log_p, p, 16) * (np.abs(log) + np.abs(entropy))
    return {"dx": Wanted(dx, TERMS, size=size, moves=size + p * np.abs(g))}


def _softmax_backward(row: Row, given: Inputs) -> Results:
    dy, y = given["dy"], given["y"]
    total = (dy * y).sum(axis=1, keepdims=True)
    dx = np.where(np.isfinite(total), y * (dy - total), NAN)
    times = np.abs(dy) + np.abs(dy * y).sum(axis=1, keepdims=True)
    flushed = np.where(y < SMALLEST_NORMAL["float32"], np.nan_to_num(times), 0)
    return {"dx": Wanted(dx, TERMS, size=y * times, flushed=flushed)}


def _log_softmax_backward(row: Row, given: Inputs) -> Results:
    dy, p = given["dy"], np.exp(given["y"])
    total = dy.sum(axis=1, keepdims=True)
    dx = np.where(np.isfinite(total), dy - p * total, NAN)
    size = np.abs(dy) + p * np.abs(dy).sum(axis=1, keepdims=True)
    return {"dx": Wanted(dx, TERMS, size=size)}


def _finish(row: Row, given: Inputs) -> Results:
    x, m, d = row.x, given["maxima"][:, None], given["sums"][:, None]
    y = np.where(m == -INF, NAN, np.exp(x - m) / d)
    return {"y": Wanted(y, VALUE, above=0.0)}


def _log_finish(row: Row, given: Inputs) -> Results:
    x, m, d = row.x, given["maxima"][:, None], given["sums"][:, None]
    y = np.where(m == -INF, NAN, (x - m) - np.log(d))
    return {"y": Wanted(y, LOGARITHM)}


_FUNCTIONS: dict[str, Callable[[Row, Inputs], Results]] = {
    "softmax": _softmax,
    "softmax_lse": _softmax,
    "log_softmax": _log_softmax,
    "log_softmax_lse": _log_softmax,
    "logsumexp": _logsumexp,
    "entropy": _entropy,
    "entropy_lse": _entropy,
    "token_log_probs": _token_log_probs,
    "token_log_probs_lse": _token_log_probs,
    "token_log_probs_entropy": _token_log_probs,
    "partial": _partial,
    "partial_target": _partial_target,
    "merge": _merge,
    "merge_losses": _merge_losses,
    "finish": _finish,
    "log_finish": _log_finish,
    "softmax_backward": _softmax_backward,
    "log_softmax_backward": _log_softmax_backward,
    "logsumexp_backward": _logsumexp_backward,
    "entropy_backward": _entropy_backward,
    "cross_entropy": _cross_entropy,
    "cross_entropy_grad": _cross_entropy_grad,
    "cross_entropy_grad_rows": _cross_entropy_grad,
    "cross_entropy_smooth": _cross_entropy,
    "cross_entropy_probs": _cross_entropy_probs,
    "cross_entropy_probs_backward": _cross_entropy_probs_backward,
    "cross_entropy_grad_smooth": _cross_entropy_grad,
    "cross_entropy_backward": _cross_entropy_backward,
    "cross_entropy_backward_shard": _cross_entropy_backward,
    "token_log_probs_backward": _token_log_probs_backward,
    "token_log_probs_backward_entropy": _token_log_probs_backward,
}


def stem_of(name: str) -> str:
    """Return a function's name without the type and the number of its ids."""
    return re.sub(r"(_i32)?(_k\d+)?$", "", name)


def is_known(name: str) -> bool:
    """Return whether there is a reference for the function."""
    return stem_of(name) in _FUNCTIONS


def results_of(name: str, rows: Entered, given: Inputs) -> Results:
    """Return what a function should give.

    Args:
        name: the function's.
        rows: its first input, as hooks leave it.
        given: all its inputs by name, floats in long double; `upstream` of
            cross_entropy_backward an element a row.
    """
    with np.errstate(all="ignore"):
        return _FUNCTIONS[stem_of(name)](Row(rows), given)
