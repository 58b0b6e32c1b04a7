"""Autograd of a call like one before: a class for each request, which saves the result alone.

An eager call of `torch.autograd.Function` takes 2 us that no Python code can save. Arguments beside
the tensor, attributes of its context and a frame for each step would take 2 us more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from softgen.torch.gradients import TRANSFORMING, applied

Tensor, is_grad_enabled = torch.Tensor, torch.is_grad_enabled


def along(function: Any, x: Any, dim: int, dtype: Any) -> Any:
    """Return what a class `OfResult` gives for x, tracked where somebody differentiates it."""
    # True and 1.0 are found under the dimension 1, and are refused by what does not look there.
    if x.requires_grad and is_grad_enabled() and type(dim) is int and not TRANSFORMING():
        return _quick(function, dim, dtype, x.dtype)(x)
    return applied(function, x)(x, dim, dtype)


@functools.cache
def _quick(function: Any, dim: int, dtype: Any, x_dtype: Any) -> Callable[[Any], Any]:
    """Return what applies a function, a class `OfResult`, to tensors of `x_dtype`."""
    calls, gradient = function.calls, function.gradient
    gradient_calls = gradient.calls

    def forward(ctx: Any, x: Any) -> Any:
        if type(x) is not Tensor:  # a Parameter, of which no call is warm
            x = x.detach()
        y = calls[type(x)](x, None, dim, dtype, None, None, None, ())
        ctx.save_for_backward(y)
        return y

    def backward(ctx: Any, dy: Any) -> Any:
        (y,) = ctx.saved_tensors
        if is_grad_enabled() or TRANSFORMING():
            return applied(gradient, dy, y)(dy, y, dim, x_dtype)
        return gradient_calls[type(dy)](dy, None, dim, x_dtype, None, None, None, (y,))

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    made = type(function.__name__, (torch.autograd.Function,), methods)
    node = getattr(made, "_backward_cls", None)
    if node is not None:  # what PyTorch puts there looks for `backward` at each call, 1.5 us
        node.apply = backward
    # Past what torch.autograd.Function.apply does for transforms, 1 us.
    apply: Callable[[Any], Any] = super(torch.autograd.Function, made).apply
    return apply
