"""The functions as registered operators, for torch.compile: no graph break, gradients included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from softgen.call import api, gradients, tokens
from softgen.torch.dtypes import wide


def _like(x: Any, dim: int, dtype: Any) -> Any:
    return torch.empty(x.shape, dtype=dtype, device=x.device)


def _like_rows(x: Any, dim: list[int]) -> Any:
    rows = [size for i, size in enumerate(x.shape) if i not in dim]
    return torch.empty(rows, dtype=wide(x), device=x.device)


def operator(fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Register a function under its name. `fake` returns an empty tensor like its result.

    Results are contiguous whatever the dimension: that is what `fake` says of them.
    """

    def register(run: Callable[..., Any]) -> Any:
        made = torch.library.custom_op(f"softgen::{run.__name__}", run, mutates_args=())
        made.register_fake(fake)
        return made

    return register


@operator(_like)
def softmax(x: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Return softmax of `dtype`."""
    return api.softmax(x, dim, dtype=dtype)


@operator(_like)
def log_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Return log_softmax of `dtype`."""
    return api.log_softmax(x, dim, dtype=dtype)


@operator(lambda dy, y, dim, dtype: _like(dy, dim, dtype))
def softmax_backward(
    dy: torch.Tensor, y: torch.Tensor, dim: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return dx of `dtype`."""
    return gradients.softmax_backward(dy, y, dim, dtype=dtype).contiguous()


@operator(lambda dy, y, dim, dtype: _like(dy, dim, dtype))
def log_softmax_backward(
    dy: torch.Tensor, y: torch.Tensor, dim: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return dx of `dtype`."""
    return gradients.log_softmax_backward(dy, y, dim, dtype=dtype).contiguous()


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


def _like_ids(x: Any, ids: Any) -> tuple[Any, Any]:
    made = torch.empty(ids.shape, dtype=wide(x), device=x.device)
    return made, torch.empty(x.shape[:-1], dtype=wide(x), device=x.device)


# Of two temperatures one is None: a number, or one of each row.
@_operator(lambda x, ids, number, of_rows: _like_ids(x, ids))
def token_log_probs(
    x: torch.Tensor, ids: torch.Tensor, number: float | None, of_rows: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and lse in the type of the arithmetic."""
    found: tuple[torch.Tensor, torch.Tensor]
    temperature = number if of_rows is None else of_rows
    found = tokens.token_log_probs(x, ids, temperature=temperature, dtype=wide(x), return_lse=True)
    return found


@_operator(lambda x, ids, number, of_rows: (*_like_ids(x, ids), _like_ids(x, ids)[1]))
def token_log_probs_entropy(
    x: torch.Tensor, ids: torch.Tensor, number: float | None, of_rows: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return log-probabilities, lse and the entropy in the type of the arithmetic."""
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    temperature = number if of_rows is None else of_rows
    found = tokens.token_log_probs(
        *(x, ids),
        temperature=temperature,
        dtype=wide(x),
        return_lse=True,
        return_entropy=True,
    )
    return found


@_operator(lambda x, *_: torch.empty(x.shape, dtype=x.dtype, device=x.device))
def token_log_probs_backward(
    x: torch.Tensor,
    ids: torch.Tensor,
    lse: torch.Tensor,
    upstream: torch.Tensor,
    entropy: torch.Tensor | None,
    of_entropy: torch.Tensor | None,
    number: float | None,
    of_rows: torch.Tensor | None,
) -> torch.Tensor:
    """Return the gradient of both."""
    rows = (lse, upstream, entropy, of_entropy)
    temperature = number if of_rows is None else of_rows
    return gradients.token_log_probs_backward(x, ids, *rows, temperature=temperature)


def logsumexp(x: Any, dim: list[int]) -> Any:
    """Return lse along dimensions, of x's dtype."""
    return logsumexp_wide(x, dim).to(x.dtype)


def _differentiate_by_result(operator: Any, gradient: Any) -> None:
    """Give an operator along a dimension a gradient that needs its result alone."""

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.dim, _ = inputs
        ctx.dtype = x.dtype
        ctx.save_for_backward(output)

    def backward(ctx: Any, dy: Any) -> tuple[Any, None, None]:
        return gradient(dy, ctx.saved_tensors[0], ctx.dim, ctx.dtype), None, None

    operator.register_autograd(backward, setup_context=keep)


def _differentiate_by_rows(operator: Any, gradient: Any) -> None:
    """Give an operator whose result is a number a row a gradient that needs x and that."""

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.dim = inputs
        ctx.save_for_backward(x, output)

    def backward(ctx: Any, upstream: Any) -> tuple[Any, None]:
        return gradient(*ctx.saved_tensors, upstream, ctx.dim), None

    operator.register_autograd(backward, setup_context=keep)


def _keep_entropy(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, ctx.dim = inputs
    entropy, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(x, lse, entropy)


def _entropy_gradient(ctx: Any, upstream: Any, _: Any) -> tuple[Any, None]:
    return entropy_backward(*ctx.saved_tensors, upstream, ctx.dim), None


def _keep_tokens(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, ids, ctx.number, of_rows = inputs
    _, lse, *entropy = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(x, ids, lse, of_rows, *entropy)


def _token_gradient(ctx: Any, upstream: Any, _: Any, *more: Any) -> tuple[Any, ...]:
    x, ids, lse, of_rows, *entropy = ctx.saved_tensors
    both = (entropy[0], more[0]) if entropy else (None, None)
    dx = token_log_probs_backward(x, ids, lse, upstream, *both, ctx.number, of_rows)
    return dx, None, None, None


token_log_probs.register_autograd(_token_gradient, setup_context=_keep_tokens)
token_log_probs_entropy.register_autograd(_token_gradient, setup_context=_keep_tokens)
entropy_lse.register_autograd(_entropy_gradient, setup_context=_keep_entropy)
_differentiate_by_result(softmax, softmax_backward)
_differentiate_by_result(log_softmax, log_softmax_backward)
_differentiate_by_rows(logsumexp_wide, logsumexp_backward)
