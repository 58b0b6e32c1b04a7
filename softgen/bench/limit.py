"""The limit: the fastest of several kernels that move as many bytes as the function has to.

A copy reads every element once and writes every element once, as softmax does at best. Where one
number a row is written, as logsumexp does, it is a read. Where two arrays are read and one is
written, as by a gradient from its result, it is a join of two. Which kernel is the fastest depends
on the size, so several are tried at every shape, in the same run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from softgen.bench.buffers import SharedBuffers
from softgen.devices.gpu.device import require_device
from softgen.devices.gpu.launcher import Launcher
from softgen.devices.gpu.replay import Launch
from softgen.problems.arch import Arch
from softgen.problems.problem import Problem
from softgen.source.render import environment
from softgen.strategies.launch import Launch as Shape

PACK_BYTES = 16
UNROLLS = (1, 2, 4, 8)  # few in flight win where there are few bytes, many where there are many
STRIDED_UNROLLS = (4, 8)
BLOCK_SIZES = (128, 256, 512, 1024)
# Packs of each array that a block of a join has in flight, at most: 8 packs a thread are more than
# the 64 registers that each of 1024 threads gets.
MOST_JOINED = 4096
NEVER = 0x9E3779B9  # what all words of a read's sum would have to be


@dataclass(frozen=True)
class Sweep:
    """One setting of the kernel that goes over the data once.

    Attributes:
        unroll: 16-byte accesses of a thread in flight.
        block_size: threads in a block.
        evict_first: whether lines are marked as the first to leave the caches.
        waves: grids that fill the GPU so many times stride over the data; 0 for one pass.
        writes: whether it copies what it reads.
        joins: whether it reads two arrays, and writes the one that their bits give together.
    """

    unroll: int
    block_size: int
    evict_first: bool
    waves: int
    writes: bool
    joins: bool = False

    @property
    def name(self) -> str:
        """What it does, which is the kernel's name."""
        return "join" if self.joins else "copy" if self.writes else "read"

    @property
    def label(self) -> str:
        """The setting in short."""
        walk = f"stride{self.waves}" if self.waves else "once"
        hint = " ef" if self.evict_first else ""
        return f"{self.name} u{self.unroll} b{self.block_size} {walk}{hint}"

    def grid(self, size: int, arch: Arch) -> int:
        """Return the blocks to launch for `size` bytes."""
        each = self.unroll * self.block_size * PACK_BYTES
        blocks = max(1, -(-size // each))
        resident = arch.multiprocessors * (arch.threads_per_multiprocessor // self.block_size)
        return min(blocks, self.waves * resident) if self.waves else blocks


def settings_for(problem: Problem) -> Iterator[Sweep]:
    """Yield every setting that is tried for a problem."""
    writes = problem.writes_elements
    return settings(writes, writes and len(problem.element_inputs) == 2)


def settings(writes: bool, joins: bool = False) -> Iterator[Sweep]:
    """Yield every setting that is tried, of copies, of reads or of joins."""
    for unroll in UNROLLS:
        for block_size in BLOCK_SIZES:
            if joins and unroll * block_size > MOST_JOINED:
                continue
            for evict_first in (False, True):
                yield Sweep(unroll, block_size, evict_first, 0, writes, joins)
                if unroll in STRIDED_UNROLLS:
                    yield Sweep(unroll, block_size, evict_first, 1, writes, joins)


def source(sweep: Sweep, waits: bool = False) -> str:
    """Return the CUDA text of a kernel, which has the sweep's name.

    One that waits for the launch before may be launched before that has ended (sm_90).
    """
    template = environment().get_template("tools/sweep.cu.j2")
    return template.render(
        unroll=sweep.unroll,
        hint=".cs" if sweep.evict_first else "",
        writes=sweep.writes,
        joins=sweep.joins,
        never=f"{NEVER:#x}",
        name=sweep.name,
        waits=waits,
        other="z" if sweep.joins else "x",
    )


@functools.cache
def _function(sweep: Sweep, device: int, waits: bool = False) -> Any:
    cupy = require_device()
    module = cupy.RawModule(code=source(sweep, waits), backend="nvrtc")
    return module.get_function(sweep.name).kernel


def _text(sweep: Sweep) -> Sweep:
    """Return the sweep without what only its launch has, which is not in the text."""
    return replace(sweep, block_size=0, waves=0)


def sweeper(sweep: Sweep, buffers: SharedBuffers, size: int) -> Callable[..., None]:
    """Return enqueue(x, y) on device addresses: `size` bytes of x are read, or go from x to y.

    A join has enqueue(x, z, y), and reads `size` bytes of both x and z.
    """
    device = int(buffers.player.cupy.cuda.runtime.getDevice())
    function = _function(_text(sweep), device)
    grid = sweep.grid(size, buffers.arch)

    def enqueue(*addresses: int) -> None:
        function((grid,), (sweep.block_size,), (*addresses, size), 0, buffers.player.stream)

    return enqueue


def dependent_sweeper(sweep: Sweep, buffers: SharedBuffers, size: int) -> Callable[..., None]:
    """Return the same, with launches that may start before the previous launch has ended."""
    device = int(buffers.player.cupy.cuda.runtime.getDevice())
    function = _function(_text(sweep), device, waits=True)
    shape = Shape(
        sweep.block_size,
        rows_per_block=sweep.unroll * sweep.block_size * PACK_BYTES,
        static_shared_bytes=0,
        most_blocks=sweep.grid(size, buffers.arch),
        dependent=True,
    )
    # The kernel's rows are bytes.
    launcher = Launcher(function, 3 if sweep.joins else 2, shape, size, device, 0)

    def enqueue(*addresses: int) -> None:
        launcher(addresses, buffers.player.stream.ptr)

    return enqueue


def launch_of(sweep: Sweep, buffers: SharedBuffers, *, dependent: bool = False) -> Launch:
    """Return the sweep as a competitor: it reads input i, and copies it to output i if it writes.

    An output must be as large as an input where it writes.
    """
    enqueue = (dependent_sweeper if dependent else sweeper)(sweep, buffers, buffers.swept_bytes)
    pairs, swept = buffers.pairs, buffers.swept

    def launch(i: int) -> None:
        enqueue(*swept[i % pairs])

    return launch
