"""What this process computes of its own shard: the kernels, on arrays that nobody tracks.

A shard may have no column, for which there is no kernel.
"""

from __future__ import annotations

import functools
from typing import Any

from softgen.call import api, gradients, losses
from softgen.call.full import calls_of
from softgen.call.hooks import call_hooked
from softgen.call.tokens import arithmetic_of

# Eight blocks on each multiprocessor of an H200; a piece should be worth a block, in packs of 16
# bytes and of any type.
ENOUGH_ROWS, LEAST_PIECE, PACK = 1056, 512, 8

# A choice that each process would time for itself could differ, and with it the last bits.
_SAME = (None, -1, None, "off", None, True)


def partial(x: Any, scale: Any) -> tuple[Any, Any]:
    """Return the pair (m, d) of each row of x * scale; a scale of None is 1."""
    if scale is None:
        return api.partial(x)
    request = (x, None, -1, None, None, None, None, True, {"scale": scale})
    pair: tuple[Any, Any] = call_hooked("partial", *request)
    return pair


def merge(ms: Any, ds: Any) -> tuple[Any, Any]:
    """Return the pair of each row from those of its pieces, (rows, pieces), in their order."""
    pair: tuple[Any, Any] = calls_of("merge")[type(ms)](ms, *_SAME, (ds,))
    return pair


@functools.cache
def pieces_of(rows: int, cols: int) -> int:
    """Return into how many pieces `finish` had better have each row cut.

    It has a block a row, where there are not enough for the GPU, and takes no part of a row from
    another. Pieces are of one width, and start where packs do: there are none of odd widths.
    """
    wanted = min(-(-ENOUGH_ROWS // max(1, rows)), cols // LEAST_PIECE)
    found = (k for k in range(max(1, wanted), 4 * wanted + 1) if not cols % (k * PACK))
    return next(found, 1) if wanted > 1 else 1


def finish(x: Any, m: Any, d: Any, log: bool, dtype: Any) -> Any:
    """Return exp(x - m) / d of `dtype`, or its logarithm."""
    return api.finish(x, m, d, log=log, dtype=dtype)


def logsumexp(x: Any) -> Any:
    """Return log(sum(exp(x))) in the type of the arithmetic."""
    return api.logsumexp(x, dtype=arithmetic_of(x))


def merge_lse(lses: Any) -> Any:
    """Return lse of each row from those of its pieces, (rows, pieces), in their order."""
    return calls_of("logsumexp")[type(lses)](lses, *_SAME, ())


def logsumexp_backward(x: Any, lse: Any, upstream: Any) -> Any:
    """Return upstream * exp(x - lse)."""
    return gradients.logsumexp_backward(x, lse, upstream)


def cross_entropy_backward(x: Any, target: Any, lse: Any, upstream: Any, z_loss: float) -> Any:
    """Return the gradient of the loss; a target of -1 makes its row 0."""
    return losses.cross_entropy_backward(x, target, lse, upstream, ignore_index=-1, z_loss=z_loss)


def token_log_probs_backward(x: Any, ids: Any, lse: Any, upstream: Any, temperature: Any) -> Any:
    """Return the gradient of the log-probabilities of columns of x, (..., k)."""
    return gradients.token_log_probs_backward(x, ids, lse, upstream, temperature=temperature)
