"""Direct on tensors of the CPU: threads are the processes, and the emulator launches for all."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from softgen.devices.emulator import Job, build
from softgen.devices.emulator.shard import Shard
from softgen.source.render import Source
from softgen.spec.arch import arch_named
from softgen.spec.layouts import FIRST
from softgen.spec.operands import Extent, Operand
from softgen.spec.storage import storage_dtype
from softgen.strategies.select import untimed
from tests.helpers.emulator_helpers import share_programs

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

from softgen.distributed import direct, local

ROWS, ROOM = 6, 8
WIDE = 150  # columns from which on no kernel holds a shard, here


class Host:
    """What processes of a group launch: once all have, the emulator runs it.

    Attributes:
        launched: the name of each kernel, by process.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.launched: list[list[str]] = [[] for _ in range(size)]
        self._barrier = threading.Barrier(size)
        self._jobs: dict[int, tuple[Job, list[int]]] = {}

    def run(self, rank: int, source: Source, words: list[int], rows: int) -> None:
        """Launch, as process `rank`, and return when the results are in memory."""
        problem = source.variant.problem
        given = dict(zip(problem.operands, words, strict=True))
        inputs = [_array(o, given[o], rows, problem.cols) for o in problem.inputs]
        first = next((given[o] for o in problem.layout_numbers if o.name == FIRST), 0)
        shard = Shard(rank, self.size, ROOM, first=first)
        job = Job(source, inputs[0].reshape(rows, -1), tuple(inputs[1:]), shard=shard)
        self._jobs[rank] = job, [given[o] for o in problem.results]
        self.launched[rank].append(source.name)
        self._barrier.wait(60)
        if rank == 0:
            jobs = [self._jobs[i] for i in range(self.size)]
            found, late = build([job.source for job, _ in jobs]).run_sharded([j for j, _ in jobs])
            assert set(late) == {-1}
            for (_, addresses), results in zip(jobs, found, strict=True):
                for address, result in zip(addresses, results, strict=True):
                    ctypes.memmove(address, np.ascontiguousarray(result).ctypes.data, result.nbytes)
        self._barrier.wait(60)


class Kernel:
    """A kernel of a process, loaded."""

    def __init__(self, host: Host, rank: int, source: Source) -> None:
        self.variant, self.source, self.host, self.rank = source.variant, source, host, rank

    def launcher(self, rows: int) -> Callable[[list[int], int], None]:
        """Return the launch."""
        return lambda words, stream: self.host.run(self.rank, self.source, words, rows)


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


def _array(operand: Operand, word: int, rows: int, cols: int) -> Any:
    """Return a copy of what lies at an address, or a number from its bits."""
    kind = np.dtype(storage_dtype(operand.dtype))
    if operand.extent is Extent.NUMBER:
        bits = np.array([word], np.uint64)
        return bits.view(kind)[0].reshape(())
    shape = operand.shape(rows, cols)
    memory = (ctypes.c_char * (int(np.prod(shape)) * kind.itemsize)).from_address(word)
    return np.frombuffer(bytes(memory), kind).reshape(shape)


@pytest.fixture
def every(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what runs a function of (exchange, rank) in each of some processes, and the host."""
    share_programs(tmp_path_factory, monkeypatch)
    kernels = importlib.import_module("tests.cpu.distributed.kernels")
    mine, here = kernels.Kernels(), threading.local()
    for name in kernels.NAMES:
        monkeypatch.setattr(local, name, getattr(mine, name))
    monkeypatch.setattr(direct, "arch_of", lambda device: arch_named("sm_90"))
    monkeypatch.setattr(direct, "on", lambda x: torch.no_grad())
    monkeypatch.setattr("torch._C._cuda_getCurrentRawStream", lambda device: 0, raising=False)
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(direct, "compile_source", lambda s: Kernel(here.host, here.rank, s))

    def narrow(problem: Any, rows: int, arch: Any) -> Any:
        if problem.cols >= WIDE:
            problem = dataclasses.replace(problem, cols=2**22)
        return untimed(problem, rows, arch)

    monkeypatch.setattr(direct, "untimed", narrow)

    def run(size: int, body: Callable[[Any, int], Any]) -> tuple[list[Any], Host]:
        monkeypatch.setattr("torch.distributed.get_world_size", lambda group: size)
        host, found, group = Host(size), {}, Group()

        def process(rank: int) -> None:
            here.host, here.rank = host, rank
            exchange = direct.Direct(group)
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
    """Return rows, some with -inf, +inf or NaN, and each process's columns."""
    x = torch.randn(ROWS, sum(widths), generator=torch.Generator().manual_seed(1)) * 4
    x[1, : widths[0]] = -torch.inf
    x[2] += 100
    x[3, -1] = torch.inf
    x[4, 0] = torch.nan
    x = x.to(dtype)
    return x.double(), [each.contiguous() for each in x.split(widths, -1)]


WIDTHS = [(40, 37), (33, 0, 64), (200, 50), (160, 170)]


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_elements(name: str, widths: tuple[int, ...], every: Any) -> None:
    """Each process launches as it can: kernels of other widths, of none, and of one column."""
    exact, shards = shards_of(widths, torch.float32)
    results, host = every(
        len(widths), lambda exchange, rank: getattr(exchange, name)(shards[rank], torch.float32)
    )
    wanted = getattr(torch, name)(exact, -1).split(widths, -1)
    for got, right in zip(results, wanted, strict=True):
        torch.testing.assert_close(got.double(), right, rtol=3e-6, atol=3e-6, equal_nan=True)
    for names, width in zip(host.launched, widths, strict=True):
        (launched,) = names
        assert launched.startswith("merge_f32_1_sharded" if width >= WIDE else f"{name}_f32_")


@pytest.fixture(params=[direct.TWO_KERNELS, 0], ids=["one", "two"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel, or two."""
    monkeypatch.setattr(direct, "TWO_KERNELS", request.param)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_logsumexp(widths: tuple[int, ...], every: Any) -> None:
    exact, shards = shards_of(widths, torch.bfloat16)
    results, _ = every(len(widths), lambda exchange, rank: exchange.logsumexp(shards[rank]))
    wanted = torch.logsumexp(exact, -1)
    for got in results:
        assert torch.equal(got.nan_to_num(7), results[0].nan_to_num(7))
        torch.testing.assert_close(got.double(), wanted, rtol=3e-6, atol=3e-6, equal_nan=True)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_losses(kind: str, widths: tuple[int, ...], every: Any) -> None:
    """Targets of every process, one that is ignored, and one of nobody."""
    exact, shards = shards_of(widths, torch.float64 if kind == "int32" else torch.float32)
    cols = sum(widths)
    target = torch.tensor([0, cols - 1, widths[0], 2, 3, cols], dtype=getattr(torch, kind))
    starts = np.cumsum([0, *widths])

    def body(exchange: Any, rank: int) -> Any:
        return exchange.losses(shards[rank], target, int(starts[rank]), 2, 0.25)

    results, _ = every(len(widths), body)
    lse = torch.logsumexp(exact, -1)
    at = target.long().clamp(max=cols - 1)[:, None]
    loss = lse - exact.gather(-1, at)[:, 0] + 0.25 * lse * lse
    loss[5], loss[3] = torch.nan, 0
    lse[3] = -torch.inf
    for got, got_lse in results:
        torch.testing.assert_close(got.double(), loss, rtol=3e-6, atol=3e-6, equal_nan=True)
        torch.testing.assert_close(got_lse.double(), lse, rtol=3e-6, atol=3e-6, equal_nan=True)
        assert torch.equal(got.nan_to_num(7), results[0][0].nan_to_num(7))
