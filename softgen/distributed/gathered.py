"""The exchange by one all-gather, on arrays of any library."""

from __future__ import annotations

import abc
import math
from typing import Any

from softgen.distributed import local
from softgen.distributed.local import module_of


class Gathered(abc.ABC):
    """One kernel before the all-gather, and one or two after it.

    x is a process's shard, (..., columns), and may have no column. Nothing is sent where there is
    one process, or no row.
    """

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """How many processes there are."""

    @abc.abstractmethod
    def gather(self, mine: Any) -> Any:
        """Return (n, rows) of each process as (processes, n, rows), in the order of the ranks."""

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
        mine = local.lse_of(x)
        if not self._sends(mine):
            return mine
        every = self.gather(mine.reshape(1, -1))
        return local.merge_lse(_contiguous(every[:, 0].T)).reshape(mine.shape)

    def losses(
        self, x: Any, target: Any, first: int, ignored: int, z_loss: float
    ) -> tuple[Any, Any]:
        """Return the losses and lse; see Exchange."""
        m, d, logits = local.targets_of(x, target, first, ignored)
        if not math.prod(m.shape):
            return m, d
        mine = _stacked(m, d, logits)
        every = self.gather(mine) if self.size > 1 else mine[None]
        ms, ds = _pairs_of(every)
        least = module_of(every).amin(every[:, 2], 0)
        loss, lse = local.merge_losses(ms, ds, least, target.reshape(-1), ignored, z_loss)
        return loss.reshape(m.shape), lse.reshape(m.shape)

    def pairs(self, x: Any, scale: Any, chosen: Any) -> tuple[Any, Any, Any]:
        """Return the pairs and the chosen elements of the rows; see Exchange."""
        m, d = local.pair(x, scale)
        if not self._sends(m):
            return m, d, chosen
        columns = chosen.reshape(math.prod(m.shape), -1).T
        every = self.gather(module_of(m).concatenate((_stacked(m, d), columns)))
        least = module_of(every).amin(every[:, 2:], 0)
        return *_merged(every, m.shape), least.T.reshape(chosen.shape)

    def _finished(self, x: Any, dtype: Any, log: bool) -> Any:
        """Return the softmax of this shard, or its logarithm."""
        m, d = local.pair(x, None)
        if self._sends(m):
            m, d = _merged(self.gather(_stacked(m, d)), m.shape)
        return local.finished(x, m, d, log, dtype)

    def _sends(self, rows: Any) -> bool:
        return math.prod(rows.shape) > 0 and self.size > 1


def _stacked(*arrays: Any) -> Any:
    """Return arrays of the rows as (n, rows)."""
    return module_of(arrays[0]).stack([each.reshape(-1) for each in arrays])


def _merged(every: Any, shape: Any) -> tuple[Any, Any]:
    """Return the pairs of whole rows from (processes, 2 or more, rows), of the rows' shape."""
    ms, ds = _pairs_of(every)
    m, d = local.merge(ms, ds)
    return m.reshape(shape), d.reshape(shape)


def _pairs_of(every: Any) -> Any:
    """Return the pairs of (processes, 2 or more, rows) as (2, rows, processes), contiguous."""
    return _contiguous(every[:, :2].swapaxes(0, 2).swapaxes(0, 1))


def _contiguous(array: Any) -> Any:
    of_torch = hasattr(array, "contiguous")
    return array.contiguous() if of_torch else module_of(array).ascontiguousarray(array)
