"""Autograd: each function with its gradient, and the gradients with theirs.

Eager calls come here and not to the registered operators, whose dispatch takes 11 us a call
(PyTorch issue 177109). What is saved is the result; it is never overwritten.
"""

from __future__ import annotations

from typing import Any

import torch

from softgen.call import api, gradients
from softgen.torch.dimensions import widened

# Whether a transform of torch.func is under way: then tensors are not what they seem.
TRANSFORMING = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)


class Softmax(torch.autograd.Function):
    """softmax, whose gradient needs its result alone."""

    @staticmethod
    def forward(x: Any, dim: int, dtype: Any) -> Any:
        """Return the softmax of `dtype`."""
        return api.softmax(x.detach(), dim, dtype=dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the result."""
        x, ctx.dim, _ = inputs
        ctx.dtype = x.dtype
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> tuple[Any, None, None]:
        """Return dx, of x's dtype."""
        (y,) = ctx.saved_tensors
        run = SoftmaxBackward.apply if wanted_again(dy, y) else SoftmaxBackward.forward
        return run(dy, y, ctx.dim, ctx.dtype), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Any, dim: int, dtype: Any) -> tuple[Any, int]:
        """Return the softmax of a batch, whose dimension becomes the first."""
        return Softmax.apply(*_batched(x, in_dims[0], dim), dtype), 0


class LogSoftmax(torch.autograd.Function):
    """log_softmax, whose gradient needs its result alone."""

    @staticmethod
    def forward(x: Any, dim: int, dtype: Any) -> Any:
        """Return the log_softmax of `dtype`."""
        return api.log_softmax(x.detach(), dim, dtype=dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the result."""
        x, ctx.dim, _ = inputs
        ctx.dtype = x.dtype
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> tuple[Any, None, None]:
        """Return dx, of x's dtype."""
        (y,) = ctx.saved_tensors
        run = LogSoftmaxBackward.apply if wanted_again(dy, y) else LogSoftmaxBackward.forward
        return run(dy, y, ctx.dim, ctx.dtype), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Any, dim: int, dtype: Any) -> tuple[Any, int]:
        """Return the log_softmax of a batch, whose dimension becomes the first."""
        return LogSoftmax.apply(*_batched(x, in_dims[0], dim), dtype), 0


class LogSumExp(torch.autograd.Function):
    """logsumexp in the type of the arithmetic, as the gradient needs it."""

    @staticmethod
    def forward(x: Any, dims: tuple[int, ...]) -> Any:
        """Return lse, float32 (float64 for float64)."""
        wide = torch.float64 if x.dtype is torch.float64 else torch.float32
        return api.logsumexp(x.detach(), dims, dtype=wide)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save x and the result."""
        x, ctx.dims = inputs
        ctx.save_for_backward(x, output)

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> tuple[Any, None]:
        """Return upstream * exp(x - lse)."""
        x, lse = ctx.saved_tensors
        if wanted_again(upstream, x):
            factor, shift = (widened(each, x, ctx.dims) for each in (upstream, lse))
            return (factor * torch.exp(x - shift)).to(x.dtype), None
        # finish gives exp(x - m) / d. Where the upstream is 0 d is infinite, and the result 0.
        d = upstream.detach().reciprocal()
        return api.finish(x.detach(), lse.detach(), d, ctx.dims), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Any, dims: Any) -> tuple[Any, int]:
        """Return lse of a batch, whose dimension becomes the first."""
        return LogSumExp.apply(torch.movedim(x, in_dims[0], 0), tuple(each + 1 for each in dims)), 0


class SoftmaxBackward(torch.autograd.Function):
    """dx = y (dy - sum(dy y)), for those who differentiate it again."""

    @staticmethod
    def forward(dy: Any, y: Any, dim: int, dtype: Any) -> Any:
        """Return dx."""
        return gradients.softmax_backward(dy.detach(), y.detach(), dim, dtype=dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the inputs."""
        dy, y, ctx.dim, _ = inputs
        ctx.save_for_backward(dy, y)

    @staticmethod
    def backward(ctx: Any, g: Any) -> tuple[Any, Any, None, None]:
        """Return the gradients with respect to dy and y, by PyTorch's own operations."""
        dy, y = ctx.saved_tensors
        g, dim = g.to(y.dtype), ctx.dim
        weighed = (g * y).sum(dim, keepdim=True)
        of_y = g * (dy - (dy * y).sum(dim, keepdim=True)) - dy * weighed
        return y * (g - weighed), of_y, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *request: Any) -> tuple[Any, int]:
        """Return dx of a batch, whose dimension becomes the first."""
        return SoftmaxBackward.apply(*_both_batched(info, in_dims, *request)), 0


class LogSoftmaxBackward(torch.autograd.Function):
    """dx = dy - exp(y) sum(dy), for those who differentiate it again."""

    @staticmethod
    def forward(dy: Any, y: Any, dim: int, dtype: Any) -> Any:
        """Return dx."""
        return gradients.log_softmax_backward(dy.detach(), y.detach(), dim, dtype=dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the inputs."""
        dy, y, ctx.dim, _ = inputs
        ctx.save_for_backward(dy, y)

    @staticmethod
    def backward(ctx: Any, g: Any) -> tuple[Any, Any, None, None]:
        """Return the gradients with respect to dy and y, by PyTorch's own operations."""
        dy, y = ctx.saved_tensors
        g, dim, p = g.to(y.dtype), ctx.dim, torch.exp(y)
        of_dy = g - (g * p).sum(dim, keepdim=True)
        return of_dy, -g * p * dy.sum(dim, keepdim=True), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *request: Any) -> tuple[Any, int]:
        """Return dx of a batch, whose dimension becomes the first."""
        return LogSoftmaxBackward.apply(*_both_batched(info, in_dims, *request)), 0


def wanted_again(*tensors: Any) -> bool:
    """Whether somebody differentiates what is computed of these tensors, or batches it."""
    if TRANSFORMING():
        return True
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _batched(x: Any, batch: int, dim: int) -> tuple[Any, int]:
    """Return x with its batch dimension first, and `dim` of one element in that."""
    first = torch.movedim(x, batch, 0)
    return first, dim if dim < 0 else dim + 1


def _both_batched(
    info: Any, in_dims: tuple[Any, ...], dy: Any, y: Any, dim: int, dtype: Any
) -> tuple[Any, ...]:
    """Return the request of a gradient with the batch dimension of both tensors first."""
    both = [
        torch.movedim(each, batch, 0)
        if batch is not None
        else each.expand(info.batch_size, *each.shape)
        for each, batch in ((dy, in_dims[0]), (y, in_dims[1]))
    ]
    return (*both, dim if dim < 0 else dim + 1, dtype)
