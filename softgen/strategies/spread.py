"""Columns of memory over resident blocks: for few rows, whose axis all SMs have to share.

The blocks of a group share some adjacent rows, and each has every so many columns of them. Its
threads hold theirs in registers as they were loaded, and load what does not fit a second time, from
the L2 cache where it can be. Pairs (max, sum) go through global memory, once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from softgen.spec.arch import WARP_SIZE, Arch
from softgen.spec.dtypes import DType
from softgen.spec.problem import Problem
from softgen.strategies.base import Strategy, knob
from softgen.strategies.columnar import (
    INPUT_REGISTERS,
    MOST_SHARED,
    Columnar,
    hook_registers,
    inputs_of,
)
from softgen.strategies.launch import Launch
from softgen.strategies.walk import MOST_UNROLL

MOST_WIDENED = 16  # elements of 16 bits at once

COUNTER_BYTES = 4  # blocks that have read the parts of a row

# Registers of a thread beside elements and the parts of its group: addresses, of tiles that begin
# within an outer index too; and of each row of its pack, what it has found and what makes results.
OTHER_REGISTERS = {DType.FLOAT32: 34, DType.FLOAT64: 88}
DIVIDED_REGISTERS = 8
MOST_OF_FLOAT64 = 40  # registers of elements
WALK_REGISTERS = 8
ROW_REGISTERS = {DType.FLOAT32: 5, DType.FLOAT64: 16}

BLOCKS = (256, 512)
MOST_HELD = (64, 32, 0)  # registers of elements, where they do not hold all
BYTES_ON_THEIR_WAY = 64 * 1024  # of an SM, where columns are loaded again
LEAST_SLAB = 8 * 1024  # bytes of a block: below the exchange is all of its time
FEW_TILES = 2  # times the SMs that rows of a block are; with more nothing need be shared so widely


@dataclass(frozen=True)
class Spread(Columnar):
    """Groups of `group_size` resident blocks that share adjacent rows."""

    name = "spread"
    summary = (
        "columns of memory shared by resident blocks, in registers and L2: few rows, long axes"
    )

    cols_per_thread: int = knob("c", "elements of a row held by one thread")
    group_size: int = knob("k", "blocks that share a row")
    groups: int = knob("n", "groups that work at once, at most", constant=False)
    min_blocks: int = knob("m", "blocks that an SM must hold; caps the registers")
    unroll: int = knob("u", "columns that a thread loads again before it uses the first", default=1)

    @property
    def unnamed(self) -> tuple[str, ...]:
        """The knobs that no constant of the emitted file names: at their values it needs none."""
        return ("unroll",) if self.unroll == 1 else ()

    @property
    def stride(self) -> int:
        """The threads of all blocks along the axis, and how far apart a thread's columns are."""
        return self.group_size * self.threads_along

    @property
    def folds(self) -> bool:
        """Whether lanes of a warp have the same rows, and combine what they found."""
        return self.threads_across < WARP_SIZE and WARP_SIZE % self.threads_across == 0

    @property
    def warp_parts(self) -> int:
        """The parts of a row in a block, once lanes are combined."""
        return self.block_size // WARP_SIZE if self.folds else self.threads_along

    @property
    def alone(self) -> bool:
        """Whether nothing goes through memory: never."""
        return False

    @property
    def sharers(self) -> int:
        """The adjacent lanes that combine what the blocks of a group found of a row."""
        most = min(WARP_SIZE, self.block_size // self.rows_of_a_block)
        return 1 << (most.bit_length() - 1)

    @property
    def needs(self) -> tuple[int, int]:
        """The first compute capability that has the instructions of this setting."""
        return (7, 5)

    def walks(self, problem: Problem) -> bool:
        """Whether registers do not hold all columns, so that some are loaded again."""
        return problem.cols > self.cols_per_thread * self.stride

    def describe(self, problem: Problem) -> str:
        """Return what the file of `problem` does, for its header."""
        held = "partly held in registers" if self.walks(problem) else "held in registers"
        return f"{self.group_size} blocks share {self.rows_of_a_block} rows, {held}"

    def slot_bytes(self, problem: Problem) -> int:
        """Return the static shared memory of a block: parts of its warps, and of whole rows."""
        return (self.warp_parts + 1) * self.rows_of_a_block * problem.part_bytes

    def check(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless the blocks are resident and hold what they should."""
        require = self.require
        self.require_pack_of_rows(problem)
        self.require_block(self.block_size)
        inner = problem.layout.step
        across = self.threads_across
        require(
            across >= 1
            and (across & (across - 1) == 0 or self.rows_of_a_block == inner)
            and self.rows_of_a_block <= self.block_size,
            "threads_across must be a power of two, or have all rows of an outer index, and there "
            f"must be a thread a row: {across} have {self.rows_of_a_block} of {inner} rows",
        )
        require(self.group_size > 0 and self.groups > 0, "group_size and groups must be positive")
        most = arch.multiprocessors * self.min_blocks
        require(
            self.group_size * self.groups <= most,
            f"{arch.device} holds {most} such blocks at once",
        )
        require(
            self.stride <= problem.cols,
            f"{self.stride} threads along an axis of {problem.cols}, where each must have a column",
        )
        wanted = -(-problem.cols // self.stride)
        require(
            1 <= self.cols_per_thread <= wanted,
            f"cols_per_thread must be from 1 to {wanted}, what {self.stride} threads have of "
            f"{problem.cols} columns",
        )
        require(1 <= self.unroll <= MOST_UNROLL, f"unroll must be from 1 to {MOST_UNROLL}")
        require(
            self.unroll == 1 or self.walks(problem), "unroll must be 1, as nothing is loaded again"
        )
        shared = self.slot_bytes(problem)
        require(
            shared <= MOST_SHARED,
            f"the parts of a block take {shared} bytes of shared memory, of {MOST_SHARED}",
        )
        held = self.held(problem)
        require(
            problem.compute_dtype is DType.FLOAT32 or held <= MOST_OF_FLOAT64,
            f"a thread would hold {held} registers; at most {MOST_OF_FLOAT64} do not spill where "
            "arithmetic is in float64",
        )
        self.require_registers(held, self.others(problem), self.min_blocks, self.block_size, arch)

    def held(self, problem: Problem) -> int:
        """Return the 32-bit registers of a thread that hold elements, as they were loaded."""
        words = max(1, self.pack_size * problem.dtype.itemsize // 4)
        return inputs_of(problem) * self.cols_per_thread * words

    def others(self, problem: Problem) -> int:
        """Return the registers of a thread beside them, with which ptxas does not spill."""
        compute = problem.compute_dtype
        at_once = self.unroll if self.walks(problem) else 1
        words = inputs_of(problem) * self.pack_size * compute.itemsize // 4
        parts = -(-self.group_size // self.sharers) * problem.part_bytes // 2  # on their way
        rows = ROW_REGISTERS[compute] * self.pack_size
        if self.rows_of_a_block != problem.layout.step:
            rows += DIVIDED_REGISTERS
        if self.walks(problem):
            rows += WALK_REGISTERS
        rows += INPUT_REGISTERS * (inputs_of(problem) - 1) + hook_registers(problem)
        if problem.dtype.itemsize == 2:
            at_once = max(at_once, 4, self.held(problem) // self.pack_size)
        return OTHER_REGISTERS[compute] + rows + at_once * words + parts

    def at_once(self, problem: Problem) -> int:
        """Return how many held columns are widened at once: all where that takes no registers."""
        if problem.dtype.itemsize > 2 or self.pack_size == 1:
            return self.cols_per_thread
        return min(self.cols_per_thread, max(1, MOST_WIDENED // self.pack_size))

    def part(self, problem: Problem) -> int:
        """Return the columns that all blocks of a group have in one round."""
        return self.stride

    def launch(self, problem: Problem) -> Launch:
        """Return the launch shape: groups of resident blocks, and a workspace for their parts."""
        blocks = self.group_size * self.groups
        return Launch(
            self.block_size,
            rows_per_block=self.rows_of_a_block,
            static_shared_bytes=self.slot_bytes(problem),
            blocks_per_row=self.group_size,
            most_blocks=blocks,
            cooperative=True,
            workspace_bytes_per_row=self.group_size * problem.part_bytes + COUNTER_BYTES,
            strides=False,
            multiprocessors=-(-blocks // self.min_blocks),
        )

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield groups that fill the GPU where rows are few."""
        found = [
            setting
            for pack in cls.packs_worth_trying(problem)
            for across in cls._across(problem, pack)
            for block in BLOCKS
            for setting in cls._filled(problem, rows, arch, pack, across, block)
        ]
        yield from sorted(found, key=lambda s: s._badness(problem, rows, arch))

    @staticmethod
    def _across(problem: Problem, pack: int) -> list[int]:
        """Return threads side by side worth timing: all of inner where it is short, else lines."""
        inner, size = problem.layout.step, pack * problem.dtype.itemsize
        lines = [1 << i for i in range(8) if 32 <= size << i <= 256]
        whole = [inner // pack] if pack <= inner <= 256 else []
        return list(dict.fromkeys([*whole, *(w for w in lines if w * pack < inner)]))

    @classmethod
    def _filled(
        cls, problem: Problem, rows: int, arch: Arch, pack: int, across: int, block: int
    ) -> Iterator[Spread]:
        """Yield groups that take all SMs, with one block or two on each."""
        if across * pack > block:
            return
        tiles = -(-rows // (across * pack))
        for full in (1, 2):
            blocks = arch.multiprocessors * full
            if tiles > FEW_TILES * arch.multiprocessors:
                return
            for groups in sorted(
                {min(tiles, 1 << i) for i in range(5)} | {min(tiles, blocks // 2)}
            ):
                size = blocks // groups
                bytes_of_block = problem.cols * across * pack * problem.dtype.itemsize // size
                along = block // across
                if size < 2 or bytes_of_block < LEAST_SLAB or size * along > problem.cols:
                    continue
                yield from cls._holding(
                    problem, arch, cls(pack, across, block, 1, size, groups, full)
                )

    @classmethod
    def _holding(cls, problem: Problem, arch: Arch, one: Spread) -> Iterator[Spread]:
        """Yield `one` with all columns in registers, else with as many as there is room for."""
        wanted = -(-problem.cols // one.stride)
        whole = replace(one, cols_per_thread=wanted)
        if whole.is_legal(problem, arch):
            yield whole
            return
        for unroll in (8, 4):
            for held in MOST_HELD:
                count = max(1, held // max(1, one.pack_size * problem.dtype.itemsize // 4))
                some = replace(one, cols_per_thread=count, unroll=unroll)
                if some.is_legal(problem, arch) and some.walks(problem):
                    yield some

    def _badness(self, problem: Problem, rows: int, arch: Arch) -> float:
        """Order candidates: one wave, few parts to read, long lines, and many bytes on their way.

        On an H200 float32 axis 1 of (1, 50257, 16) takes 6.5 us by two groups of 66 blocks with
        lines of 32 bytes, 7.4 by 66 blocks with lines of 64, 8.9 by 132 of them and 15.2 by 264.
        """
        line = self.rows_of_a_block * problem.dtype.itemsize
        tiles = -(-rows // self.rows_of_a_block)
        groups = min(self.groups, tiles)
        again = max(0, problem.cols - self.cols_per_thread * self.stride) * line * groups
        score = 0.3 * max(0.0, math.log2((again + 1) / (0.6 * arch.l2_bytes)))
        if again:
            threads = self.block_size * self.min_blocks
            loads = threads * self.unroll * self.pack_size * problem.dtype.itemsize
            score += 0.5 * max(0.0, math.log2(BYTES_ON_THEIR_WAY / loads))
        else:
            parts = self.group_size * self.rows_of_a_block
            score += 0.4 * max(0.0, math.log2(parts / 128))
        score += 0.4 * max(0.0, math.log2(128 / line))
        busy = groups * self.group_size / (arch.multiprocessors * self.min_blocks)
        rounds = -(-tiles // groups)
        score += 2 * (1 - busy) + 0.3 * (rounds * groups / tiles - 1) + 0.6 * math.log2(rounds)
        score += 0.1 * abs(math.log2(self.block_size / 256)) + 0.1 * (self.min_blocks - 1)
        return score

    @classmethod
    def estimate(cls, problem: Problem, rows: int, arch: Arch) -> float:
        """Little above a copy's time, where others have no blocks enough."""
        busy = rows * problem.dtype.itemsize / 64 * 8  # clusters of 8 with lines of 64 bytes
        return 1.15 if problem.cols > 2048 and busy < arch.multiprocessors else 1.6
