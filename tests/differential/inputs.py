"""What a function takes beside x, drawn so that it belongs to x."""

from __future__ import annotations

from typing import Any

import numpy as np

from softgen.problems.dtypes import FLOAT32_TINY
from tests.differential.functions import INF, NAN, Row, stem_of
from tests.differential.regimes import Random, drawn
from tests.differential.rows import Entered
from tests.differential.storage import Wide, exact, rounded

# Of gradients: what a GradScaler starts with among them.
UPSTREAMS = (1.0, 1.0, -1.5, 0.0, 65536.0, -65536.0, 1e-6, 0.375, 3e4)


def first_input(random: Random, function: str, rows: int, cols: int, dtype: str) -> Any:
    """Return the function's first input: dy of gradients of results, else x."""
    if stem_of(function) in ("softmax_backward", "log_softmax_backward"):
        dy = random.standard_normal((rows, cols)) * random.choice([1e-3, 1, 1, 1e3, 65536.0])
        for row in range(rows):
            kind = random.integers(12)
            if kind == 0:
                dy[row, random.integers(cols)] = random.choice([NAN, INF, -INF])
            elif kind == 1:
                dy[row] = 0
            elif kind == 2:
                dy[row] = random.choice([1e-3, -2.0])
        return dy
    return drawn(random, rows, cols, dtype)


def function_inputs(
    random: Random, function: str, entered: Entered, dtype: str, compute: str
) -> dict[str, Any]:
    """Return values of the inputs beside the first, by name.

    Args:
        random: where they are drawn from.
        function: its name.
        entered: the rows of the first input, as hooks leave them.
        dtype: the type of arrays with an element a column.
        compute: the type of arithmetic.
    """
    stem, (rows, cols) = stem_of(function), entered.x.shape
    with np.errstate(all="ignore"):
        row = Row(entered)
        found: dict[str, Any] = {}
        of_ids = stem.startswith("cross_entropy") and "probs" not in stem
        if of_ids or stem.startswith(("partial_target", "merge_losses")):
            found |= _targets(random, function, row)
            found["z_loss"] = random.choice([0.0, 0.0, 1e-4, 2.0**-10, 0.5, -1e-3])
        if stem.endswith("_smooth"):
            found["label_smoothing"] = random.choice([0.0, 0.1, 0.5, 1.0])
        if stem.startswith("token_log_probs"):
            found |= _ids(random, function, row)
        if stem.startswith("cross_entropy_probs"):
            probs = _probabilities(random, rows, cols, dtype).p
            # A kernel whose arithmetic is float32 takes less for 0.
            found["probs"] = np.where(probs < FLOAT32_TINY, 0, probs)
        if stem == "cross_entropy_probs_backward":
            more = {name: random.choice(UPSTREAMS, rows) for name in ("scale", "upstream", "rest")}
            return {**found, "lse": row.lse, **more}
        if stem == "softmax_backward":
            found["y"] = _probabilities(random, rows, cols, dtype).p
        if stem == "log_softmax_backward":
            found["y"] = _probabilities(random, rows, cols, dtype).log_p
        if stem in ("merge", "merge_losses"):
            found |= _pairs(random, entered.x)
        if stem in ("finish", "log_finish"):
            found |= _given_pair(random, row)
        if stem == "cross_entropy_grad":
            found["upstream"] = random.choice(UPSTREAMS)
        elif stem in ("cross_entropy_grad_rows", "cross_entropy_grad_smooth"):
            found["upstream"] = random.choice(UPSTREAMS, rows)
        elif "backward" in stem:
            found |= _from_lse(random, stem, row, compute, found)
    return found


