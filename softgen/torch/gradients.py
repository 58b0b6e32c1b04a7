"""Autograd: each function with its gradient, and the gradients with theirs.

Eager calls come here and not to the registered operators, whose dispatch takes 11 us a call
(PyTorch issue 177109), and go on to a warm call, past the frame of the function that people call.
What is saved is never overwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from softgen.call import api, gradients
from softgen.call.axes import axes_of, with_axes_kept
from softgen.call.dispatch import calls_of
from softgen.call.warm import WarmCalls
from softgen.torch.dtypes import wide

# Whether a transform of torch.func is under way: then tensors are not what they seem.
TRANSFORMING = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
Tensor, is_grad_enabled = torch.Tensor, torch.is_grad_enabled


class Function(torch.autograd.Function):
    """Base of all of them.

    Attributes:
        quick: `apply` without what transforms alone need: it binds the arguments to the signature
            of `forward`, 12 us a call.
    """

    quick: Callable[..., Any]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.quick = super(torch.autograd.Function, cls).apply


class OfResult(Function):
    """Base of functions along `dim` whose gradient needs their result alone.

    Attributes:
        calls: of the function.
        gradient: the class of its gradient.
    """

    calls: WarmCalls
    gradient: type[GradientOfResult]

    @classmethod
    def forward(cls, x: Any, dim: int, dtype: Any) -> Any:
        """Return the result, of `dtype`."""
        if type(x) is not Tensor:  # a Parameter, of which no call is warm
            x = x.detach()
        return cls.calls[type(x)](x, None, dim, dtype, None, None, None, ())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the result."""
        x, ctx.dim, _ = inputs
        ctx.dtype = x.dtype
        ctx.save_for_backward(output)

    @classmethod
    def backward(cls, ctx: Any, dy: Any) -> tuple[Any, None, None]:
        """Return dx, of x's dtype."""
        (y,) = ctx.saved_tensors
        return applied(cls.gradient, dy, y)(dy, y, ctx.dim, ctx.dtype), None, None

    @classmethod
    def vmap(
        cls, info: Any, in_dims: tuple[Any, ...], x: Any, dim: int, dtype: Any
    ) -> tuple[Any, int]:
        """Return the result of a batch, whose dimension becomes the first."""
        return cls.apply(batched(info, in_dims[0], x), _behind(dim), dtype), 0


class GradientOfResult(Function):
    """Base of the gradients of those functions, which may be differentiated again.

    Attributes:
        calls: of the gradient.
    """

    calls: WarmCalls

    @classmethod
    def forward(cls, dy: Any, y: Any, dim: int, dtype: Any) -> Any:
        """Return dx, of `dtype`."""
        return cls.calls[type(dy)](dy, None, dim, dtype, None, None, None, (y,))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the inputs."""
        dy, y, ctx.dim, _ = inputs
        ctx.save_for_backward(dy, y)

    @classmethod
    def vmap(
        cls, info: Any, in_dims: tuple[Any, ...], dy: Any, y: Any, dim: int, dtype: Any
    ) -> tuple[Any, int]:
        """Return dx of a batch, whose dimension becomes the first."""
        both = batched(info, in_dims[0], dy), batched(info, in_dims[1], y)
        return cls.apply(*both, _behind(dim), dtype), 0


class SoftmaxBackward(GradientOfResult):
    """dx = y (dy - sum(dy y))."""

    calls = calls_of("softmax_backward")

    @staticmethod
    def backward(ctx: Any, g: Any) -> tuple[Any, Any, None, None]:
        """Return the gradients with respect to dy and y, by PyTorch's own operations."""
        dy, y = ctx.saved_tensors
        g, dim = g.to(y.dtype), ctx.dim
        weighed = (g * y).sum(dim, keepdim=True)
        of_y = g * (dy - (dy * y).sum(dim, keepdim=True)) - dy * weighed
        return y * (g - weighed), of_y, None, None


class LogSoftmaxBackward(GradientOfResult):
    """dx = dy - exp(y) sum(dy)."""

    calls = calls_of("log_softmax_backward")

    @staticmethod
    def backward(ctx: Any, g: Any) -> tuple[Any, Any, None, None]:
        """Return the gradients with respect to dy and y, by PyTorch's own operations."""
        dy, y = ctx.saved_tensors
        g, dim, p = g.to(y.dtype), ctx.dim, torch.exp(y)
        of_dy = g - (g * p).sum(dim, keepdim=True)
        return of_dy, -g * p * dy.sum(dim, keepdim=True), None, None


class Softmax(OfResult):
    """softmax."""

    calls = calls_of("softmax")
    gradient = SoftmaxBackward


class LogSoftmax(OfResult):
    """log_softmax."""

    calls = calls_of("log_softmax")
    gradient = LogSoftmaxBackward


class LogSumExp(Function):
    """logsumexp in the type of the arithmetic, as the gradient needs it."""

    @staticmethod
    def forward(x: Any, axis: Any) -> Any:
        """Return lse, float32 (float64 for float64)."""
        return api.logsumexp(x.detach(), axis, dtype=wide(x))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save x and the result."""
        x, ctx.axis = inputs
        ctx.save_for_backward(x, output)

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> tuple[Any, None]:
        """Return upstream * exp(x - lse)."""
        x, lse = ctx.saved_tensors
        if wanted_again(upstream, x):
            factor, shift = (with_axes_kept(each, ctx.axis, x.dim()) for each in (upstream, lse))
            return (factor * torch.exp(x - shift)).to(x.dtype), None
        rows = lse.detach(), upstream.detach()
        return gradients.logsumexp_backward(x.detach(), *rows, ctx.axis), None

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Any, ...], x: Any, axis: Any) -> tuple[Any, int]:
        """Return lse of a batch, whose dimension becomes the first."""
        return cls.apply(batched(info, in_dims[0], x), axes_behind(axis, x.dim() - 1)), 0


def applied(function: type[Function], *tensors: Any) -> Callable[..., Any]:
    """Return what computes a function of these tensors: `forward`, if nobody differentiates it."""
    if TRANSFORMING():
        apply: Callable[..., Any] = function.apply
        return apply
    if is_grad_enabled():
        for tensor in tensors:
            if tensor.requires_grad:
                return function.quick
    forward: Callable[..., Any] = function.forward
    return forward


def wanted_again(*tensors: Any) -> bool:
    """Whether somebody differentiates what is computed of these tensors, or batches it."""
    if is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return True
    return bool(TRANSFORMING())


def batched(info: Any, batch: int | None, x: Any) -> Any:
    """Return a tensor with its batch dimension first, or expanded by one where it has none."""
    if batch is None:
        return x.expand(info.batch_size, *x.shape)
    return torch.movedim(x, batch, 0)


def axes_behind(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes of one element of `ndim` dimensions in a batch whose own one is first."""
    return tuple(each + 1 for each in axes_of(axis, ndim))


def _behind(dim: int) -> int:
    """Return the dimension of one element in a batch whose own dimension is first."""
    return dim if dim < 0 else dim + 1
