"""Any dimensions as the last one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def last(x: Any, dim: int | Sequence[int]) -> tuple[Any, Callable[[Any], Any]]:
    """Return x with `dim` moved last, and what moves it back in a tensor of that shape.

    Several dimensions become one; none means all. Raises IndexError, as PyTorch does, for a
    dimension that x does not have.
    """
    if dim == -1 or dim == x.dim() - 1:
        return x, _same
    if isinstance(dim, int):
        return torch.movedim(x, dim, -1), lambda y: torch.movedim(y, -1, dim)
    if not x.dim():
        return x, _same
    dims = numbers(x, dim)
    moved = torch.movedim(x, dims, tuple(range(-len(dims), 0)))
    joined = moved.flatten(x.dim() - len(dims))
    return joined, lambda y: torch.movedim(
        y.reshape(moved.shape), tuple(range(-len(dims), 0)), dims
    )


def numbers(x: Any, dim: int | Sequence[int]) -> tuple[int, ...]:
    """Return the dimensions as numbers from 0, ascending; all of them for none."""
    dims = (dim,) if isinstance(dim, int) else tuple(dim) or tuple(range(x.dim()))
    found = tuple(sorted(each % max(1, x.dim()) for each in dims))
    if len(set(found)) < len(found):
        raise IndexError(f"a dimension appears twice in dim={tuple(dims)}")
    return found


def widened(row: Any, x: Any, dim: int | Sequence[int]) -> Any:
    """Return what there is one of per row with x's dimensions, those of rows of length 1."""
    for each in numbers(x, dim) if x.dim() else ():
        row = row.unsqueeze(each)
    return row


def _same(y: Any) -> Any:
    return y
