"""Functions of softgen.torch with hooks beside PyTorch's operations, of the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import softgen.torch as mine

ROWS, COLS, CAP = 4, 6, 3.0
IDS = torch.tensor([[1, 0, 5], [2, 2, 4], [0, 3, 1], [5, 1, 2]])
TARGET = torch.tensor([1, 0, -100, 5])


def drawn(*shape: int, seed: int = 0, dtype: Any = torch.float64) -> Any:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2).to(dtype)


def every_other(y: Any) -> Any:
    """Return every other element of a tensor that has twice as many as y along its last axis."""
    return drawn(*y.shape, 2, seed=9).flatten(-2)[..., ::2] if y.dim() else drawn(seed=9)


def ids_on(x: Any) -> Any:
    return IDS[: len(x)].to(x.device)


def target_on(x: Any) -> Any:
    return TARGET[: len(x)].to(x.device)


def log_p(z: Any, sink: Any, dim: int = -1) -> tuple[Any, Any]:
    """Return log_softmax of z with the column of a sink, and lse."""
    terms = [z] if sink is None else [z, sink[..., None].expand(*z.shape[:-1], 1)]
    lse = torch.logsumexp(torch.cat(terms, dim), dim)
    return z - lse[..., None], lse


def losses(z: Any, sink: Any, z_loss: float = 0.0) -> Any:
    log, lse = log_p(z, sink)
    target = target_on(z)
    counts = target != -100
    rows = -log.gather(-1, target.clamp(min=0)[:, None])[:, 0] + z_loss * lse**2
    return torch.where(counts, rows, 0)


def entropy(log: Any) -> Any:
    return -(log.exp() * log.masked_fill(log == -torch.inf, 0)).sum(-1)


# softgen's function of x and hooks, and PyTorch's of z and the sink, which some do not take.
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], bool]] = {
    "softmax": (
        lambda x, **hooks: mine.softmax(x, -1, **hooks),
        lambda z, sink: log_p(z, sink)[0].exp(),
        True,
    ),
    "log_softmax": (
        lambda x, **hooks: mine.log_softmax(x, -1, **hooks),
        lambda z, sink: log_p(z, sink)[0],
        True,
    ),
    "logsumexp": (
        lambda x, **hooks: mine.logsumexp(x, -1, **hooks),
        lambda z, sink: log_p(z, sink)[1],
        True,
    ),
    "cross_entropy": (
        lambda x, **hooks: mine.cross_entropy(x, target_on(x), **hooks),
        lambda z, sink: losses(z, sink).sum() / 3,
        True,
    ),
    "losses with lse^2": (
        lambda x, **hooks: mine.cross_entropy(
            x, target_on(x), reduction="none", z_loss=0.3, **hooks
        ),
        lambda z, sink: losses(z, sink, 0.3),
        True,
    ),
    "token_log_probs": (
        lambda x, **hooks: mine.token_log_probs(x, ids_on(x), **hooks),
        lambda z, sink: log_p(z, None)[0].gather(-1, ids_on(z)),
        False,
    ),
    "one id": (
        lambda x, **hooks: mine.token_log_probs(x, ids_on(x)[:, 0], **hooks),
        lambda z, sink: log_p(z, None)[0].gather(-1, ids_on(z)[:, :1])[:, 0],
        False,
    ),
    "entropy of tokens": (
        lambda x, **hooks: mine.token_log_probs(x, ids_on(x), return_entropy=True, **hooks)[1],
        lambda z, sink: entropy(log_p(z, None)[0]),
        False,
    ),
}
HOOKS = ("scale", "softcap", "bias", "mask", "sink")


def given_of(hooks: tuple[str, ...], dtype: Any = torch.float64) -> dict[str, Any]:
    """Return hooks by name; a mask hides a target, an id and elements that are no numbers."""
    mask = torch.ones(ROWS, COLS, dtype=torch.bool)
    mask[1, 2], mask[3, 5], mask[2, 4] = False, False, False
    known = {
        "scale": drawn(ROWS, seed=1, dtype=dtype),
        "softcap": CAP,
        "bias": drawn(COLS, seed=2, dtype=dtype),
        "mask": mask,
        "sink": drawn(1, seed=3, dtype=dtype),
    }
    return {name: known[name] for name in hooks}


def on(device: str, x: Any, hooks: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return x and hooks on a device."""
    given = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in hooks.items()}
    return x.to(device), given


def hooked(x: Any, hooks: dict[str, Any]) -> Any:
    """Return what hooks make of x, by PyTorch's operations."""
    z = x * hooks["scale"][:, None] if "scale" in hooks else x
    z = CAP * torch.tanh(z / CAP) if "softcap" in hooks else z
    z = z + hooks["bias"] if "bias" in hooks else z
    return torch.where(hooks["mask"], z, -torch.inf) if "mask" in hooks else z


def with_gradients(run: Callable[..., Any], x: Any, hooks: dict[str, Any]) -> tuple[Any, ...]:
    """Return the result and the gradients of x and of all hooks that have some."""
    x = x.detach().requires_grad_()
    given = {
        name: each.detach().requires_grad_()
        if isinstance(each, torch.Tensor) and each.is_floating_point()
        else each
        for name, each in hooks.items()
    }
    y = run(x, given)
    finite = torch.where(y.isinf(), 0, y)
    weights = drawn(*y.shape, seed=9).to(y)
    of = [x, *(each for each in given.values() if getattr(each, "requires_grad", False))]
    return y, *torch.autograd.grad((finite * weights).sum(), of)
