"""Columns by their numbers among those of all processes: which of them this process has."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from softgen.distributed.collective import Collective
from softgen.distributed.starts import Starts
from softgen.errors import CaptureError
from softgen.torch.dtypes import wide

_starts = Starts()


def first_column(x: Any, group: Any) -> int:
    """Return the number of the shard's first column among the columns of all processes.

    The processes ask each other once for a number of columns: see Starts.

    Raises CaptureError where it is not known yet and the stream is captured.
    """

    def ask() -> Any:
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            raise CaptureError(
                "the first column of this shard is not known yet, and cannot be asked for while a "
                "stream is captured; call once before, or give offset="
            )
        mine = torch.tensor([[x.shape[-1]]], device=x.device)
        return Collective(group).gather(mine).view(-1)

    return _starts.first(group, dist.get_rank(group), x.shape[-1], ask)


class Chosen(NamedTuple):
    """The elements of x at columns of all processes, (..., k), as this process has them.

    Attributes:
        columns: in this shard; where another has it, the nearest column of this one.
        mine: whether this process has it.
        logits: the elements; +inf where another process may have them.
    """

    columns: Any
    mine: Any
    logits: Any


def chosen(x: Any, ids: Any, offset: int, scale: Any) -> Chosen:
    """Return the elements of x * scale at the columns `ids`, (..., k)."""
    columns = ids - offset if offset else ids
    if not x.shape[-1]:
        nowhere = torch.full(ids.shape, torch.inf, dtype=wide(x), device=x.device)
        return Chosen(columns, torch.zeros_like(ids, dtype=torch.bool), nowhere)
    nearest = columns.clamp(0, x.shape[-1] - 1)
    mine = nearest == columns
    return Chosen(nearest, mine, logits_at(x, nearest, scale).masked_fill_(~mine, torch.inf))


def logits_at(x: Any, columns: Any, scale: Any) -> Any:
    """Return the elements of x * scale at columns of this shard, in the type of the arithmetic."""
    found = x.gather(-1, columns.to(torch.int64)).to(wide(x))
    return found if scale is None else found * scale_by_row(scale)


def scale_by_row(scale: Any) -> Any:
    """Return a scale, a number or one a row, so that it broadcasts over elements of a row."""
    return scale[..., None] if isinstance(scale, torch.Tensor) else scale
