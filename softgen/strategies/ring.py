"""Columns of memory in the shared memory of groups of resident blocks: a pipeline over tiles.

A tile is some adjacent rows with all of their columns, and each block of a group has a slice of it,
columns that follow each other. One warp of a block keeps a ring of chunks full by bulk copies, most
warps reduce and write them, and one exchanges the block's parts of the rows with its group through
global memory. While a tile is on its way out the next one comes in and is reduced, so that neither
the exchange nor a trip to memory is waited for.

`cooperative` does the same for rows; there a tile is one row, and its slices are without gaps.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from softgen.problems.arch import LINE_BYTES, WARP_SIZE, Arch
from softgen.problems.dtypes import MAX_PACK_BYTES
from softgen.problems.problem import Problem
from softgen.strategies import registers
from softgen.strategies.bands import band_packs
from softgen.strategies.base import Strategy, knob
from softgen.strategies.columnar import MOST_SHARED, inputs_of
from softgen.strategies.grouped import COUNTER_BYTES, MOST_PLAIN_TERMS, Grouped
from softgen.strategies.launch import Launch, before_dynamic

HELPER_WARPS = 2  # one that loads, one that exchanges
BARRIERS = 16  # bytes of the two barriers that a stage has, and a tile between reduced and written
MOST_READ = 16  # blocks of a group whose parts each of its blocks reads, a lane those of a row

# Of candidates, of which none was timed yet: threads, columns of a thread in a chunk, and chunks in
# flight.
THREADS, COLUMNS, IN_FLIGHT = (512, 768, 256), (2, 4), 3
STRIPS = (64, 128, 256)  # bytes of a line that is a part of inner
LONGEST_LINE = 4096  # bytes of one that is all of inner
SIZES = (1, 2, 4, 6, 8, 11, 16, 22, 33, 44, 66, 132)  # of groups
GREATEST_SHARE = 0.75  # of the ring that is one slice, where a block has several: the rest is ahead


@dataclass(frozen=True)
class Ring(Grouped):
    """Groups of `group_size` resident blocks that each hold a tile, and load the next ones."""

    name = "ring"
    summary = "columns of memory in the shared memory of resident blocks, the next on their way"
    tuned = False  # not timed on a GPU yet
    triggers = False

    cols_per_thread: int = knob("c", "columns of a chunk that a thread has")
    group_size: int = knob("k", "blocks that share a row")
    groups: int = knob("n", "groups that work at once, at most", constant=False)
    stages: int = knob("s", "chunks in the ring")
    in_flight: int = knob("f", "stages that are kept for loads on their way")

    needs = (9, 0)

    @classmethod
    def computes(cls, problem: Problem) -> bool:
        """Whether elements are written, for which it keeps tiles; `strips` reads them once too."""
        return problem.writes_elements and super().computes(problem)

    @property
    def workers(self) -> int:
        """The threads of a block that compute."""
        return self.block_size - HELPER_WARPS * WARP_SIZE

    @property
    def threads_along(self) -> int:
        """The workers behind each other along the axis."""
        return self.workers // self.threads_across

    @property
    def chunk_packs(self) -> int:
        """The packs of a chunk, which is what a stage of the ring holds of an input."""
        return self.threads_along * self.threads_across * self.cols_per_thread

    @property
    def warp_parts(self) -> int:
        """The parts of a line's rows in a block, once lanes are combined."""
        return self.workers // WARP_SIZE if self.folds else self.threads_along

    @property
    def relays(self) -> bool:
        """Whether one block combines the parts of a row for all: they are many to read for each."""
        return self.group_size > MOST_READ

    def whole(self, problem: Problem) -> bool:
        """Whether a tile has all rows of an outer index, so that a slice has no gaps."""
        return self.rows_shared(problem) == problem.layout.step

    def row_parts(self, problem: Problem) -> int:
        """Return the parts of a row in a block, once lanes are combined."""
        return self.warp_parts * (self.rows_of_a_block // self.rows_shared(problem))

    def slice_lines(self, problem: Problem) -> int:
        """Return the lines of a block's slice of a tile.

        Slices without gaps are whole 128 bytes, as those of `cooperative`.
        """
        line = self.threads_across * MAX_PACK_BYTES
        unit = LINE_BYTES // math.gcd(LINE_BYTES, line) if self.whole(problem) else 1
        return -(-self.lines(problem) // (self.group_size * unit)) * unit

    def chunks(self, problem: Problem) -> int:
        """Return the chunks of a slice."""
        return -(-self.slice_lines(problem) // (self.threads_along * self.cols_per_thread))

    def ahead(self, problem: Problem) -> int:
        """Return the chunks of later tiles that may be reduced while one is written."""
        return self.stages - self.chunks(problem) - self.in_flight

    def depth(self, problem: Problem) -> int:
        """Return how many tiles may be reduced and not yet wholly written."""
        return 1 + -(-max(0, self.ahead(problem)) // self.chunks(problem))

    def slot_bytes(self, problem: Problem) -> int:
        """Return the static shared memory of a block: barriers, parts of its warps, of whole rows.

        The parts of a row are an odd number apart, so that lanes that read them meet in few banks.
        """
        rows, depth = self.rows_shared(problem), self.depth(problem)
        parts = ((self.row_parts(problem) | 1) + 1) * rows * problem.part_bytes
        return (self.stages + depth) * BARRIERS + depth * parts

    def by_lane(self, problem: Problem) -> bool:
        """Whether a lane combines the parts of a row in a block: where there are rows for all."""
        return self.rows_shared(problem) >= WARP_SIZE and self.row_parts(problem) <= WARP_SIZE

    def describe(self, problem: Problem) -> str:
        """Return how a tile is held and by what, for the header of a file."""
        blocks = f"{self.group_size} block{'s' if self.group_size > 1 else ''}"
        warps = self.workers // WARP_SIZE
        return (
            f"{self.rows_shared(problem)} rows in the shared memory of {blocks} "
            f"(each: {warps} warps compute, {HELPER_WARPS} help)"
        )

    def check(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless the blocks are resident and their rings fit."""
        require = self.require
        require(arch.compute_capability >= self.needs, f"bulk copies need sm_90, not {arch.name}")
        require(
            self.pack_size * problem.dtype.itemsize == MAX_PACK_BYTES, "packs must be of 16 bytes"
        )
        self.require_block(self.block_size)
        require(self.workers > 0, f"block_size must be above {HELPER_WARPS * WARP_SIZE}")
        if self.flat(problem):
            self.require_bands(problem)
        else:
            self.require_pack_of_rows(problem)
        inner, rows = problem.layout.step, self.rows_shared(problem)
        require(
            1 <= self.threads_across <= self.workers and rows <= self.workers,
            f"{self.workers} threads compute, and a line takes {self.threads_across} and a result "
            f"a row {rows}",
        )
        require(
            inner % rows == 0,
            f"the {rows} rows of a tile must divide inner ({inner})",
        )
        self.require_resident(self.group_size, self.groups, arch.multiprocessors, arch.device)
        require(self.cols_per_thread > 0, "cols_per_thread must be positive")
        require(self.in_flight > 0, "in_flight must be positive")
        chunks = self.chunks(problem)
        require(
            self.ahead(problem) >= 0,
            f"stages must be at least {chunks + self.in_flight}: a slice is {chunks} chunks",
        )
        require(
            chunks * self.cols_per_thread <= MOST_PLAIN_TERMS,
            f"a thread would add {chunks * self.cols_per_thread} terms, of {MOST_PLAIN_TERMS} that "
            "rounding allows",
        )
        static = self.slot_bytes(problem)
        require(
            static <= MOST_SHARED,
            f"the parts of a block take {static} bytes of shared memory, of {MOST_SHARED}",
        )
        need, limit = self.launch(problem).shared_bytes, arch.shared_per_block
        require(need <= limit, f"the ring needs {need} bytes of shared memory, of {limit}")
        self._require_registers(problem, arch)

    def _require_registers(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless neither a worker nor the exchanger spills."""
        values = self.pack_size * self.cols_per_thread * problem.compute_dtype.itemsize // 4
        held, others = inputs_of(problem) * values, registers.IN_RING.of(problem, self.pack_size)
        self.require_registers(held, others, 1, self.block_size, arch)
        of_block = self.row_parts(problem)
        parts = max(
            of_block if self.by_lane(problem) else -(-of_block // WARP_SIZE),
            -(-self.group_size // WARP_SIZE) if self.relays else self.group_size,
        )
        read = parts * problem.part_bytes // 4
        self.require_registers(read, registers.EXCHANGER, 1, self.block_size, arch)

    def part(self, problem: Problem) -> int:
        """Return the columns of a chunk."""
        bands = self.rows_of_a_block // self.rows_shared(problem)
        return self.threads_along * self.cols_per_thread * bands

    def overrun(self, problem: Problem) -> int:
        """Return the columns that all slices of a tile may go past its end, and a chunk."""
        return self.group_size * self.slice_lines(problem) + self.part(problem)

    def launch(self, problem: Problem) -> Launch:
        """Return the launch shape: a block an SM, all resident."""
        slots = self.group_size + self.relays
        blocks = self.group_size * self.groups
        return Launch(
            self.block_size,
            rows_per_block=self.rows_shared(problem),
            static_shared_bytes=before_dynamic(self.slot_bytes(problem)),
            dynamic_shared_bytes=self.stages
            * inputs_of(problem)
            * self.chunk_packs
            * MAX_PACK_BYTES,
            blocks_per_row=self.group_size,
            most_blocks=blocks,
            cooperative=True,
            workspace_bytes_per_row=slots * problem.part_bytes + COUNTER_BYTES,
            strides=False,
            multiprocessors=blocks,
        )

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield groups whose slices leave a part of the ring to what comes after them."""
        pack, processors = problem.dtype.max_pack, arch.multiprocessors
        grids = itertools.product(cls._lines(problem, pack), THREADS, COLUMNS, SIZES)
        found: list[Ring] = []
        for across, threads, cols, size in grids:
            one = cls(pack, across, threads, cols, size, 1, 2, IN_FLIGHT)
            tiles = max(1, rows // one.rows_shared(problem))
            groups = min(processors // size, tiles)
            if groups > 0 and across <= one.workers:
                share = GREATEST_SHARE if tiles > groups else 1
                found += dataclasses.replace(one, groups=groups)._filled(problem, arch, share)
        yield from sorted(found, key=lambda s: s.rank(problem, rows, arch))

    @classmethod
    def _lines(cls, problem: Problem, pack: int) -> Iterator[int]:
        """Yield threads side by side: all of inner where it is short, bands, and strips of it."""
        inner, size = problem.layout.step, problem.dtype.itemsize
        if inner % pack:
            if problem.cols * inner % pack == 0:
                yield band_packs(problem, pack)
            return
        strips = [strip // MAX_PACK_BYTES for strip in STRIPS if inner * size % strip == 0]
        whole = [inner // pack] if inner * size <= LONGEST_LINE else []
        yield from dict.fromkeys([*whole, *strips])

    def _filled(self, problem: Problem, arch: Arch, share: float) -> list[Ring]:
        """Return this setting with as many stages as shared memory holds, if that is legal.

        At most `share` of them may be one slice.
        """
        chunks = self.chunks(problem)
        most = arch.shared_per_block // (inputs_of(problem) * self.chunk_packs * MAX_PACK_BYTES)
        for stages in range(most, chunks, -1):
            setting = dataclasses.replace(self, stages=stages)
            if chunks > share * stages:
                break
            if setting.is_legal(problem, arch):
                return [setting]
        return []

    def rank(self, problem: Problem, rows: int, arch: Arch) -> tuple[float, ...]:
        """Order candidates: all SMs, lines of 128 bytes, long slices."""
        tiles = max(1, rows // self.rows_shared(problem))
        rounds = -(-tiles // self.groups)
        busy = tiles * self.group_size / (rounds * arch.multiprocessors)
        line = self.threads_across * MAX_PACK_BYTES
        short = 0 if self.whole(problem) else abs(math.log2(line / LINE_BYTES))
        return (-round(busy, 2), short, self.group_size, self.cols_per_thread)

    @classmethod
    def estimate(cls, problem: Problem, rows: int, arch: Arch) -> float:
        """Never the first choice: not timed."""
        return math.inf
