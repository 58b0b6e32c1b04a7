"""The six functions of softgen.torch beside PyTorch's own expressions, of the same two tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import softgen.torch as mine
from softgen.errors import NotSupportedError

ROWS, COLS = 3, 5
F = torch.nn.functional


@dataclass(frozen=True)
class Pair:
    """A function and its reference.

    Attributes:
        ours: softgen's, of x (rows, columns) and the column of each row, which some do not need.
        theirs: PyTorch's.
        tangents: whether forward-mode AD has a rule.
        lost: how many of x's last dimensions the result does not have.
        again: whether the gradient is differentiable again.
    """

    ours: Callable[[Any, Any], Any]
    theirs: Callable[[Any, Any], Any]
    tangents: bool
    lost: int
    again: bool = True


def entropy(x: Any, dim: int = -1) -> Any:
    """Return the entropy of softmax(x), where 0 log 0 is 0."""
    log_p = torch.log_softmax(x, dim)
    return -(log_p.exp() * log_p.masked_fill(log_p == -torch.inf, 0.0)).sum(dim)


def log_probs(x: Any, ids: Any) -> Any:
    """Return log_softmax(x) at the column of each row, as wide as softgen's."""
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    return torch.log_softmax(x, -1, dtype=wide).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


FUNCTIONS = {
    "softmax": Pair(
        lambda x, ids: mine.softmax(x, -1), lambda x, ids: torch.softmax(x, -1), True, 0
    ),
    "log_softmax": Pair(
        lambda x, ids: mine.log_softmax(x, -1), lambda x, ids: torch.log_softmax(x, -1), True, 0
    ),
    "logsumexp": Pair(
        lambda x, ids: mine.logsumexp(x, -1), lambda x, ids: torch.logsumexp(x, -1), True, 1
    ),
    "entropy": Pair(lambda x, ids: mine.entropy(x, -1), lambda x, ids: entropy(x), False, 1, False),
    "token_log_probs": Pair(
        lambda x, ids: mine.token_log_probs(x, ids), log_probs, False, 1, False
    ),
    "cross_entropy": Pair(
        lambda x, ids: mine.cross_entropy(x, ids), lambda x, ids: F.cross_entropy(x, ids), False, 2
    ),
}


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """Return a tensor of normal numbers."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (made * 2).to(dtype)


def columns(*shape: int, seed: int = 0) -> Any:
    """Return a column of COLS for each row."""
    return torch.randint(COLS, shape, generator=torch.Generator().manual_seed(seed))


def gradient(function: Callable[..., Any], x: Any, *others: Any) -> tuple[Any, Any]:
    """Return function(x, *others), and the gradient of x from an upstream that has no zeros."""
    x = x.detach().requires_grad_()
    y = function(x, *others)
    upstream = torch.linspace(-1.0, 2.0, y.numel(), dtype=y.dtype).reshape(y.shape)
    (dx,) = torch.autograd.grad(y, x, upstream)
    return y.detach(), dx


def same(found: Any, wanted: Any) -> None:
    """Require the same values, dtypes, shapes and devices."""
    torch.testing.assert_close(found, wanted)


def agree(name: str, ours: Callable[..., Any] | None = None, *, x: Any = None) -> None:
    """Require that softgen's value and gradient are PyTorch's.

    Args:
        name: of the function.
        ours: what became of softgen's (compiled, traced), if not itself.
        x: the input, if not rows that are drawn.
    """
    pair, ids = FUNCTIONS[name], columns(ROWS)
    x = drawn(ROWS, COLS) if x is None else x
    same(gradient(ours or pair.ours, x, ids), gradient(pair.theirs, x, ids))


def refusal_or(run: Callable[[], Any]) -> tuple[Any, str]:
    """Return what run() gives and no text, or None and the text of its NotSupportedError."""
    try:
        return run(), ""
    except NotSupportedError as error:
        return None, str(error)
