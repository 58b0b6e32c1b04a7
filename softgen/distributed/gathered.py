"""The exchange by one all-gather, on arrays of any library."""

from __future__ import annotations

import abc
import math
from typing import Any
from weakref import WeakKeyDictionary

from softgen.call.scalars import whole
from softgen.distributed import local
from softgen.distributed.local import module_of
from softgen.errors import InvalidValueError

# By group, and how many columns this process has: those of each process, in the order of the ranks.
_columns: WeakKeyDictionary[Any, dict[int, list[int]]] = WeakKeyDictionary()


class Gathered(abc.ABC):
    """One kernel before the all-gather, and one or two after it.

    x is a process's shard, (..., columns), and may have no column. All processes call the same
    methods in the same order, with the same rows; what is returned a row has the same bits on all.
    Nothing is sent where there is one process, or no row.

    Attributes:
        group: the process group, or the communicator.
    """

    def __init__(self, group: Any) -> None:
        self.group = group

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """How many processes there are."""

    @property
    @abc.abstractmethod
    def rank(self) -> int:
        """The number of this process."""

    @abc.abstractmethod
    def count(self, x: Any) -> Any:
        """Return how many columns the shard has, as an array (1, 1) for `gather`."""

    @abc.abstractmethod
    def gather(self, mine: Any) -> Any:
        """Return (n, rows) of each process as (processes, n, rows), in the order of the ranks."""

    def first_column(self, given: int, x: Any) -> int:
        """Return the number of the shard's first column among the columns of all processes.

        It is the one that is given. Where that is below 0 the processes ask each other, once for
        each number of columns. Where the columns of one process change, those of all have to, or
        the processes that know theirs would not answer.

        Raises CaptureError where it is not known yet and the stream is captured.
        """
        return given if given >= 0 else sum(self._columns(x)[: self.rank])

    def all_columns(self, given: int, x: Any) -> int:
        """Return how many columns all processes have; `given` as in `first_column`."""
        return given if given >= 0 else sum(self._columns(x))

    def _columns(self, x: Any) -> list[int]:
        """Return how many columns each process has, in the order of the ranks."""
        known = _columns.setdefault(self.group, {})
        cols = x.shape[-1]
        if cols not in known:
            known[cols] = self.gather(self.count(x)).reshape(-1).tolist()
        return known[cols]

    def softmax(self, x: Any, dtype: Any, log: bool = False) -> Any:
        """Return this shard of the softmax, of `dtype`, or its logarithm."""
        m, d = local.pair(x, None)
        if self._sends(m):
            m, d = _merged(self.gather(_stacked(m, d)), m.shape)
        return local.finished(x, m, d, log, dtype)

    def logsumexp(self, x: Any) -> Any:
        """Return log(sum(exp(x))) of the rows, in the type of the arithmetic.

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
        """Return the cross entropy of the rows with their targets, and lse.

        Args:
            x: the shard.
            target: a number of a column among those of all processes, int32 or int64, one a row.
            first: that of this process's first column.
            ignored: a target whose row counts for nothing: 0, and an lse of -inf.
            z_loss: the weight of lse^2.
        """
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
        """Return the pairs (m, d) of the rows of x * scale, and the chosen elements of all.

        Args:
            x: the shard.
            scale: a number, one a row, or None for 1.
            chosen: (..., k) elements of x * scale in the type of the arithmetic, +inf where another
                process may have them. What none has stays +inf.
        """
        m, d = local.pair(x, scale)
        if not self._sends(m):
            return m, d, chosen
        columns = chosen.reshape(math.prod(m.shape), -1).T
        every = self.gather(module_of(m).concatenate((_stacked(m, d), columns)))
        least = module_of(every).amin(every[:, 2:], 0)
        return *_merged(every, m.shape), least.T.reshape(chosen.shape)

    def entropy(self, x: Any, scale: Any, chosen: Any = None) -> tuple[Any, Any, Any]:
        """Return the entropy and lse of the rows of x * scale, and the chosen elements of all.

        With w the share of a shard in the sum of a row, and h its own entropy, that of the row is
        the sum of w (h - log w). The arguments are those of `pairs`; `chosen` may be None.
        """
        h, lse = local.entropy_of(x, scale)
        if not self._sends(lse):
            return h, lse, chosen
        mine, rows = _stacked(h, lse), lse.shape
        if chosen is not None:
            columns = chosen.reshape(math.prod(rows), -1).T
            mine = module_of(mine).concatenate((mine, columns))
        every = self.gather(mine)
        h, lse = (each.reshape(rows) for each in _grouped(every[:, 0], every[:, 1]))
        if chosen is not None:
            least = module_of(every).amin(every[:, 2:], 0)
            chosen = least.T.reshape(chosen.shape)
        return h, lse, chosen

    def _sends(self, rows: Any) -> bool:
        return math.prod(rows.shape) > 0 and self.size > 1


def _grouped(hs: Any, lses: Any) -> tuple[Any, Any]:
    """Return the entropy and lse of whole rows from those of their shards, (processes, rows).

    No term of the sum is below 0. A row of nothing but -inf divides 0 by 0, and a row with +inf
    infinity by infinity: its entropy is NaN.
    """
    of = module_of(lses)
    top = of.amax(lses, 0)
    top = of.where(of.isinf(top), 0, top)
    less = lses - top
    terms = of.exp(less)
    d = terms.sum(0)
    shares, log_d = terms / d, of.log(d)
    # The entropy of a shard of nothing but -inf is NaN, and its share 0.
    return of.where(shares == 0, 0, shares * (hs - less)).sum(0) + log_d, top + log_d


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


def offset_of(given: Any) -> int:
    """Return a caller's `offset`; raise InvalidTypeError or InvalidValueError if it is none."""
    offset = whole("offset", given)
    if not 0 <= offset < 2**63:
        raise InvalidValueError(
            f"offset must be the number of the shard's first column, 0 or above, got {offset}"
        )
    return offset
