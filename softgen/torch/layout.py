"""Any dimension as the last one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def last(x: Any, dim: int) -> tuple[Any, Callable[[Any], Any]]:
    """Return x with `dim` moved last, and what moves it back in a tensor of that shape.

    Raises IndexError, as PyTorch does, for a dimension that x does not have.
    """
    if dim == -1 or dim == x.dim() - 1:
        return x, _same
    return torch.movedim(x, dim, -1), lambda y: torch.movedim(y, -1, dim)


def _same(y: Any) -> Any:
    return y
