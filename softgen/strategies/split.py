"""A row cut into chunks for many blocks, in one launch: for few rows, or columns in the millions.

Blocks take tasks by ticket: first reduce every chunk of a row to its (max, sum) pair, then, while the
next row is being reduced, read each chunk again and write its results. A task only ever waits for
tasks with smaller tickets, which running blocks hold, so no block has to be resident with another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from softgen.arch import Arch
from softgen.problem import Problem
from softgen.strategies.base import WARP_SIZE, Launch, Strategy, knob
from softgen.strategies.block import OTHER_REGISTERS

HEADER_BYTES = 32  # the tickets given out and the rows finished
ROW_BYTES = 32  # counters, a flag and the pair of a row
PAIR_BYTES = 16


@dataclass(frozen=True)
class Split(Strategy):
    """Chunks of a row per block, each read twice; the second read comes from L2 where it can."""

    name = "split"
    summary = "a row cut into chunks, reduced and then written by as many blocks as there are"

    pack_size: int = knob("p", "elements moved by one load or store")
    cols_per_thread: int = knob("c", "elements of a chunk held by one thread")
    block_size: int = knob("b", "threads in a block")
    reverse: bool = knob("rev", "whether chunks are written last one first")
    evict_first: bool = knob("ef", "whether loads and stores leave the caches first")

    def check(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless a chunk fits the registers of a block."""
        require = self.require
        self.require_pack(self.pack_size, problem)
        self.require_block(self.block_size)
        require(
            self.cols_per_thread > 0 and self.cols_per_thread % self.pack_size == 0,
            "cols_per_thread must be a positive multiple of pack_size",
        )
        held = self.cols_per_thread * problem.compute_dtype.itemsize // 4
        registers = min(arch.registers_per_multiprocessor // self.block_size // 8 * 8, 255)
        limit = registers - OTHER_REGISTERS[problem.compute_dtype]
        require(held <= limit, f"a thread would hold {held} registers of elements, of {limit}")
        require(self.chunks(problem) < 2**31, "a row must be fewer than 2**31 chunks")

    def chunks(self, problem: Problem) -> int:
        """Return the number of chunks of a row."""
        overhang = 0 if problem.alignment >= self.pack_size else self.pack_size - 1
        return -(-(problem.cols + overhang) // (self.cols_per_thread * self.block_size))

    def launch(self, problem: Problem) -> Launch:
        """Return the launch shape: two tasks a chunk, a block a task."""
        chunks = self.chunks(problem)
        pairs = 2 * self.block_size // WARP_SIZE * problem.compute_dtype.itemsize
        return Launch(
            self.block_size,
            rows_per_block=1,
            shared_bytes=pairs + 8,
            blocks_per_row=2 * chunks,
            workspace_bytes_per_row=ROW_BYTES + chunks * PAIR_BYTES,
            workspace_header_bytes=HEADER_BYTES,
        )

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield chunks of 4 or 8 packs a thread, for rows of two chunks or more."""
        pack = problem.dtype.max_pack
        for packs in (8, 4):
            for block in (256, 512, 128):
                for reverse in (False, True):
                    setting = cls(pack, packs * pack, block, reverse, False)
                    if setting.is_legal(problem, arch) and setting.chunks(problem) > 1:
                        yield setting

    @classmethod
    def estimate(cls, problem: Problem, rows: int, arch: Arch) -> float:
        """Two reads and a write, but on the whole GPU, whatever the rows."""
        busy = min(1.0, rows / arch.multiprocessors)
        return 1.3 if problem.cols > 65536 or busy < 0.1 else 1.55
