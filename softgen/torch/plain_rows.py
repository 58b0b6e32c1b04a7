"""The entropy of rows, and log-probabilities of one token each: two launches with their gradient.

Log-probabilities of several tokens, and by a temperature, take the way of `rows.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from softgen.call.dispatch import calls_of
from softgen.torch.dtypes import FLOATS
from softgen.torch.gradients import applied
from softgen.torch.plain import is_eager, tracked
from softgen.torch.rows import EntropyBackward, TokenLogProbsBackward

Tensor = torch.Tensor


def serves_entropy(x: Any, axis: Any) -> bool:
    """Whether `entropy_of` is for such a tensor: along one axis."""
    return type(axis) is int and isinstance(x, Tensor) and x.dtype in FLOATS and is_eager()


def serves_ids(x: Any, ids: Any) -> bool:
    """Whether `log_probs_of` is for such tensors: one id a row."""
    return (
        isinstance(x, Tensor)
        and isinstance(ids, Tensor)
        and ids.shape == x.shape[:-1]
        and x.dim() > 0
        and ids.dtype in (torch.int64, torch.int32)
        and x.dtype in FLOATS
        and is_eager()
    )


@functools.lru_cache(maxsize=256)
def entropy_of(x_dtype: Any, axis: int) -> Callable[[Any], Any]:
    """Return run(x), which returns the entropies along an axis in x's dtype, with autograd."""
    wide = _wide(x_dtype)
    calls, alone, calls_back = map(calls_of, ("entropy_lse", "entropy", "entropy_backward"))

    def forward(x: Any) -> tuple[Any, Any, Any]:
        entropy, lse = calls[Tensor](x, None, axis, wide, None, None, None, ())
        return entropy.to(x_dtype), lse, entropy

    def untracked(x: Any) -> Any:
        return alone[Tensor](x, None, axis, None, None, None, None, ())

    def gradient(g: Any, x: Any, lse: Any, entropy: Any) -> Any:
        rest = lse, entropy, g.to(wide).contiguous()
        return calls_back[Tensor](x, None, axis, None, None, None, None, rest)

    def again(g: Any, x: Any, lse: Any, entropy: Any) -> Any:
        upstream = g.to(wide)
        return applied(EntropyBackward, upstream, x)(x, lse, entropy, upstream, axis)

    return tracked("Entropy", forward, gradient, again, untracked, others=0)


@functools.lru_cache(maxsize=16)
def log_probs_of(x_dtype: Any, kind: Any) -> Callable[[Any, Any], Any]:
    """Return run(x, ids), which returns log-probabilities, in the type of arithmetic."""
    wide = _wide(x_dtype)
    suffix = "" if kind is torch.int64 else "_i32"
    names = ("token_log_probs_lse", "token_log_probs", "token_log_probs_backward")
    calls, alone, calls_back = (calls_of(f"{name}{suffix}") for name in names)

    def forward(x: Any, ids: Any) -> tuple[Any, Any]:
        log_probs, lse = calls[Tensor](x, None, -1, wide, None, None, None, (ids,))
        return log_probs, lse

    def untracked(x: Any, ids: Any) -> Any:
        return alone[Tensor](x, None, -1, wide, None, None, None, (ids,))

    def gradient(g: Any, x: Any, ids: Any, lse: Any) -> Any:
        rest = ids, lse, g.contiguous()
        return calls_back[Tensor](x, None, -1, None, None, None, None, rest)

    def again(g: Any, x: Any, ids: Any, lse: Any) -> Any:
        return applied(TokenLogProbsBackward, g, x)(x, ids, lse, g, None, None, None)

    return tracked("TokenLogProbs", forward, gradient, again, untracked)


def _wide(dtype: Any) -> Any:
    return torch.float64 if dtype is torch.float64 else torch.float32
