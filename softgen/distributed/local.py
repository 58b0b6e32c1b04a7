"""What this process computes of its own shard: the kernels, on arrays that nobody tracks.

A shard may have no column, for which there is no kernel.
"""

from __future__ import annotations

import functools
import math
import sys
from typing import Any

from softgen.call import api, gradients, tokens
from softgen.call.dispatch import calls_of
from softgen.call.options import HookedOptions, call

# Eight blocks on each multiprocessor of an H200; a piece should be worth a block, in packs of 16
# bytes and of any type.
ENOUGH_ROWS, LEAST_PIECE, PACK = 1056, 512, 8

# out, axis, dtype, tune, variant and batch_invariant of a call: a caller's defaults.
_DEFAULTS = (None, -1, None, None, None, None)

# A choice that each process would time for itself could differ, and with it the last bits.
_SAME = (None, -1, None, "off", None, True)


def partial(x: Any, scale: Any) -> tuple[Any, Any]:
    """Return the pair (m, d) of each row of x * scale; a scale of None is 1."""
    if scale is None:
        return api.partial(x)
    pair: tuple[Any, Any] = call("partial", x, {"scale": scale}, HookedOptions)
    return pair


def pair(x: Any, scale: Any) -> tuple[Any, Any]:
    """Return the pair of each row of the shard: (-inf, 0) where it has no column."""
    if math.prod(x.shape):
        return partial(x, scale)
    d = _zeros_of(x)
    return d - math.inf, d


def merge(ms: Any, ds: Any) -> tuple[Any, Any]:
    """Return the pair of each row from those of its pieces, (rows, pieces), in their order."""
    pair: tuple[Any, Any] = _call("merge", ms, ds, options=_SAME)
    return pair


