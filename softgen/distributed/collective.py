"""The exchange by one collective of torch.distributed."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch.distributed as dist

from softgen.distributed.gathered import Gathered

# PyTorch 2.13 has another name for it.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Collective(Gathered):
    """Parts of rows by one all-gather, over NCCL or, on the CPU, gloo.

    Attributes:
        group: the process group.
    """

    def __init__(self, group: Any) -> None:
        self.group = group

    @cached_property
    def size(self) -> int:
        """How many processes it has."""
        return int(dist.get_world_size(self.group))

    def gather(self, mine: Any) -> Any:
        """Return (n, rows) of each process as (processes, n, rows), in the order of the ranks."""
        every = mine.new_empty(self.size * mine.numel())
        all_gather(every, mine.view(-1), group=self.group)
        return every.view(self.size, *mine.shape)

    def total(self, sums: Any) -> Any:
        """Return what a number a row adds up to over the processes."""
        if self.size > 1 and sums.numel():
            dist.all_reduce(sums, group=self.group)
        return sums
