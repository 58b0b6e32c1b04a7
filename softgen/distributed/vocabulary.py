"""Elements of the shard by the numbers of their columns among those of all processes."""

from __future__ import annotations

from typing import Any

import torch

from softgen.torch.dtypes import wide


def nearest(x: Any, ids: Any, first: int) -> tuple[Any, Any]:
    """Return the columns of this shard that are nearest to `ids`, and whether they are these."""
    columns = ids - first
    found = columns.clamp(0, x.shape[-1] - 1)
    return found, found == columns


def chosen(x: Any, ids: Any, first: int, scale: Any) -> Any:
    """Return the elements of x * scale at `ids`, (..., k); +inf where others may have them."""
    if not x.shape[-1]:
        return torch.full(ids.shape, torch.inf, dtype=wide(x), device=x.device)
    columns, mine = nearest(x, ids, first)
    return logits_at(x, columns, scale).masked_fill_(~mine, torch.inf)


def logits_at(x: Any, columns: Any, scale: Any) -> Any:
    """Return the elements of x * scale at columns of this shard, in the type of the arithmetic."""
    found = x.gather(-1, columns.to(torch.int64)).to(wide(x))
    return found if scale is None else found * scale_by_row(scale)


def scale_by_row(scale: Any) -> Any:
    """Return a scale, a number or one a row, so that it broadcasts over elements of a row."""
    return scale[..., None] if isinstance(scale, torch.Tensor) else scale
