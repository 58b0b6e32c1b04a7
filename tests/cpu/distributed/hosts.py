"""Direct on tensors of the CPU: threads are the processes, and the emulator launches for all."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from softgen.devices.emulator import Job, build
from softgen.devices.emulator.shard import Shard
from softgen.distributed import direct, operators, tuned
from softgen.problems.arch import arch_named
from softgen.problems.layouts import FIRST
from softgen.source.render import Source
from softgen.strategies.select import untimed
from tests.cpu.distributed.world import process_on_cpu
from tests.helpers.driver import FakeKernel
from tests.helpers.emulated_kernel import in_storage

ROWS, ROOM = 8, 8
WIDE = 150  # columns from which on no kernel holds a shard, here

here = threading.local()  # of a process: its `host`, `rank` and `exchange`


class Host:
    """What processes of a group launch: once all have, the emulator runs it.

    Attributes:
        launched: the name of each kernel, by process.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.launched: list[list[str]] = [[] for _ in range(size)]
        self._barrier = threading.Barrier(size)
        self._jobs: dict[int, tuple[Job, list[Any]]] = {}
        self._told: dict[int, tuple[float, ...]] = {}
        self._sums: dict[int, Any] = {}

    def largest(self, rank: int, numbers: tuple[float, ...]) -> list[float]:
        """Return of each number the largest of all processes."""
        self._told[rank] = numbers
        self._barrier.wait(60)
        found = [max(each) for each in zip(*self._told.values(), strict=True)]
        self._barrier.wait(60)
        return found

    def total(self, rank: int, sums: Any) -> Any:
        """Return what a tensor adds up to over the processes."""
        self._sums[rank] = sums
        self._barrier.wait(60)
        found = sum(self._sums[i] for i in range(self.size))
        self._barrier.wait(60)
        return found

    def run(self, rank: int, source: Source, words: list[int], rows: int) -> None:
        """Launch, as process `rank`, and return when the results are in memory."""
        problem = source.variant.problem
        given = dict(zip((each.name for each in problem.operands), words, strict=True))
        memory = functools.partial(FakeKernel(problem).memory, given=given, rows=rows)
        x, *others = (in_storage(memory(each), each.dtype) for each in problem.inputs)
        shard = Shard(rank, self.size, ROOM, first=given.get(FIRST, 0))
        job = Job(source, x.reshape(rows, -1), tuple(others), shard=shard)
        self._jobs[rank] = job, [memory(each) for each in problem.results]
        self.launched[rank].append(source.name)
        self._barrier.wait(60)
        if rank == 0:
            jobs = [self._jobs[i] for i in range(self.size)]
            found, late = build([job.source for job, _ in jobs]).run_sharded([j for j, _ in jobs])
            assert set(late) == {-1}
            for (_, memories), results in zip(jobs, found, strict=True):
                for memory, result in zip(memories, results, strict=True):
                    memory[...] = result.view(memory.dtype)
        self._barrier.wait(60)


class Kernel:
    """A kernel of a process, loaded."""

    local_bytes = 0

    def __init__(self, host: Host, rank: int, source: Source) -> None:
        self.variant, self.source, self.host, self.rank = source.variant, source, host, rank

    def launcher(self, rows: int) -> Callable[[list[int], int], None]:
        """Return the launch."""
        return lambda words, stream: self.host.run(self.rank, self.source, words, rows)


def loaded(source: Source) -> Kernel:
    """Return a kernel of the process that asks."""
    return Kernel(here.host, here.rank, source)


class Boxes:
    """The mailboxes of a process, which the emulator has."""

    room = ROOM

    def __init__(self) -> None:
        self.words = (0, 0, 0, 0, 0, ROOM, 0)

    def require_all(self) -> None:
        """Nobody is late."""

    def order(self, handle: int) -> None:
        """There is one stream."""


class Group:
    """A process group."""


def processes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what runs a function of (exchange, rank) in each of some processes, and the host."""
    process_on_cpu(monkeypatch)
    monkeypatch.setenv("SOFTGEN_TUNE", "off")
    monkeypatch.setattr(tuned, "arch_of", lambda device: arch_named("sm_90"))
    monkeypatch.setattr(tuned, "environment", lambda device: {"device": "a test"})
    monkeypatch.setattr(
        tuned.Asked, "largest", lambda self, *numbers: here.host.largest(here.rank, numbers)
    )
    monkeypatch.setattr(direct.Direct, "total", lambda self, sums: here.host.total(here.rank, sums))
    monkeypatch.setattr(operators, "exchange_named", lambda name, x: here.exchange)
    monkeypatch.setattr(direct, "on", lambda x: torch.no_grad())
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(direct, "compile_source", loaded)
    monkeypatch.setattr(tuned, "compile_many", lambda sources: map(loaded, sources))

    def narrow(problem: Any, rows: int, arch: Any) -> Any:
        if problem.cols >= WIDE:
            problem = dataclasses.replace(problem, cols=2**22)
        return untimed(problem, rows, arch)

    monkeypatch.setattr(tuned, "untimed", narrow)

    def run(size: int, body: Callable[[Any, int], Any]) -> tuple[list[Any], Host]:
        monkeypatch.setattr("torch.distributed.get_world_size", lambda group: size)
        host, found, group = Host(size), {}, Group()

        def process(rank: int) -> None:
            here.host, here.rank = host, rank
            exchange = here.exchange = direct.Direct(group)
            exchange._mailboxes = Boxes()  # type: ignore[assignment]
            found[rank] = body(exchange, rank)

        threads = [threading.Thread(target=process, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert len(found) == size, "a thread failed"
        return [found[rank] for rank in range(size)], host

    return run


def shards_of(widths: tuple[int, ...], dtype: Any) -> tuple[Any, list[Any]]:
    """Return rows, some with -inf, +inf or NaN or of -inf alone, and each process's columns."""
    x = torch.randn(ROWS, sum(widths), generator=torch.Generator().manual_seed(1)) * 4
    x[1, : widths[0]] = -torch.inf
    x[2] += 100
    x[3, -1] = torch.inf
    x[4, 0] = torch.nan
    x[6] = -torch.inf
    x = x.to(dtype)
    return x.double(), [each.contiguous() for each in x.split(widths, -1)]
