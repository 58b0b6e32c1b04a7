"""How the processes of a group learn each other's parts of rows."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from softgen import logs
from softgen.distributed.gathered import Gathered
from softgen.errors import CaptureError, InvalidTypeError, InvalidValueError, NotSupportedError
from softgen.switches import is_on
from softgen.tuning.policy import batch_invariant_default

if TYPE_CHECKING:
    from softgen.distributed.direct import Direct

# PyTorch 2.13 has another name for it.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

# By process group, what its GPUs were found to be able to do; None for a Collective.
_exchanges: WeakKeyDictionary[Any, Direct | None] = WeakKeyDictionary()


class Collective(Gathered):
    """Parts of rows by one all-gather of torch.distributed, over NCCL or, on the CPU, gloo."""

    @cached_property
    def size(self) -> int:
        """How many processes it has."""
        return int(dist.get_world_size(self.group))

    @property
    def rank(self) -> int:
        """The number of this process."""
        return int(dist.get_rank(self.group))

    def gather(self, mine: Any) -> Any:
        """Return (n, rows) of each process as (processes, n, rows), in the order of the ranks."""
        every = mine.new_empty(self.size * mine.numel())
        all_gather(every, mine.view(-1), group=self.group)
        return every.view(self.size, *mine.shape)

    def count(self, x: Any) -> Any:
        """Return how many columns the shard has, as an array (1, 1) for `gather`."""
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            raise CaptureError(
                "the columns of all shards are not known yet, and cannot be asked for while a "
                "stream is captured; call once before, or give offset= and no label_smoothing"
            )
        return torch.tensor([[x.shape[-1]]], device=x.device)

    def total(self, sums: Any) -> Any:
        """Return the sums over the processes, one a row."""
        if self.size > 1 and sums.numel():
            dist.all_reduce(sums, group=self.group)
        return sums


def name_of(group: Any) -> str:
    """Return the name of a process group; None is that of all processes.

    Raises NotSupportedError before torch.distributed is initialised, and InvalidTypeError or
    InvalidValueError for a group that is none or that this process is not in.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise NotSupportedError(
            "torch.distributed is not initialised; start the program with torchrun and call "
            "torch.distributed.init_process_group() first"
        )
    if group is None:
        group = dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup) and group is not dist.GroupMember.NON_GROUP_MEMBER:
        raise InvalidTypeError(
            "group must be a process group, as torch.distributed.new_group() returns it, or None "
            f"for all processes, got {group!r}"
        )
    if dist.get_rank(group) < 0:
        raise InvalidValueError("this process is not in the group; call with one that it is in")
    name: str = group.group_name
    return name


def exchange_named(name: str, x: Any) -> Direct | Collective:
    """Return the exchange of the process group of that name, for shards like x."""
    group = distributed_c10d._resolve_process_group(name)
    if x.is_cuda and group not in _exchanges:
        # While a stream is captured they cannot ask each other.
        if torch.cuda.is_current_stream_capturing():
            return Collective(group)
        with torch.cuda.device(x.device):
            _exchanges[group] = _asked(group)
    return (x.is_cuda and _exchanges[group]) or Collective(group)


def _asked(group: Any) -> Direct | None:
    """Ask all processes of a group of GPUs; the first one says why they do not go directly."""
    from softgen.distributed.direct import Direct, obstacle

    found = obstacle(group, _unwillingness())
    if not found:
        return Direct(group)
    if dist.get_rank(group) == 0 and dist.get_world_size(group) > 1:
        ranks = dist.get_process_group_ranks(group)
        logs.warning("processes %s share rows by an all-gather, as %s", ranks, found)
    return None


def _unwillingness() -> str:
    """Return why this process wants no direct exchange; "" if it does."""
    if not is_on("SOFTGEN_DIRECT", default=True):
        return "SOFTGEN_DIRECT=0 is set"
    # Which kernel sends parts of rows depends on their number, and with it the last bits of a row.
    if batch_invariant_default():
        return "SOFTGEN_BATCH_INVARIANT=1 is set"
    # Kernels of two groups on two streams could run in another order on another GPU: each would
    # hold its GPU and wait for the other.
    if any(each is not None and _is_alive(group) for group, each in _exchanges.items()):
        return (
            "another group goes directly there already, and kernels of both that run at once would "
            "wait for each other; destroy it first, or pass the same group everywhere"
        )
    return ""


def _is_alive(group: Any) -> bool:
    """Return whether a group that somebody holds has not been destroyed."""
    try:
        dist.get_rank(group)
    except ValueError:
        return False
    return True
