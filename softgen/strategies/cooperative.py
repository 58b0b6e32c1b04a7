"""A row in the shared memory of a group of blocks that are all resident: a pipeline over the rows.

In each block one thread keeps a ring of chunks full by bulk copies, most warps reduce and write
them, and three warps exchange the block's (max, sum) pair with the group's through global memory.
While a row is on its way out the next ones come in and are reduced, so that neither the exchange
nor a trip to memory is waited for.

Where the ring does not hold a block's slice of a row, registers may hold a part of it, and what
neither holds is loaded a second time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from softgen.problems.arch import KIB, LINE_BYTES, MIB, MOST_REGISTERS, WARP_SIZE, Arch
from softgen.problems.dtypes import MAX_PACK_BYTES, DType
from softgen.problems.layouts import Rows, Strided
from softgen.problems.problem import Problem
from softgen.strategies import registers
from softgen.strategies.base import Feature, Strategy, knob
from softgen.strategies.launch import Launch, before_dynamic

BARRIERS = 16  # bytes of the two barriers that a stage has, and a row between reduced and written

# The least bytes of a block's slice of a row: 4 chunks of 8 KB. Shorter slices take too little time
# to hide the exchange: float32 128 x 262144 took 1.12 of a copy's time on an H200 in
# slices of 64 KB and 1.31 in slices of 32 KB.
LEAST_SLICE = 32 * KIB
SIZES = (32, 16, 8, 4, 2)  # of groups, beside all SMs and half of them
# Of candidates, among 200 settings on an H200 those that won from float32 128 x 262144 to
# 128 x 4194304: threads, packs of a thread in a chunk of 8 or 16 KB, and chunks in flight.
THREADS, PACKS, IN_FLIGHT = 640, (1, 2), (2, 3)

# Threads of a block and packs of a thread where chunks are held. Whole 128 threads: an SM deals
# warps to four parts, each with a quarter of its registers. In order of their times on an H200 at
# float32 4 x 16777216 and 8 x 12582912: 177 to 182 us and 259 to 276; none held took 195 and 283.
HOLDING = ((512, 2), (384, 4), (512, 1), (640, 1), (640, 2), (384, 2))
NOT_HOLDING = ((896, 1), (768, 2), (512, 2), (512, 1))  # where none are held; fitted (4635584d)

# `rank`, fitted (67093fd7).
BEST_SLICE = 64 * KIB
LONG_CHUNK = 512  # packs

# Estimates, fitted on an H200 (16147d3a): where the chip does not hold a row, where a launch and an
# exchange are most of the time, and elsewhere; the first row of a group is only loaded, the last
# one only written, which adds up to OF_ENDS.
OF_ROWS_BEYOND = 1.45
SMALL, OF_SMALL = 8 * MIB, 1.7  # bytes of all rows
OF_ROWS, OF_ENDS = 1.12, 0.4


@dataclass(frozen=True)
class Cooperative(Strategy):
    """Groups of `group_size` resident blocks that each hold a row, and load the next ones."""

    name = "cooperative"
    summary = "a row in the shared memory of resident blocks, the next rows on their way"
    takes = frozenset({Feature.MORE_INPUTS, Feature.SUMS, Feature.HOOKS, Feature.FLOAT8})
    layouts = (Rows, Strided)

    pack_size: int = knob("p", "elements moved by one load or store")
    cols_per_thread: int = knob("c", "elements of a chunk held by one thread")
    block_size: int = knob("b", "threads in a block, two or four warps of which only help")
    group_size: int = knob("k", "blocks that share a row")
    groups: int = knob("n", "rows worked on at once, at most", constant=False)
    stages: int = knob("s", "chunks in the ring")
    in_flight: int = knob("f", "stages that are kept for loads on their way")
    prefetch: int = knob("l", "chunks that are fetched to L2 ahead of the loads", unnamed=0)
    held: int = knob("h", "chunks of a slice kept in registers", default=0)

    needs = (9, 0)

    @classmethod
    def computes(cls, problem: Problem) -> bool:
        """Whether elements are written, for which it keeps rows; `split` reads them once too."""
        return problem.writes_elements and super().computes(problem)

    def check(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless the blocks are resident and their rings fit."""
        require = self.require
        require(arch.compute_capability >= self.needs, f"bulk copies need sm_90, not {arch.name}")
        self.require_pack(self.pack_size, problem)
        require(
            self.pack_size * problem.dtype.itemsize == MAX_PACK_BYTES
            and problem.alignment >= self.pack_size
            and problem.cols % self.pack_size == 0,
            "rows must be whole packs of 16 bytes, on 16-byte boundaries",
        )
        self.require_block(self.block_size)
        helpers = self.helper_warps * WARP_SIZE
        require(self.block_size > helpers, f"block_size must be above {helpers}")
        self.require_cols_per_thread(self.cols_per_thread, self.pack_size)
        require(self.group_size > 0 and self.groups > 0, "group_size and groups must be positive")
        require(
            self.group_size * self.groups <= arch.multiprocessors,
            f"{arch.device} holds {arch.multiprocessors} such blocks at once",
        )
        require(0 < self.in_flight < self.stages, "in_flight must be from 1 to stages - 1")
        require(self.prefetch >= 0, "prefetch must not be negative")
        need, limit = self.launch(problem).shared_bytes, arch.shared_per_block
        require(need <= limit, f"the ring needs {need} bytes of shared memory, of {limit}")
        require(self.held >= 0, "held must not be negative")
        require(self.held == 0 or self.block_size % 128 == 0, "held needs whole 128 threads")
        inputs = len(problem.element_inputs)
        require(self.held == 0 or inputs == 1, "chunks of two inputs are not held")
        again = self.loaded_again(problem)
        require(
            self.held == 0 or again >= 0,
            f"held must be at most {max(0, again + self.held)}, what the ring has no room for",
        )
        values = inputs * self.cols_per_thread * problem.compute_dtype.itemsize // 4
        held = self.held * (self.cols_per_thread // self.pack_size) * 4
        # The unrolled writes overlap. Without room for that, bfloat16 spilled 8 to 32 bytes in
        # chunks of two packs, and float64 8 to 76 in those of four. So did 16-bit elements in
        # float64 where chunks are loaded again: 144 bytes in 640 threads.
        double = problem.compute_dtype is DType.FLOAT64
        overlaps = self.held > 0 or (double and again > 0)
        overlap = (2 * values if double else values // 2) if overlaps else 0
        others = registers.OTHER[problem.compute_dtype] + registers.RING + overlap
        if double and problem.dtype.itemsize == 2 and arch.compute_capability >= (12, 0):
            others += registers.DOUBLE_RING_ON_SM_120
        self.require_registers(values + held, others, 1, self.block_size, arch)

    def describe(self, problem: Problem) -> str:
        """Return how a row is held and by what, for the header of a file."""
        warps = self.block_size // WARP_SIZE - self.helper_warps
        blocks = f"{self.group_size} block{'s' if self.group_size > 1 else ''}"
        if self.fits(problem):
            where = f"in the shared memory of {blocks}"
        else:
            where = f"over {blocks}, part {'in registers' if self.held else 'on the chip'}"
        return f"a row {where} (each: {warps} warps compute, {self.helper_warps} help)"

    @property
    def helper_warps(self) -> int:
        """Warps that do not compute: one that loads, and one for each step of the exchange.

        One does all steps where chunks are held: no row is exchanged before the one ahead of it is
        written, and the registers of a warp hold 10 KB or more of a slice.
        """
        return 2 if self.held else 4

    def chunk_packs(self) -> int:
        """Return the packs of a chunk, which is what a stage of the ring holds."""
        workers = self.block_size - self.helper_warps * WARP_SIZE
        return workers * (self.cols_per_thread // self.pack_size)

    def stage_bytes(self, problem: Problem) -> int:
        """Return the bytes of a stage: a chunk of each input."""
        return len(problem.element_inputs) * self.chunk_packs() * MAX_PACK_BYTES

    def part(self, problem: Problem) -> int:
        """Return the columns of a chunk."""
        return self.chunk_packs() * self.pack_size

    def chunks(self, problem: Problem) -> int:
        """Return the number of chunks of a block's slice of a row."""
        row = problem.cols * problem.dtype.itemsize
        # Slices are whole lines: float32 128 x 2097152 took 530 us on an H200, and 538 without.
        lines = -(-row // (LINE_BYTES * self.group_size))
        return -(-lines * LINE_BYTES // (self.chunk_packs() * MAX_PACK_BYTES))

    def fits(self, problem: Problem) -> bool:
        """Whether the ring holds a slice, so that no chunk has to be loaded twice."""
        return self.chunks(problem) + self.in_flight <= self.stages

    def loaded_again(self, problem: Problem) -> int:
        """Return the chunks that neither ring nor registers hold; negative where there is room."""
        return self.chunks(problem) - (self.stages - self.in_flight) - self.held

    def depth(self, problem: Problem) -> int:
        """Return how many rows may be reduced and not yet written."""
        chunks = self.chunks(problem)
        ahead = max(0, self.stages - chunks - self.in_flight)
        return 1 + -(-ahead // chunks)

    def launch(self, problem: Problem) -> Launch:
        """Return the launch shape: a block an SM, all resident."""
        part = problem.part_bytes
        warps = self.block_size // WARP_SIZE - self.helper_warps
        depth = self.depth(problem)
        beside_ring = (self.stages + depth) * BARRIERS + depth * (warps + 1) * part
        return Launch(
            self.block_size,
            rows_per_block=1,
            static_shared_bytes=before_dynamic(beside_ring),
            dynamic_shared_bytes=self.stages * self.stage_bytes(problem),
            blocks_per_row=self.group_size,
            most_blocks=self.group_size * self.groups,
            cooperative=True,
            workspace_bytes_per_row=LINE_BYTES
            + -(-self.group_size * part // LINE_BYTES) * LINE_BYTES,
            strides=False,
            multiprocessors=self.group_size * self.groups,
        )

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield groups for which a slice is long and stays on the chip, else all SMs a row."""
        processors = arch.multiprocessors
        row_bytes = len(problem.element_inputs) * problem.cols * problem.dtype.itemsize
        long_slice = arch.shared_per_block * 3 // 4
        if row_bytes > processors * long_slice:
            yield from cls._beyond_the_ring(problem, arch)
            return
        pack = problem.dtype.max_pack
        found = []
        for size in dict.fromkeys(
            min(n, processors) for n in (processors, max(1, processors // 2), *SIZES)
        ):
            if not LEAST_SLICE <= row_bytes // size <= long_slice:
                continue
            groups = max(1, min(processors // size, rows))
            for packs, wait in itertools.product(PACKS, IN_FLIGHT):
                setting = cls(pack, packs * pack, THREADS, size, groups, 2, wait, wait)
                setting = setting._with_full_ring(problem, arch)
                if setting.keeps_rules(problem, arch):
                    found.append(setting)
        yield from sorted(found, key=lambda s: s.rank(problem, rows, arch))

    @classmethod
    def _beyond_the_ring(cls, problem: Problem, arch: Arch) -> Iterator[Strategy]:
        """Yield settings that keep what they can of a slice, in registers too if that is legal."""
        pack, processors = problem.dtype.max_pack, arch.multiprocessors
        held = [
            setting
            for threads, packs in HOLDING
            for setting in cls(
                pack, packs * pack, threads, processors, 1, 2, 1, 2, held=1
            )._holding_most(problem, arch)
        ]
        if held:
            yield from held
            return
        for threads, packs in NOT_HOLDING:
            setting = cls(pack, packs * pack, threads, processors, 1, 2, 1, 2)
            setting = setting._with_full_ring(problem, arch)
            if setting.keeps_rules(problem, arch):
                yield setting

    def _with_full_ring(self, problem: Problem, arch: Arch) -> Cooperative:
        """Return this setting with as many stages as shared memory holds, at least 2."""
        stages = max(2, arch.shared_per_block // self.stage_bytes(problem))
        ring = self.with_knobs(stages=stages)
        while ring.stages > 2 and ring.launch(problem).shared_bytes > arch.shared_per_block:
            ring = ring.with_knobs(stages=ring.stages - 1)
        return ring

    def _holding_most(self, problem: Problem, arch: Arch) -> list[Cooperative]:
        """Return this setting with a full ring and as many held chunks as are legal, if any are.

        Where that is more than the ring lacks, as much of the ring is for the next row's loads,
        which then go on while this row's total is waited for.
        """
        ring = self._with_full_ring(problem, arch)
        packs = self.cols_per_thread // self.pack_size
        chunks = self.chunks(problem)
        for held in range(min(chunks - 1, MOST_REGISTERS // (4 * packs)), 0, -1):
            in_flight = max(1, ring.stages + held - chunks)
            setting = ring.with_knobs(in_flight=in_flight, held=held)
            if setting.keeps_rules(problem, arch):
                return [setting]
        return []

    def rank(self, problem: Problem, rows: int, arch: Arch) -> tuple[float, ...]:
        """Order candidates: slices of 64 KB, and long chunks where the ring holds two slices."""
        slice_bytes = self.chunks(problem) * self.chunk_packs() * 16
        short = 2 * self.chunks(problem) <= self.stages
        long_chunks = self.chunk_packs() > LONG_CHUNK
        return (abs(math.log(slice_bytes / BEST_SLICE)), short != long_chunks, self.in_flight)

    @classmethod
    def estimate(cls, problem: Problem, rows: int, arch: Arch) -> float:
        """A few percent above a copy where many rows overlap; two reads and a write beyond."""
        row_bytes = len(problem.element_inputs) * problem.cols * problem.dtype.itemsize
        if row_bytes > arch.multiprocessors * arch.shared_per_block * 3 // 4:
            return OF_ROWS_BEYOND
        at_once = arch.multiprocessors * arch.shared_per_block / (2 * row_bytes)
        ends = min(1.0, max(1.0, at_once) / max(1, rows))
        return OF_SMALL if rows * row_bytes < SMALL else OF_ROWS + OF_ENDS * ends