@functools.cache
def pieces_of(rows: int, cols: int) -> int:
    """Return into how many pieces a row is best cut for `finish`.

    `finish` has one block a row, and few rows do not fill the GPU. It needs nothing of the rest of
    a row, so that pieces may be its rows. Pieces have one width and start on packs, so that odd
    widths are not cut.
    """
    wanted = min(-(-ENOUGH_ROWS // max(1, rows)), cols // LEAST_PIECE)
    found = (k for k in range(max(1, wanted), 4 * wanted + 1) if not cols % (k * PACK))
    return next(found, 1) if wanted > 1 else 1


def finished(x: Any, m: Any, d: Any, log: bool, dtype: Any) -> Any:
    """Return `finish` of rows that are cut into pieces where that is faster; there may be none."""
    if not math.prod(x.shape):
        return module_of(x).empty_like(x, dtype=dtype)
    rows, cols = math.prod(m.shape), x.shape[-1]
    pieces = pieces_of(rows, cols)
    if pieces == 1:
        return finish(x, m, d, log, dtype)
    spread = module_of(m).broadcast_to
    m, d = (spread(each.reshape(rows, 1), (rows, pieces)).reshape(-1) for each in (m, d))
    return finish(x.reshape(-1, cols // pieces), m, d, log, dtype).reshape(x.shape)


def finish(x: Any, m: Any, d: Any, log: bool, dtype: Any) -> Any:
    """Return exp(x - m) / d of `dtype`, or its logarithm."""
    return api.finish(x, m, d, log=log, dtype=dtype)


def logsumexp(x: Any) -> Any:
    """Return log(sum(exp(x))) in the type of the arithmetic."""
    return api.logsumexp(x, dtype=tokens.arithmetic_of(x))


def lse_of(x: Any) -> Any:
    """Return `logsumexp` of the shard: -inf where it has no column."""
    return logsumexp(x) if math.prod(x.shape) else _zeros_of(x) - math.inf


def merge_lse(lses: Any) -> Any:
    """Return lse of each row from those of its pieces, (rows, pieces), in their order."""
    return _call("logsumexp", lses, options=_SAME)


def logsumexp_backward(x: Any, lse: Any, upstream: Any) -> Any:
    """Return upstream * exp(x - lse)."""
    return gradients.logsumexp_backward(x, lse, upstream)


def entropy(x: Any, scale: Any) -> tuple[Any, Any]:
    """Return the entropy of x * scale and its lse in the type of the arithmetic."""
    hooks = {} if scale is None else {"scale": scale}
    request = ("entropy_lse", x, hooks, HookedOptions)
    found: tuple[Any, Any] = call(*request, dtype=tokens.arithmetic_of(x))
    return found


def entropy_of(x: Any, scale: Any) -> tuple[Any, Any]:
    """Return `entropy` of the shard: (0, -inf) where it has no column."""
    if math.prod(x.shape):
        return entropy(x, scale)
    none = _zeros_of(x)
    return none, none - math.inf


def entropy_backward(x: Any, lse: Any, entropy: Any, upstream: Any, scale: Any) -> Any:
    """Return -p (log p + entropy) * upstream * scale, where log p = x * scale - lse."""
    if scale is None:
        return gradients.entropy_backward(x, lse, entropy, upstream)
    rows = (lse, entropy, upstream * scale)  # the kernel's dx is with respect to x * scale
    return call("entropy_backward", x, {"scale": scale}, HookedOptions, others=rows)


def partial_target(x: Any, target: Any, first: int, ignored: int) -> tuple[Any, Any, Any]:
    """Return m, d and the target's element of each row, +inf where another process may have it."""
    name = _by_type("partial_target", target)
    found: tuple[Any, Any, Any] = _call(name, x, target, ignored, first)
    return found


def targets_of(x: Any, target: Any, first: int, ignored: int) -> tuple[Any, Any, Any]:
    """Return `partial_target`, or what a shard without columns has of it."""
    if math.prod(x.shape):
        return partial_target(x, target, first, ignored)
    m, d = pair(x, None)
    return m, d, d + math.inf


def merge_losses(
    ms: Any, ds: Any, logits: Any, target: Any, ignored: int, z_loss: float
) -> tuple[Any, Any]:
    """Return the loss of each row and lse from its pieces' pairs, (rows, pieces)."""
    name, more = _by_type("merge_losses", target), (ds, logits, target, ignored, z_loss)
    found: tuple[Any, Any] = _call(name, ms, *more, options=_SAME)
    return found


def cross_entropy_backward(
    x: Any,
    target: Any,
    ignored: int,
    lse: Any,
    upstream: Any,
    smoothing: float,
    z_loss: float,
    loss: Any,
    first: int,
    classes: int,
    out: Any = None,
) -> Any:
    """Return the gradient of the loss of each row. `upstream` is one a row, or one for all.

    `out` is where to write it: x itself, or None for a new array.
    """
    name = _by_type("cross_entropy_backward_shard", target)
    rows = (lse, upstream, 1, math.prod(upstream.shape))
    given = (x, target, ignored, *rows, smoothing, z_loss, loss, first, classes)
    return _call(name, *given, options=(out, *_DEFAULTS[1:]))


def token_log_probs_backward(
    x: Any, ids: Any, lse: Any, upstream: Any, entropy: Any, of_entropy: Any, temperature: Any
) -> Any:
    """Return the gradient of the log-probabilities of columns of x, (..., k), and of entropies."""
    rows = (lse, upstream, entropy, of_entropy)
    return gradients.token_log_probs_backward(x, ids, *rows, temperature=temperature)


def _call(name: str, x: Any, *more: Any, options: tuple[Any, ...] = _DEFAULTS) -> Any:
    """Return the results of the function called `name`; `more` are its inputs beside x."""
    return calls_of(name)[type(x)](x, *options, more)


def _by_type(name: str, target: Any) -> str:
    """Return the function for the type of `target`, int32 or int64."""
    return name if target.dtype.itemsize == 8 else f"{name}_i32"


def _zeros_of(x: Any) -> Any:
    """Return a 0 for each row of an array without elements, in the type of the arithmetic."""
    return x.sum(-1, dtype=getattr(module_of(x), "float64" if x.dtype.itemsize == 8 else "float32"))


def module_of(x: Any) -> Any:
    """Return the module of an array's library."""
    return sys.modules[type(x).__module__.partition(".")[0]]
