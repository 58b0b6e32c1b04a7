"""Autograd of what is one number a row, or a few: entropies, log-probabilities and losses."""

from __future__ import annotations

from typing import Any

import torch

from softgen.call import gradients, losses, tokens
from softgen.errors import NotSupportedError
from softgen.torch.dtypes import wide
from softgen.torch.gradients import Function, applied, axes_behind, batched


class GradientOfRows(Function):
    """Base of gradients that are not differentiable again.

    Attributes:
        of: the function whose gradient it is.
    """

    of: str

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save nothing."""

    @classmethod
    def backward(cls, ctx: Any, *g: Any) -> Any:
        """Raise NotSupportedError."""
        raise NotSupportedError(
            f"the gradient of softgen.torch.{cls.of} is not differentiable again; leave "
            "create_graph=True out, or use PyTorch's own log_softmax"
        )


class EntropyBackward(GradientOfRows):
    """dx = -p (log p + H) upstream."""

    of = "entropy"

    @staticmethod
    def forward(x: Any, lse: Any, entropy: Any, upstream: Any, axis: Any) -> Any:
        """Return dx."""
        rows = lse.detach(), entropy.detach(), upstream.detach()
        return gradients.entropy_backward(x.detach(), *rows, axis)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Any, ...], *request: Any) -> tuple[Any, int]:
        """Return dx of a batch, whose dimension becomes the first."""
        *tensors, axis = request
        first = [batched(info, dim, each) for dim, each in zip(in_dims, tensors, strict=False)]
        return cls.apply(*first, axes_behind(axis, first[0].dim() - 1)), 0


class Entropy(Function):
    """The entropy in the type of the arithmetic, as the gradient needs it."""

    @staticmethod
    def forward(x: Any, axis: Any) -> Any:
        """Return the entropy and lse, float32 (float64 for float64)."""
        return tokens.entropy(x.detach(), axis, dtype=wide(x), return_lse=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save x and the results."""
        x, ctx.axis = inputs
        entropy, lse = output
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)  # or zeros for lse are written
        ctx.save_for_backward(x, lse, entropy)

    @staticmethod
    def backward(ctx: Any, upstream: Any, _: Any) -> tuple[Any, None]:
        """Return dx."""
        if upstream is None:
            return None, None
        x, lse, entropy = ctx.saved_tensors
        return applied(EntropyBackward, upstream, x)(x, lse, entropy, upstream, ctx.axis), None

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Any, ...], x: Any, axis: Any) -> tuple[Any, Any]:
        """Return the results of a batch, whose dimension becomes the first."""
        return cls.apply(batched(info, in_dims[0], x), axes_behind(axis, x.dim() - 1)), (0, 0)


class TokenLogProbsBackward(GradientOfRows):
    """The gradient of log-probabilities and, where there is one, of the entropy."""

    of = "token_log_probs"

    @staticmethod
    def forward(
        x: Any, ids: Any, lse: Any, upstream: Any, entropy: Any, of_entropy: Any, temperature: Any
    ) -> Any:
        """Return dx."""
        rows = lse.detach(), upstream.detach()
        both = () if entropy is None else (entropy.detach(), of_entropy.detach())
        given = (x.detach(), ids, *rows, *both)
        return gradients.token_log_probs_backward(*given, temperature=temperature)


class TokenLogProbs(Function):
    """Log-probabilities of ids in the type of the arithmetic, lse, and the entropy if asked for."""

    @staticmethod
    def forward(x: Any, ids: Any, temperature: Any, entropy: bool) -> Any:
        """Return them, float32 (float64 for float64)."""
        return tokens.token_log_probs(
            *(x.detach(), ids),
            temperature=temperature,
            dtype=wide(x),
            return_lse=True,
            return_entropy=entropy,
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save x, ids and the results of rows."""
        x, ids, ctx.temperature, _ = inputs
        _, lse, *entropy = output
        ctx.mark_non_differentiable(lse)
        ctx.save_for_backward(x, ids, lse, *entropy)

    @staticmethod
    def backward(ctx: Any, upstream: Any, _: Any, *more: Any) -> tuple[Any, None, None, None]:
        """Return dx."""
        x, ids, lse, *entropy = ctx.saved_tensors
        both = (entropy[0], more[0]) if entropy else (None, None)
        run = applied(TokenLogProbsBackward, upstream, x)
        return run(x, ids, lse, upstream, *both, ctx.temperature), None, None, None


class CrossEntropyBackward(GradientOfRows):
    """dx from lse and the upstream gradient of each row, or of all."""

    of = "cross_entropy"

    @staticmethod
    def forward(
        x: Any, target: Any, lse: Any, upstream: Any, ignored: int, smoothing: float, z_loss: float
    ) -> Any:
        """Return dx."""
        return losses.cross_entropy_backward(
            *(x.detach(), target, lse, upstream.detach()),
            ignore_index=ignored,
            label_smoothing=smoothing,
            z_loss=z_loss,
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the inputs but lse, which is made of x."""
        x, target, _, upstream, *ctx.options = inputs
        ctx.save_for_backward(x, target, upstream)

    @staticmethod
    def backward(ctx: Any, g: Any) -> tuple[Any, ...]:
        """Return the gradients with respect to x and upstream, by PyTorch's own operations."""
        x, target, upstream = ctx.saved_tensors
        ignored, smoothing, z_loss = ctx.options
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            # Views of their own: upstream may be made of x, whose other part is not asked for here.
            x, upstream = (
                each.view_as(each)
                if again and each.requires_grad
                else each.detach().requires_grad_()
                for each in (x, upstream)
            )
            logits = x.to(upstream.dtype)
            rows, of = logits.reshape(-1, x.shape[-1]), target.reshape(-1).long()
            # Past torch.nn.functional, whose function may be softgen's.
            loss = torch._C._nn.cross_entropy_loss(rows, of, None, 0, ignored, smoothing)
            if z_loss:
                loss = loss + z_loss * torch.logsumexp(rows, -1).square() * (of != ignored)
            each = upstream.reshape(-1).expand(len(rows))  # one of all rows, or one a row
            (dx,) = torch.autograd.grad(loss, x, each, create_graph=True)
        of_x, of_upstream = torch.autograd.grad(dx, (x, upstream), g, create_graph=again)
        return of_x, None, None, of_upstream, None, None, None
