"""Log-probabilities of tokens as registered operators, for torch.compile."""

from __future__ import annotations

from typing import Any

import torch

from softgen.call import gradients, tokens
from softgen.torch.dtypes import wide
from softgen.torch.registered import differentiate, operator


def _like_ids(x: Any, ids: Any) -> tuple[Any, Any]:
    made = torch.empty(ids.shape, dtype=wide(x), device=x.device)
    return made, torch.empty(x.shape[:-1], dtype=wide(x), device=x.device)


# Of two temperatures one is None: a number, or one of each row.
@operator(lambda x, ids, number, of_rows: _like_ids(x, ids))
def token_log_probs(
    x: torch.Tensor, ids: torch.Tensor, number: float | None, of_rows: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and lse in the type of the arithmetic."""
    found: tuple[torch.Tensor, torch.Tensor]
    temperature = number if of_rows is None else of_rows
    found = tokens.token_log_probs(x, ids, temperature=temperature, dtype=wide(x), return_lse=True)
    return found


@operator(lambda x, ids, number, of_rows: (*_like_ids(x, ids), _like_ids(x, ids)[1]))
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


@operator(lambda x, *_: torch.empty(x.shape, dtype=x.dtype, device=x.device))
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


differentiate(token_log_probs, _token_gradient, _keep_tokens)
differentiate(token_log_probs_entropy, _token_gradient, _keep_tokens)
