"""Dimensions by number, and what there is one of per row with those of its tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def numbers(x: Any, dim: int | Sequence[int]) -> tuple[int, ...]:
    """Return the dimensions as numbers from 0, rising; all of them for none.

    Raises IndexError, as PyTorch does, for one that x does not have, or that is there twice.
    """
    most = max(1, x.dim())
    dims = (dim,) if isinstance(dim, int) else tuple(dim) or tuple(range(x.dim()))
    for each in dims:
        if not -most <= each < most:
            raise IndexError(f"dim {each} of a tensor of {x.dim()} dimensions")
    found = tuple(sorted(each % most for each in dims))
    if len(set(found)) < len(found):
        raise IndexError(f"a dimension appears twice in dim={dims}")
    return found if x.dim() else (0,)


def widened(row: Any, x: Any, dim: int | Sequence[int]) -> Any:
    """Return what there is one of per row with x's dimensions, those of rows of length 1."""
    for each in numbers(x, dim) if x.dim() else ():
        row = row.unsqueeze(each)
    return row
