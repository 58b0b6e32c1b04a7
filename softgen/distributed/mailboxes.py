"""Mailboxes of a process group, in symmetric memory: problems/shards.py says what is in one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from softgen.errors import ExchangeError
from softgen.problems.shards import mailbox_bytes

# PyTorch asks for it at each rendezvous.
NO_MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"


class Mailboxes:
    """This process's mailbox and the addresses of the others'. All processes make one together.

    Attributes:
        room: rows that there is room for.
        words: what a kernel takes of them, in the order of its operands.
    """

    def __init__(self, group: Any, device: Any, room: int, seconds: float) -> None:
        """Make mailboxes for `room` rows; a kernel waits so many seconds for another process.

        They are clear when all processes have come back from here.
        """
        import torch.distributed._symmetric_memory as symmetric

        size, rank = dist.get_world_size(group), dist.get_rank(group)
        self.room, self._seconds = room, seconds
        with without_multicast():
            count = mailbox_bytes(size, room)
            self._mine = symmetric.empty(count, dtype=torch.uint8, device=device)
            self._mine.zero_()
            torch.cuda.synchronize()
            self._handle = symmetric.rendezvous(self._mine, group)
        offset = self._mine.data_ptr() - self._handle.buffer_ptrs[rank]
        addresses = [pointer + offset for pointer in self._handle.buffer_ptrs]
        self._addresses = torch.tensor(addresses, dtype=torch.int64, device=device)
        self._alarm = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._late = self._alarm.numpy()
        self._last: tuple[int, Any] | None = None
        self.words = (
            *(self._addresses.data_ptr(), addresses[rank], self._alarm.data_ptr()),
            *(rank, size, room, int(seconds * 1e9)),
        )
        torch.cuda.synchronize()

    def require_all(self) -> None:
        """Raise ExchangeError if a launch before waited for a process in vain."""
        late = int(self._late[0])
        if late:
            raise ExchangeError(
                f"process {late - 1} of the group sent no part of a row for {self._seconds:g} s: "
                "it ended, or did not make the same calls; results since then have NaN. Make the "
                "process group anew"
            )

    def order(self, handle: int) -> None:
        """Have the current stream, which has that handle, wait for what the last one launched.

        A mailbox is for one launch at a time.
        """
        last = self._last
        if last is not None and last[0] == handle:
            return
        stream = torch.cuda.current_stream()
        self._last = handle, stream
        if last is not None and not torch.cuda.is_current_stream_capturing():
            stream.wait_stream(last[1])


@contextlib.contextmanager
def without_multicast() -> Iterator[None]:
    """Have PyTorch leave NVLink's multicast out of symmetric memory, unless the user says else.

    It is not needed, and can put GPUs out of service where it fails. A rendezvous of another thread
    at the same time goes without it too.
    """
    given = os.environ.get(NO_MULTICAST)
    os.environ.setdefault(NO_MULTICAST, "1")
    try:
        yield
    finally:
        if given is None:
            os.environ.pop(NO_MULTICAST, None)


def patience_of(group: Any) -> float:
    """Return the timeout of a group of GPUs, in seconds."""
    backend = group._get_backend(torch.device("cuda"))
    options = getattr(backend, "options", None)  # not every backend tells
    timeout = getattr(options, "_timeout", dist.distributed_c10d.default_pg_timeout)
    return float(timeout.total_seconds())
