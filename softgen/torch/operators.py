"""The functions as registered operators, for torch.compile: no graph break, gradients included."""

from __future__ import annotations

from typing import Any

import torch

from softgen.call import api, gradients, tokens
from softgen.torch.dtypes import wide
from softgen.torch.gradients import (
    LogSoftmax,
    LogSoftmaxBackward,
    LogSumExp,
    OfResult,
    Softmax,
    SoftmaxBackward,
)
from softgen.torch.registered import differentiate, operator
from softgen.torch.rows import Entropy


def _like(x: Any, dim: int, dtype: Any) -> Any:
    return torch.empty(x.shape, dtype=dtype, device=x.device)


def _like_rows(x: Any, dim: list[int]) -> Any:
    rows = [size for i, size in enumerate(x.shape) if i not in dim]
    return torch.empty(rows, dtype=wide(x), device=x.device)


# The first four are what models call: straight to a warm call, past the functions for people.
@operator(_like)
def softmax(x: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Return softmax of `dtype`."""
    return Softmax.forward(x, dim, dtype)


@operator(_like)
def log_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Return log_softmax of `dtype`."""
    return LogSoftmax.forward(x, dim, dtype)


@operator(lambda dy, y, dim, dtype: _like(dy, dim, dtype))
def softmax_backward(
    dy: torch.Tensor, y: torch.Tensor, dim: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return dx of `dtype`."""
    return SoftmaxBackward.forward(dy, y, dim, dtype).contiguous()


@operator(lambda dy, y, dim, dtype: _like(dy, dim, dtype))
def log_softmax_backward(
    dy: torch.Tensor, y: torch.Tensor, dim: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return dx of `dtype`."""
    return LogSoftmaxBackward.forward(dy, y, dim, dtype).contiguous()


@operator(_like_rows)
def logsumexp_wide(x: torch.Tensor, dim: list[int]) -> torch.Tensor:
    """Return lse in the type of the arithmetic; no dimension is all of a tensor that has none."""
    return api.logsumexp(x, tuple(dim) or None, dtype=wide(x))


@operator(lambda x, lse, upstream, dim: _like(x, dim, x.dtype))
def logsumexp_backward(
    x: torch.Tensor, lse: torch.Tensor, upstream: torch.Tensor, dim: list[int]
) -> torch.Tensor:
    """Return upstream * exp(x - lse)."""
    return gradients.logsumexp_backward(x, lse, upstream, tuple(dim) or None).contiguous()


@operator(lambda x, dim: (_like_rows(x, dim), _like_rows(x, dim)))
def entropy_lse(x: torch.Tensor, dim: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the entropy and lse in the type of the arithmetic; dim is as in logsumexp_wide."""
    found: tuple[torch.Tensor, torch.Tensor]
    found = tokens.entropy(x, tuple(dim) or None, dtype=wide(x), return_lse=True)
    return found


@operator(lambda x, lse, entropy, upstream, dim: _like(x, dim, x.dtype))
def entropy_backward(
    x: torch.Tensor,
    lse: torch.Tensor,
    entropy: torch.Tensor,
    upstream: torch.Tensor,
    dim: list[int],
) -> torch.Tensor:
    """Return -p (log p + entropy) upstream."""
    rows = (lse, entropy, upstream)
    return gradients.entropy_backward(x, *rows, tuple(dim) or None).contiguous()


def logsumexp(x: Any, dim: list[int]) -> Any:
    """Return lse along dimensions, of x's dtype."""
    return logsumexp_wide(x, dim).to(x.dtype)


def _differentiate_by_result(operator: Any, gradient: Any) -> None:
    """Give an operator along a dimension a gradient that needs its result alone."""

    def backward(ctx: Any, dy: Any) -> tuple[Any, None, None]:
        return gradient(dy, ctx.saved_tensors[0], ctx.dim, ctx.dtype), None, None

    differentiate(operator, backward, OfResult.setup_context)


def _differentiate_by_rows(operator: Any, gradient: Any) -> None:
    """Give an operator whose result is a number a row a gradient that needs x and that."""

    def backward(ctx: Any, upstream: Any) -> tuple[Any, None]:
        return gradient(*ctx.saved_tensors, upstream, ctx.axis), None

    differentiate(operator, backward, LogSumExp.setup_context)


def _entropy_gradient(ctx: Any, upstream: Any, _: Any) -> tuple[Any, None]:
    return entropy_backward(*ctx.saved_tensors, upstream, ctx.axis), None


differentiate(entropy_lse, _entropy_gradient, Entropy.setup_context)
_differentiate_by_result(softmax, softmax_backward)
_differentiate_by_result(log_softmax, log_softmax_backward)
_differentiate_by_rows(logsumexp_wide, logsumexp_backward)
