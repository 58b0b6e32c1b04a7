"""Autograd of rows that lie in shards. No gradient is differentiable again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.autograd.function import once_differentiable

from softgen.distributed import local
from softgen.distributed.vocabulary import Chosen, logits_at, scale_by_row
from softgen.torch.dtypes import wide

F = TypeVar("F", bound=Callable[..., Any])


def once(backward: F) -> F:
    """Return a gradient that raises where it is differentiated again."""
    found: F = once_differentiable(backward)
    return found


class Softmax(torch.autograd.Function):
    """softmax: dx = y (dy - sum(dy y)), where the sum is over all shards."""

    @staticmethod
    def forward(ctx: Any, x: Any, dtype: Any, exchange: Any) -> Any:
        """Return y, of `dtype`."""
        y = exchange.softmax(x.detach(), dtype)
        ctx.save_for_backward(y)
        ctx.exchange, ctx.dtype = exchange, x.dtype
        return y

    @staticmethod
    @once
    def backward(ctx: Any, dy: Any) -> tuple[Any, None, None]:
        """Return dx."""
        (y,) = ctx.saved_tensors
        up = dy.to(wide(y))
        total = ctx.exchange.total((up * y).sum(-1))
        return ((up - total[..., None]) * y).to(ctx.dtype), None, None


class LogSoftmax(torch.autograd.Function):
    """log_softmax: dx = dy - exp(y) sum(dy), where the sum is over all shards."""

    @staticmethod
    def forward(ctx: Any, x: Any, dtype: Any, exchange: Any) -> Any:
        """Return y, of `dtype`."""
        y = exchange.log_softmax(x.detach(), dtype)
        ctx.save_for_backward(y)
        ctx.exchange, ctx.dtype = exchange, x.dtype
        return y

    @staticmethod
    @once
    def backward(ctx: Any, dy: Any) -> tuple[Any, None, None]:
        """Return dx."""
        (y,) = ctx.saved_tensors
        up = dy.to(wide(y))
        total = ctx.exchange.total(up.sum(-1))
        return (up - torch.exp(y.to(up.dtype)) * total[..., None]).to(ctx.dtype), None, None


class LogSumExp(torch.autograd.Function):
    """logsumexp in the type of the arithmetic; its gradient asks nobody."""

    @staticmethod
    def forward(ctx: Any, x: Any, exchange: Any) -> Any:
        """Return lse."""
        lse = exchange.logsumexp(x.detach())
        ctx.save_for_backward(x, lse)
        return lse

    @staticmethod
    @once
    def backward(ctx: Any, upstream: Any) -> tuple[Any, None]:
        """Return upstream * exp(x - lse)."""
        x, lse = ctx.saved_tensors
        if not x.numel():
            return torch.empty_like(x), None
        return local.logsumexp_backward(x.detach(), lse, upstream), None


class CrossEntropy(torch.autograd.Function):
    """The losses of rows; their gradient asks nobody.

    lse is NaN where the target is no class of any process, and `target` -1 where the row is
    ignored.
    """

    @staticmethod
    def forward(ctx: Any, x: Any, losses: Any, lse: Any, target: Any, mine: Any, z: float) -> Any:
        """Return the losses, which are known."""
        ctx.save_for_backward(x, lse, target, mine)
        ctx.z_loss = z
        return losses.view_as(losses)

    @staticmethod
    @once
    def backward(ctx: Any, g: Any) -> tuple[Any, ...]:
        """Return dx.

        The kernel wants a target of this shard. Of rows that have none here it gets another column,
        whose element is then put right.
        """
        x, lse, target, mine = ctx.saved_tensors
        x = x.detach()
        if not x.numel():
            return torch.empty_like(x), *(None,) * 5
        dx = local.cross_entropy_backward(x, target, lse, g, ctx.z_loss)
        ignored = (target < 0)[..., None]
        at = target[..., None].clamp_min(0)
        p = torch.exp(logits_at(x, at, None) - lse[..., None])
        scale = g * (1 + 2 * ctx.z_loss * lse) if ctx.z_loss else g
        right = p * scale[..., None] - mine[..., None] * g[..., None]
        return _with(dx, at, right.masked_fill_(ignored, 0)), *(None,) * 5


class TokenLogProbs(torch.autograd.Function):
    """log p of chosen columns, (..., k); their gradient asks nobody."""

    @staticmethod
    def forward(
        ctx: Any, x: Any, log_probs: Any, lse: Any, found: Chosen, known: Any, temperature: Any
    ) -> Any:
        """Return the log-probabilities, which are known."""
        ctx.save_for_backward(x, lse, found.columns, found.mine, known)
        ctx.temperature = temperature
        return log_probs.view_as(log_probs)

    @staticmethod
    @once
    def backward(ctx: Any, g: Any) -> tuple[Any, ...]:
        """Return dx, as CrossEntropy does."""
        x, lse, at, mine, known = ctx.saved_tensors
        x = x.detach()
        if not x.numel():
            return torch.empty_like(x), *(None,) * 5
        g = torch.where(known | (g == 0), g, torch.nan)
        dx = local.token_log_probs_backward(x, at, lse, g, ctx.temperature)
        scale = None if ctx.temperature is None else 1 / ctx.temperature
        p = torch.exp(logits_at(x, at, scale) - lse[..., None])
        # Several ids of a row may be one column.
        hits = ((at[..., :, None] == at[..., None, :]) * (mine * g)[..., None, :]).sum(-1)
        right = hits - p * g.sum(-1, keepdim=True)
        right = right if scale is None else right * scale_by_row(scale)
        return _with(dx, at, right), *(None,) * 5


def _with(dx: Any, columns: Any, elements: Any) -> Any:
    """Return dx with elements of each row in the place of what it has."""
    return dx.scatter_(-1, columns.to(torch.int64), elements.to(dx.dtype))
