"""Softmax by five operations of PyTorch, each of which reads and writes memory of its own.

The comparison of "Fused Softmax" of the Triton tutorials. The maximum is asked for with its place,
as there. Import this only where torch is installed.
"""

# No postponed annotations here: TorchScript reads those of what it compiles.
import warnings
from collections.abc import Callable

import torch

# TorchScript profiles its first call, compiles at the second, and runs what it made from then on.
CALLS_UNTIL_COMPILED = 3


def unfused(x: torch.Tensor) -> torch.Tensor:
    """Return the softmax of each row of `x`, (rows, cols)."""
    shifted = x - torch.max(x, dim=-1, keepdim=True)[0]
    terms = torch.exp(shifted)
    return terms / torch.sum(terms, dim=-1, keepdim=True)


def scripted(x: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return `unfused` as TorchScript compiles it, for inputs like `x`.

    Each call compiles anew: what TorchScript has seen in several sizes it compiles for any size.
    """

    def again(x: torch.Tensor) -> torch.Tensor:
        shifted = x - torch.max(x, dim=-1, keepdim=True)[0]
        terms = torch.exp(shifted)
        return terms / torch.sum(terms, dim=-1, keepdim=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        made: Callable[[torch.Tensor], torch.Tensor] = torch.jit.script(again)
    for _ in range(CALLS_UNTIL_COMPILED):
        made(x)
    return made
