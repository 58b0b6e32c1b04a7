"""The exchange by one collective: a kernel before it, and one or two after it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from softgen.distributed import local
from softgen.torch.dtypes import wide

# PyTorch 2.13 has another name for it.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Collective:
    """Pairs by one all-gather, over NCCL or, on the CPU, gloo.

    Attributes:
        group: the process group.
        size: how many processes it has.
    """

    def __init__(self, group: Any) -> None:
        self.group = group
        self.size: int = dist.get_world_size(group)

    def softmax(self, x: Any, dtype: Any) -> Any:
        """Return this shard of the softmax; see Exchange."""
        return self._finished(x, dtype, log=False)

    def log_softmax(self, x: Any, dtype: Any) -> Any:
        """Return this shard of the logarithm of the softmax; see Exchange."""
        return self._finished(x, dtype, log=True)

    def logsumexp(self, x: Any) -> Any:
        """Return lse of the rows; see Exchange.

        A pair does not tell +inf from NaN, so that shards' own lse travel.
        """
        if x.shape[-1]:
            mine = local.logsumexp(x)
        else:
            mine = x.new_full(x.shape[:-1], -torch.inf, dtype=wide(x))
        if self.size == 1 or not mine.numel():
            return mine
        every = self._gather(mine.reshape(1, -1))
        return local.merge_lse(every[:, 0].t().contiguous()).reshape(mine.shape)

    def losses(
        self, x: Any, target: Any, first: int, ignored: int, z_loss: float
    ) -> tuple[Any, Any]:
        """Return the losses and lse; see Exchange."""
        shape = x.shape[:-1]
        m, d, logits = local.targets_of(x, target, first, ignored, wide(x))
        rows = m.numel()
        if not rows:
            return m, d
        mine = torch.stack((m.reshape(rows), d.reshape(rows), logits.reshape(rows)))
        every = self._gather(mine) if self.size > 1 else mine[None]
        loss, lse = local.losses_of(every, target.reshape(rows), ignored, z_loss)
        return loss.reshape(shape), lse.reshape(shape)

    def pairs(self, x: Any, scale: Any, chosen: Any) -> tuple[Any, Any, Any]:
        """Return the pairs and the chosen elements of the rows; see Exchange."""
        m, d = local.pair(x, scale, wide(x))
        if self.size == 1 or not m.numel():
            return m, d, chosen
        rows = m.numel()
        both = m.reshape(1, rows), d.reshape(1, rows)
        every = self._gather(torch.cat((*both, chosen.reshape(rows, -1).t())))
        whole = (each.reshape(m.shape) for each in local.merged(every))
        return *whole, every[:, 2:].amin(0).t().reshape(chosen.shape)

    def total(self, sums: Any) -> Any:
        """Return the sums over the processes; see Exchange."""
        if self.size > 1 and sums.numel():
            dist.all_reduce(sums, group=self.group)
        return sums

    def _finished(self, x: Any, dtype: Any, log: bool) -> Any:
        """Return the softmax of this shard, or its logarithm."""
        m, d = local.pair(x, None, wide(x))
        if self.size > 1 and m.numel():
            whole = local.merged(self._gather(torch.stack((m.reshape(-1), d.reshape(-1)))))
            m, d = (each.reshape(m.shape) for each in whole)
        if not x.numel():
            return torch.empty_like(x, dtype=dtype)
        return local.finished(x, m, d, log, dtype)

    def _gather(self, mine: Any) -> Any:
        """Return (n, rows) of each process as (processes, n, rows), in the order of the ranks."""
        every = mine.new_empty(self.size * mine.numel())
        all_gather(every, mine.view(-1), group=self.group)
        return every.view(self.size, *mine.shape)
