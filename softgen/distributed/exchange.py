"""How the processes of a group learn each other's parts of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from softgen.distributed.collective import Collective
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError
from softgen.switches import is_on
from softgen.tuning.policy import batch_invariant_default

if TYPE_CHECKING:
    from softgen.distributed.direct import Direct

# By process group, what its GPUs were found to be able to do; None for a Collective.
_exchanges: WeakKeyDictionary[Any, Direct | None] = WeakKeyDictionary()


class Exchange(Protocol):
    """What the functions need of the processes that hold the other columns of the same rows.

    x is this process's shard, (..., columns), and may have no column. All processes call the same
    methods in the same order, with the same rows; what is returned a row has the same bits on all.

    """

    @property
    def group(self) -> Any:
        """The process group."""

    def softmax(self, x: Any, dtype: Any) -> Any:
        """Return this shard of the softmax of the rows, of `dtype`."""

    def log_softmax(self, x: Any, dtype: Any) -> Any:
        """Return this shard of the logarithm of the softmax, of `dtype`."""

    def logsumexp(self, x: Any) -> Any:
        """Return log(sum(exp(x))) of the rows, in the type of the arithmetic."""

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

    def pairs(self, x: Any, scale: Any, chosen: Any) -> tuple[Any, Any, Any]:
        """Return the pairs (m, d) of the rows of x * scale, and the chosen elements of all.

        Args:
            x: the shard.
            scale: a number, one a row, or None for 1.
            chosen: (..., k) elements of x * scale in the type of the arithmetic, +inf where another
                process may have them. What none has stays +inf.
        """

    def total(self, sums: Any) -> Any:
        """Return what a number a row adds up to over the processes."""


def exchange_of(group: Any, x: Any) -> Exchange:
    """Return the exchange of a process group, for shards like x; None is that of all processes.

    Raises NotSupportedError before torch.distributed is initialised, and InvalidTypeError or
    InvalidValueError for a group that is none or that this process is not in.
    """
    group = _world() if group is None else group
    known = group is not None and x.is_cuda and group in _exchanges
    if known:
        return _exchanges[group] or Collective(group)
    if not dist.is_available() or not dist.is_initialized():
        raise NotSupportedError(
            "torch.distributed is not initialised; start the program with torchrun and call "
            "torch.distributed.init_process_group() first"
        )
    if not isinstance(group, dist.ProcessGroup) and group is not dist.GroupMember.NON_GROUP_MEMBER:
        raise InvalidTypeError(
            "group must be a process group, as torch.distributed.new_group() returns it, or None "
            f"for all processes, got {group!r}"
        )
    if dist.get_rank(group) < 0:
        raise InvalidValueError("this process is not in the group; call with one that it is in")
    # While a stream is captured they cannot ask each other.
    if not x.is_cuda or torch.cuda.is_current_stream_capturing():
        return Collective(group)
    from softgen.distributed.direct import Direct, usable

    # Which kernel sends parts of rows depends on their number, and with it the last bits of a row.
    wanted = is_on("SOFTGEN_DIRECT", default=True) and not batch_invariant_default()
    with torch.cuda.device(x.device):
        _exchanges[group] = Direct(group) if usable(group, wanted) else None
    return _exchanges[group] or Collective(group)


def _world() -> Any:
    """Return the group of all processes, or None."""
    return dist.group.WORLD if dist.is_available() else None
