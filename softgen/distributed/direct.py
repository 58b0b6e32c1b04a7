"""The direct exchange: one kernel, whose blocks store parts of rows into each other's memory."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import weakref
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from softgen.devices.gpu.compile import compile_source
from softgen.devices.gpu.device import arch_of
from softgen.distributed.collective import Collective
from softgen.distributed.mailboxes import Mailboxes
from softgen.errors import CaptureError, IllegalVariantError
from softgen.source.render import render
from softgen.spec.problem import Problem, rows_bucket
from softgen.spec.shards import MOST_SHARDS, SHARDS
from softgen.strategies.base import NO_PDL, TRIGGERS
from softgen.strategies.select import untimed
from softgen.strategies.variants import Variant
from softgen.torch.dtypes import wide

# As long as NCCL waits where nobody says otherwise.
SECONDS = 600.0

# A mailbox has 128 bytes a row and process: of 8 processes 64 MiB.
MOST_ROWS = 65536

_MOST_LAUNCHES = 256

# Kernels load 16 bytes at once where rows start on them.
_BOUNDARY = 16


class Direct:
    """Parts of rows through mailboxes in symmetric memory, for rows that GPUs hold in registers.

    It is for groups of GPUs that can access each other's memory: see `usable`.
    What it has no kernel for goes through a Collective. Processes agree on that at the first call
    with a function, its types and a number of columns, and each chooses its own kernel.

    Attributes:
        size: how many processes it has.
    """

    def __init__(self, group: Any, seconds: float = SECONDS) -> None:
        """Make an exchange that waits so many seconds for another process."""
        # An exchange is kept as long as its group, and must not keep it.
        self._group = weakref.ref(group)
        self.size: int = dist.get_world_size(group)
        self._seconds = seconds
        self._mailboxes: Mailboxes | None = None
        self._agreed: dict[Any, bool] = {}
        self._kernels: dict[Any, Any] = {}
        self._launches: dict[Any, Any] = {}

    @property
    def group(self) -> Any:
        """The process group."""
        return self._group()

    @property
    def collective(self) -> Collective:
        """What the rest goes through."""
        return Collective(self.group)

    def softmax(self, x: Any, dtype: Any) -> Any:
        """Return this shard of the softmax; see Exchange."""
        if self._takes("softmax", x, dtype):
            return self._launch("softmax", x, dtype, x.shape)
        return self.collective.softmax(x, dtype)

    def log_softmax(self, x: Any, dtype: Any) -> Any:
        """Return this shard of the logarithm of the softmax; see Exchange."""
        if self._takes("log_softmax", x, dtype):
            return self._launch("log_softmax", x, dtype, x.shape)
        return self.collective.log_softmax(x, dtype)

    def logsumexp(self, x: Any) -> Any:
        """Return lse of the rows; see Exchange."""
        if self._takes("logsumexp", x, wide(x)):
            return self._launch("logsumexp", x, wide(x), x.shape[:-1])
        return self.collective.logsumexp(x)

    def pairs(self, x: Any, scale: Any, chosen: Any) -> tuple[Any, Any, Any]:
        """Return the pairs and the chosen elements of the rows; see Exchange."""
        return self.collective.pairs(x, scale, chosen)

    def total(self, sums: Any) -> Any:
        """Return the sums over the processes; see Exchange."""
        return self.collective.total(sums)

    def _takes(self, function: str, x: Any, dtype: Any) -> bool:
        """Return whether all processes have a kernel for their shards."""
        if self.size == 1 or not 1 <= x.shape[:-1].numel() <= MOST_ROWS:
            return False
        key = (function, x.dtype, dtype, x.shape[-1])
        if key not in self._agreed:
            self._require_no_capture("which exchange the processes take is not agreed on yet")
            with torch.cuda.device(x.device):
                self._agreed[key] = _agree(self._kernel(key, x) is not None, self.group)
        return self._agreed[key]

    def _launch(self, function: str, x: Any, dtype: Any, shape: Any) -> Any:
        rows, cols = x.shape[:-1].numel(), x.shape[-1]
        y = torch.empty(shape, dtype=dtype, device=x.device)
        with torch.cuda.device(x.device):
            mailboxes = self._with_room(rows, x)
            mailboxes.require_all()
            stream = torch.cuda.current_stream()
            mailboxes.order(stream)
            source, target = x.contiguous(), y
            if not cols:  # as a shard of one -inf, whose part is (-inf, 0)
                source = x.new_full((rows, 1), -torch.inf)
                target = torch.empty_like(source, dtype=dtype) if y.dim() == x.dim() else y
            elif source.data_ptr() % _BOUNDARY:
                source = source.clone()
            launch = self._launcher((function, x.dtype, dtype, cols), rows, x)
            words = (source.data_ptr(), target.data_ptr(), *mailboxes.words)
            launch(words, stream.cuda_stream)
        return y

    def _launcher(self, key: Any, rows: int, x: Any) -> Any:
        found = self._launches.get((key, rows))
        if found is None:
            if len(self._launches) >= _MOST_LAUNCHES:
                self._launches.clear()
            found = self._launches[key, rows] = self._kernel(key, x).launcher(rows)
        return found

    def _kernel(self, key: Any, x: Any) -> Any:
        """Return the kernel for x, loaded; None where its rows do not fit the registers."""
        function, dtype, out_dtype, cols = key
        rows = rows_bucket(x.shape[:-1].numel())
        if (key, rows) not in self._kernels:
            self._require_no_capture("the kernel is not loaded yet")
            problem = Problem.of(function, dtype, max(1, cols), out_dtype=out_dtype, layout=SHARDS)
            kernel = None
            with contextlib.suppress(IllegalVariantError):
                chosen = untimed(problem, rows, arch_of(x.device.index)).variant
                # What comes next starts while this waits: bfloat16 64 x 64128 took 7.41 us on two
                # H200s so, and 7.67 otherwise.
                pdl = TRIGGERS if chosen.strategy.pdl else NO_PDL
                strategy = dataclasses.replace(chosen.strategy, pdl=pdl)
                kernel = compile_source(render(Variant(problem, strategy)))
            self._kernels[key, rows] = kernel
        return self._kernels[key, rows]

    def _with_room(self, rows: int, x: Any) -> Mailboxes:
        if self._mailboxes is None or self._mailboxes.room < rows:
            self._require_no_capture("there are no mailboxes for so many rows yet")
            room = rows_bucket(max(rows, 1024))
            self._mailboxes = Mailboxes(self.group, x.device, room, self._seconds)
            dist.barrier(self.group)  # nobody writes into a mailbox that is not clear yet
        return self._mailboxes

    @staticmethod
    def _require_no_capture(why: str) -> None:
        """Raise CaptureError while the stream is captured."""
        if torch.cuda.is_current_stream_capturing():
            raise CaptureError(
                f"{why}, and cannot be while a stream is captured; call once before with these rows"
            )


def usable(group: Any) -> bool:
    """Return whether the processes of a group can exchange directly; all of them have to ask.

    They can on GPUs of one host, one each, that access each other's memory, where PyTorch has
    symmetric memory and the system lets it share memory between processes.
    """
    mine = (_host(), torch.cuda.current_device())
    every: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(every, mine, group=group)
    gpus = [gpu for _, gpu in every]
    if len({host for host, _ in every}) > 1 or len(set(gpus)) < len(gpus):
        return False
    if not 1 < len(gpus) <= MOST_SHARDS:
        return False
    reach = all(mine[1] == gpu or torch.cuda.can_device_access_peer(mine[1], gpu) for gpu in gpus)
    if not _agree(reach and Mailboxes.are_possible(), group):
        return False
    try:
        Mailboxes(group, torch.device("cuda", mine[1]), 1, 1.0)
    except RuntimeError:  # as where a container forbids what shares memory between processes
        return _agree(False, group)
    return _agree(True, group)


def _agree(mine: bool, group: Any) -> bool:
    """Return whether it is so in all processes of a group of GPUs."""
    found = torch.tensor([mine], dtype=torch.int32).cuda()
    dist.all_reduce(found, op=dist.ReduceOp.MIN, group=group)
    return bool(found.item())


def _host() -> str:
    """Return what tells this boot of this host from others."""
    name = socket.gethostname()
    try:
        return f"{name} {Path('/proc/sys/kernel/random/boot_id').read_text()}"
    except OSError:
        return name
