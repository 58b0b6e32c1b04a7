"""Columns by their numbers among those of all processes: which of them this process has."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from softgen.distributed.collective import Collective
from softgen.distributed.starts import columns_of
from softgen.errors import CaptureError
from softgen.torch.dtypes import wide


def first_column(given: int, x: Any, group: Any) -> int:
    """Return the number of the shard's first column among the columns of all processes.

    Where the one that is given is below 0, the processes ask each other once for a number of
    columns: see columns_of.

    Raises CaptureError where it is not known yet and the stream is captured.
    """
    return given if given >= 0 else sum(_columns(x, group)[: dist.get_rank(group)])


def all_columns(given: int, x: Any, group: Any) -> int:
    """Return how many columns all processes have; where `given` is below 0 as in first_column."""
    return given if given >= 0 else sum(_columns(x, group))


def _columns(x: Any, group: Any) -> list[int]:
    """Return how many columns each process has."""

    def ask() -> Any:
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            raise CaptureError(
                "the columns of all shards are not known yet, and cannot be asked for while a "
                "stream is captured; call once before, or give offset= and no label_smoothing"
            )
        mine = torch.tensor([[x.shape[-1]]], device=x.device)
        return Collective(group).gather(mine).view(-1)

    return columns_of(group, x.shape[-1], ask)


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
