"""The functions as registered operators, for torch.compile: no graph break, gradients included."""

from __future__ import annotations

import functools
from typing import Any

import torch

from softgen.call import api, gradients


def _softmax(x: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    return api.softmax(x, dim, dtype=dtype)


def _log_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    return api.log_softmax(x, dim, dtype=dtype)


def _softmax_backward(
    dy: torch.Tensor, y: torch.Tensor, dim: int, dtype: torch.dtype
) -> torch.Tensor:
    return gradients.softmax_backward(dy, y, dim, dtype=dtype).contiguous()


def _log_softmax_backward(
    dy: torch.Tensor, y: torch.Tensor, dim: int, dtype: torch.dtype
) -> torch.Tensor:
    return gradients.log_softmax_backward(dy, y, dim, dtype=dtype).contiguous()


def _logsumexp_wide(x: torch.Tensor, dim: list[int]) -> torch.Tensor:
    return api.logsumexp(x, tuple(dim), dtype=_wide(x))


def _logsumexp_backward(
    x: torch.Tensor, lse: torch.Tensor, upstream: torch.Tensor, dim: list[int]
) -> torch.Tensor:
    return api.finish(x, lse, upstream.reciprocal(), tuple(dim)).contiguous()


def _wide(x: Any) -> Any:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


# Results are contiguous whatever the dimension: that is what is said of them below.
_make = functools.partial(torch.library.custom_op, mutates_args=())
softmax = _make("softgen::softmax", _softmax)
log_softmax = _make("softgen::log_softmax", _log_softmax)
softmax_backward = _make("softgen::softmax_backward", _softmax_backward)
log_softmax_backward = _make("softgen::log_softmax_backward", _log_softmax_backward)
logsumexp_wide = _make("softgen::logsumexp_wide", _logsumexp_wide)
logsumexp_backward = _make("softgen::logsumexp_backward", _logsumexp_backward)


def logsumexp(x: Any, dim: list[int]) -> Any:
    """Return lse along dimensions, of x's dtype."""
    return logsumexp_wide(x, dim).to(x.dtype)


def _like(x: Any, dim: int, dtype: Any) -> Any:
    return torch.empty(x.shape, dtype=dtype, device=x.device)


def _register() -> None:
    """Say what each operator returns, and how it is differentiated."""
    softmax.register_fake(_like)
    log_softmax.register_fake(_like)
    for gradient in (softmax_backward, log_softmax_backward):
        gradient.register_fake(lambda dy, y, dim, dtype: _like(dy, dim, dtype))
    logsumexp_wide.register_fake(
        lambda x, dim: torch.empty(
            [size for i, size in enumerate(x.shape) if i not in dim],
            dtype=_wide(x),
            device=x.device,
        )
    )
    logsumexp_backward.register_fake(lambda x, lse, upstream, dim: _like(x, dim, x.dtype))

    def keep_result(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.dim, _ = inputs
        ctx.dtype = x.dtype
        ctx.save_for_backward(output)

    def of_softmax(ctx: Any, dy: Any) -> tuple[Any, None, None]:
        return softmax_backward(dy, ctx.saved_tensors[0], ctx.dim, ctx.dtype), None, None

    def of_log_softmax(ctx: Any, dy: Any) -> tuple[Any, None, None]:
        return log_softmax_backward(dy, ctx.saved_tensors[0], ctx.dim, ctx.dtype), None, None

    def keep_both(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.dim = inputs
        ctx.save_for_backward(x, output)

    def of_logsumexp(ctx: Any, upstream: Any) -> tuple[Any, None]:
        x, lse = ctx.saved_tensors
        return logsumexp_backward(x, lse, upstream, ctx.dim), None

    softmax.register_autograd(of_softmax, setup_context=keep_result)
    log_softmax.register_autograd(of_log_softmax, setup_context=keep_result)
    logsumexp_wide.register_autograd(of_logsumexp, setup_context=keep_both)


_register()
