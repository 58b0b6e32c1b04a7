"""Autograd of rows that lie in shards. No gradient is differentiable again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch.autograd.function import once_differentiable

from softgen.distributed import local
from softgen.distributed.vocabulary import Chosen, logits_at, scale_by_row
from softgen.torch.dtypes import wide
from softgen.torch.losses import reduced_losses
from softgen.torch.registry import Function

F = TypeVar("F", bound=Callable[..., Any])


def once(backward: F) -> F:
    """Return a gradient that raises where it is differentiated again.

    Where nobody asks for that, it spares PyTorch's look at all that comes and goes, 20 us.
    """
    checked = once_differentiable(backward)

    def run(ctx: Any, *upstream: Any) -> Any:
        return (checked if torch.is_grad_enabled() else backward)(ctx, *upstream)

    return cast("F", run)


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


class Losses(NamedTuple):
    """What is asked of the losses of rows.

    Attributes:
        target: the class of each row, among those of all processes.
        first: the number of this process's first column.
        ignored: a target that counts for nothing.
        z_loss: the weight of lse^2.
        reduction: as in `softgen.distributed.cross_entropy`.
        dtype: of the result.
    """

    target: Any
    first: int
    ignored: int
    z_loss: float = 0.0
    reduction: str = "none"
    dtype: Any = None

    def of(self, x: Any, exchange: Any) -> tuple[Any, Any, Any, Any]:
        """Return the result, lse, the losses of rows, and what divided their sum, or None."""
        rows, lse = exchange.losses(x, self.target, self.first, self.ignored, self.z_loss)
        loss, _, counted = reduced_losses(
            *(rows, self.target, None, self.ignored, self.reduction),
            *(0, self.dtype or rows.dtype),
        )
        return loss, lse, rows, counted


class CrossEntropy(Function):
    """Losses, reduced; their gradient asks nobody, and reads what the loss of its row was."""

    @staticmethod
    def forward(x: Any, asked: Losses, exchange: Any) -> tuple[Any, ...]:
        """Return the loss, lse, the losses of rows, and what divided their sum, or None."""
        loss, lse, rows, counted = asked.of(x.detach(), exchange)
        return loss.view_as(loss) if loss is rows else loss, lse, rows, counted

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save x, target and all results but the loss."""
        x, ctx.asked, _ = inputs
        _, *more = output
        ctx.mark_non_differentiable(*(each for each in more if each is not None))
        ctx.set_materialize_grads(False)  # or zeros for each of them are written
        ctx.save_for_backward(x, ctx.asked.target, *more)

    @staticmethod
    @once
    def backward(ctx: Any, g: Any, *_: Any) -> tuple[Any, None, None]:
        """Return dx."""
        if g is None:
            return None, None, None
        x, target, lse, rows, counted = ctx.saved_tensors
        x = x.detach()
        if not x.numel():
            return torch.empty_like(x), None, None
        if g.dim() and g.numel() and not any(g.stride()):  # expanded, as that of a sum is
            g = g[(0,) * g.dim()]
        if counted is not None:
            g = g / counted
        asked = ctx.asked
        upstream = g.to(lse.dtype).contiguous()
        options = (asked.z_loss, rows, asked.first)
        dx = local.cross_entropy_backward(x, target, asked.ignored, lse, upstream, *options)
        return dx, None, None


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
        """Return dx.

        The kernel wants columns of this shard. For those that are none here it gets others, whose
        elements are then put right.
        """
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