def _targets(random: Random, function: str, row: Row) -> dict[str, Any]:
    rows, cols = row.x.shape
    target: Any = random.integers(0, cols, rows)
    likely = np.argmax(np.where(np.isnan(row.x), -INF, row.x), axis=1)
    target = np.where(random.random(rows) < 0.4, likely, target)
    ignored = int(random.choice([-100, -100, -1, 0, cols // 2]))
    none = [cols, -1, cols + 2**20, 2**31 - 1, -(2**31)]
    none += [] if "_i32" in function else [2**40, 2**32, -(2**63), 2**63 - 1]
    for index in range(rows):
        kind = random.integers(8)
        if kind == 0:
            target[index] = ignored
        elif kind == 1:
            target[index] = none[random.integers(len(none))]
    first = 0
    if stem_of(function) in ("partial_target", "cross_entropy_backward_shard"):
        first = int(random.choice([0, 2, cols, 2 * cols]))
        here = (target >= 0) & (target < cols) & (random.random(rows) < 0.8)
        target = np.where(here, target + first, target)
    return {"target": target, "ignore_index": ignored, "first": first}


def _ids(random: Random, function: str, row: Row) -> dict[str, Any]:
    rows, cols = row.x.shape
    count = int(function.rpartition("_k")[2]) if "_k" in function else 1
    ids = random.integers(0, cols, (rows, count))
    likely = np.argmax(np.where(np.isnan(row.x), -INF, row.x), axis=1)[:, None]
    ids = np.where(random.random(ids.shape) < 0.3, likely, ids)
    none = [cols, -1, -100, 2**31 - 1] + ([] if "_i32" in function else [2**40, -(2**62)])
    ids = np.where(random.random(ids.shape) < 0.1, random.choice(none, ids.shape), ids)
    return {"ids": ids if count > 1 else ids[:, 0]}


def _probabilities(random: Random, rows: int, cols: int, dtype: str) -> Row:
    x = drawn(random, rows, cols, dtype)
    x = np.where(np.isfinite(x) | (x == -INF), x, 0)
    x[(x == -INF).all(axis=1)] = 0
    return Row(Entered(x.astype(np.longdouble), None, np.zeros(rows, np.longdouble), 0.0))


def _pairs(random: Random, ms: Wide) -> dict[str, Any]:
    rows, cols = ms.shape
    ds = random.uniform(1, random.choice([1.5, 8.0, 1000.0]), ms.shape)
    ds = np.where(ms == -INF, 0, np.where(np.isnan(ms), NAN, ds))
    finite = np.where(np.isfinite(ms), ms, 0)
    logits = finite[np.arange(rows), random.integers(0, cols, rows)]
    # As the target's element is at most the maximum of its piece.
    logits = logits - np.abs(random.standard_normal(rows)) * random.choice([0.0, 1.0, 10.0])
    kind = random.random(rows)
    logits = np.where(kind < 0.15, -INF, np.where((ms == -INF).all(axis=1), -INF, logits))
    logits = np.where(kind > 0.9, INF, logits)
    return {"ds": ds, "logits": logits}


def _given_pair(random: Random, row: Row) -> dict[str, Any]:
    """Return pairs of rows of which these may be a piece."""
    m = np.where(row.infinite, NAN, np.where(row.empty, -INF, row.m))
    d = np.where(row.empty, 0, row.d)
    more = random.choice([0.0, 0.0, 1.0, 30.0], len(m))
    larger = np.where(np.isfinite(m), m + more, m)
    return {"maxima": larger, "sums": np.where(d > 0, d * np.exp(-more) + (more > 0), d)}


def _from_lse(
    random: Random, stem: str, row: Row, compute: str, found: dict[str, Any]
) -> dict[str, Any]:
    """Return what gradients from lse take: lse as it was returned, rounded."""
    rows = len(row.x)
    shape = found["ids"].shape if "ids" in found else (rows,)
    upstream = random.choice([*UPSTREAMS, float(random.standard_normal())], size=shape)
    if random.random() < 0.3:
        upstream[...] = random.choice(UPSTREAMS)
    more: dict[str, Any] = {"lse": row.lse, "upstream": upstream}
    if stem.startswith("cross_entropy"):
        more["lse"] = np.where(found["target"] == found["ignore_index"], -INF, row.lse)
        more["label_smoothing"] = random.choice([0.0, 0.0, 0.1, 1.0])
        if stem.endswith("shard"):
            more["classes"] = int(row.x.shape[1] * random.choice([1, 1, 2, 8]))
            more["loss"] = np.where(row.odd | (random.random(rows) < 0.1), NAN, 1.25)
    if "entropy" in stem and not stem.startswith("cross"):
        kept = exact(rounded(row.entropy, compute), compute)
        # A kernel whose arithmetic is float32 returns 0 for less, and takes less for 0.
        flushed = compute == "float32" and np.abs(kept) < FLOAT32_TINY
        more["entropy"] = np.where(flushed, 0, kept)
        if stem.startswith("token"):
            more["entropy_upstream"] = random.choice(UPSTREAMS, size=rows)
    return more
