"""Columns of memory in registers: an axis with others behind it, one read and one write.

A thread holds some elements of each of a pack of adjacent rows. It takes the exponentials against
the maximum that the lanes of its warp have of a row, and keeps them; (max, sum) pairs are exchanged
once, through shared memory and, in a cluster, by pushes into that of other blocks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

from softgen.problems.arch import KIB, Arch
from softgen.problems.dtypes import MAX_PACK_BYTES, DType
from softgen.problems.problem import Problem
from softgen.strategies import registers
from softgen.strategies.base import Feature, Strategy, knob
from softgen.strategies.columnar import (
    ACROSS,
    BLOCKS,
    CLUSTERS,
    Columnar,
    inputs_of,
    sums_in_place,
)
from softgen.strategies.costs import Term
from softgen.strategies.launch import (
    Launch,
    before_dynamic,
    blocks_in_registers,
    blocks_in_shared,
)
from softgen.strategies.sliced import (
    PACKED_NEEDS,
    halves_in_float32,
    packed_knob,
    require_packable,
)

# Some columns are worth moving to shared memory from LEAST_SHARED registers of elements on, where
# the axis is longer than SHARED_AXIS and a pack has SHARED_PACK bytes. Packs of 16 leave no
# registers for their rows. At axis 0 of (4096, 4096) it gained nothing in float32 (a6681f7a).
LEAST_SHARED, SHARED_AXIS, SHARED_PACK = 32, 4096, 8
LEAST_OF_FLOAT64, MOST_OF_FLOAT64 = 8, 64  # columns of a thread: each has instructions of its own

FAR = 128 * KIB  # bytes from one column to the next

# Registers of elements of a candidate, and the bytes of a line.
LEAST_HELD, MOST_HELD = 8, 96
LEAST_PACKED = 32  # the same of elements that stay packed: fewer leave registers enough
SECTOR, MOST_LINE = 32, 2048

# The terms of `rank`, fitted to 1700 settings of nine float32 arrays on an H200 (5ffd10b4): the
# first one takes at most 1.08 times the least. Others have a commit of their own.
# Bytes of adjacent rows, where columns are not FAR apart and where they are: bfloat16 axis 0 of
# (64, 128, 1024) takes 9.8 us in lines of 256, and 11.1 in those of 128 (422b54f8).
LINE, FAR_LINE = 128, 256
SHORT_LINE, LONG_LINE = 0.3, 0.1
SHORT_LINE_IN_SECTORS = 0.5  # where lines start within sectors
SHORT_LINE_SHARED = 0.45  # axes so long that clusters of 16 hold few of their rows (a6681f7a)
HELD, HELD_IN_SECTORS = Term(0.2, 32), Term(0.22, 32)  # registers of elements
THREADS, CLUSTER = Term(0.2, 128), Term(0.05)
FEW_BLOCKS = Term(0.2, 8)  # for each SM
ONE_BLOCK = 0.3  # on an SM
PACKED = 0.05  # of settings alike the one that does not pack comes first (e862d51a)
PACK = 0.3
# Elements of the best pack: bfloat16 axis 1 of (64, 21, 262144) takes 338 us by 4, and 459 by 8.
# Where inner is 16 bytes, axis 1 of (1000000, 3, 4) takes 24.3 us by 2, and 29.4 by 4.
BEST_PACK, BEST_PACK_OF_16_BYTES = 4, 2

# The same in float64, fitted to 1850 settings of 13 arrays on an H200 (e7dfe5e2).
DOUBLE_SHORT_LINE, DOUBLE_LONG_LINE = Term(0.27, 128), Term(0.09, 256)
DOUBLE_ON_SM = 208 * KIB  # bytes that an SM holds, and the weights of less and of more
DOUBLE_LITTLE, DOUBLE_MUCH = 0.18, 0.11
DOUBLE_THREADS_ON_SM = Term(0.42, 768)
DOUBLE_THREADS, DOUBLE_PACK = Term(0.18, 128), Term(0.11)
DOUBLE_FEW_BLOCKS = Term(0.17, 8)
DOUBLE_HELD = Term(0.06, 24)
DOUBLE_SHARED = 0.17  # some columns are in shared memory

# Estimates: the copy's time, and where only large clusters hold an axis. Fitted (0d5c02c7).
SHORT_AXIS = 1024
OF_SHORT_AXIS, OF_LONG_AXIS = 1.05, 1.2


@dataclass(frozen=True)
class ColumnsInRegisters(Columnar):
    """Adjacent rows per block or cluster, a thread holding a piece of a pack of them."""

    name = "columns"
    summary = "columns of memory in registers: packs along inner, one exchange along the axis"

    takes = Columnar.takes | {Feature.PLACES, Feature.ENDS}

    cols_per_thread: int = knob("c", "elements of a row held by one thread")
    min_blocks: int = knob("m", "blocks that an SM must hold; caps the registers")
    cluster_size: int = knob("k", "blocks that share a row", default=1)
    evict_first: bool = knob(
        "ef", "whether loads and stores leave the caches first", constant=False, default=False
    )
    packed: bool = packed_knob()
    shared_cols: int = knob("s", "of them, those in shared memory", default=0)

    def describe(self, problem: Problem) -> str:
        """Return how rows are held, for the header of a file."""
        blocks = f"a cluster of {self.cluster_size} blocks" if self.cluster_size > 1 else "a block"
        held = f"{self.rows_of_a_block} rows in the registers of {blocks}"
        noun = f"{problem.function.part.noun}s"
        return held if self.stride == 1 else f"{held}, one exchange of {noun}"

    @classmethod
    def computes(cls, problem: Problem) -> bool:
        """Whether the template has what the problem asks for."""
        return sums_in_place(problem) and super().computes(problem)

    def check(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless the threads cover a row and it fits the registers."""
        self.check_grid(problem, arch)
        if self.packed:
            require_packable(self, self.pack_size, problem, arch)
            self.require(not problem.hooks, "elements of columns stay packed without hooks alone")
        if self.shared_cols:
            self._check_shared(problem, arch)
        wanted = -(-problem.cols // self.stride)
        self.require(
            self.cols_per_thread == wanted,
            f"cols_per_thread must be {wanted}, what {self.stride} threads hold of "
            f"{problem.cols} columns",
        )
        self.require(
            problem.cols >= self.stride,
            f"{self.stride} threads along an axis of {problem.cols}, where each must have a column",
        )
        held, others = self.element_registers(problem), self.others(problem)
        self.require_registers(held, others, self.min_blocks, self.block_size, arch)

    def _check_shared(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless shared memory holds those columns of all its blocks."""
        require, pack = self.require, self.pack_size * problem.dtype.itemsize
        require(
            0 < self.shared_cols < self.cols_per_thread,
            f"shared_cols must be from 0 to {self.cols_per_thread - 1}: a thread has columns in "
            "registers too",
        )
        require(pack >= 4, f"copies to shared memory move 4 bytes or more, not {pack}")
        require(
            problem.function.part.is_pair
            and problem.writes_elements
            and not problem.hooks
            and not problem.sinks
            and not self.alone,
            "columns are in shared memory where softmax or log_softmax without hooks is exchanged",
        )
        require(arch.compute_capability >= (8, 0), f"copies need sm_80, not {arch.name}")
        block = self.launch(problem).shared_bytes
        fit = blocks_in_shared(block, arch)
        require(
            self.min_blocks <= fit,
            f"a block takes {block} bytes of shared memory: an SM of {arch.name} holds {fit}",
        )

    def launch(self, problem: Problem) -> Launch:
        """Return the launch shape: the usual one, and dynamic shared memory for columns there."""
        pack = self.pack_size * problem.dtype.itemsize
        held = self.shared_cols * self.block_size * pack
        launch = super().launch(problem)
        if not held:
            return launch
        static = before_dynamic(launch.static_shared_bytes)
        return dataclasses.replace(launch, static_shared_bytes=static, dynamic_shared_bytes=held)

    def whole_cols(self, problem: Problem) -> int:
        """Return how many of a thread's columns there are for all threads; all, or one less."""
        return problem.cols // self.stride

    def element_registers(self, problem: Problem) -> int:
        """Return the 32-bit registers of a thread that hold elements."""
        held = problem.dtype if self.packed else problem.compute_dtype
        own = self.cols_per_thread - self.shared_cols
        of_input = self.pack_size * own * held.itemsize // 4
        return inputs_of(problem) * of_input

    def fused(self, problem: Problem) -> bool:
        """Return whether one FMA, and not two instructions, makes the exponent of an element.

        It rounds alike what has one maximum, and packed elements are taken again from the row's.
        """
        one_base = (self.packed or self.alone) and not problem.hooks
        return one_base and halves_in_float32(problem) and problem.out_dtype.itemsize <= 2

    @property
    def needs(self) -> tuple[int, int]:
        """The first compute capability that has the instructions of this setting."""
        copies = (8, 0) if self.shared_cols else (7, 5)
        return max(super().needs, copies, PACKED_NEEDS if self.packed else copies)

    def others(self, problem: Problem) -> int:
        """Return the registers of a thread beside them, with which ptxas does not spill."""
        held = 0 if self.packed else self.element_registers(problem)
        table = registers.STAGED if self.shared_cols else registers.COLUMNS
        return table.of(problem, self.pack_size) + held // registers.COLUMNS_A_REGISTER

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield lines of 32 bytes and more whose threads hold 4 to 96 registers of elements."""
        found = [
            setting
            for pack in cls.packs_worth_trying(problem)
            for across in ACROSS
            for block in BLOCKS
            for cluster in CLUSTERS
            for setting in cls._filled(problem, rows, arch, pack, across, block, cluster)
        ]
        yield from sorted(found, key=lambda s: s.rank(problem, rows, arch))

    @classmethod
    def _filled(
        cls,
        problem: Problem,
        rows: int,
        arch: Arch,
        pack: int,
        across: int,
        block: int,
        cluster: int,
    ) -> Iterator[ColumnsInRegisters]:
        """Yield such a block with few or most blocks on an SM, if it is worth a try.

        Elements of 16 bits stay packed too: bfloat16 axis 0 of (8192, 8192) takes 88 us on an H200
        then, and 102 otherwise.
        """
        line = pack * across * problem.dtype.itemsize
        if block % across or not min(SECTOR, rows * problem.dtype.itemsize) <= line <= MOST_LINE:
            return
        stride = block // across * cluster
        one = cls(pack, across, block, -(-problem.cols // stride), 1, cluster)
        for packed in (False, True):
            some = one.with_knobs(packed=packed)
            held = some.element_registers(problem)
            if some._may_share(problem):
                yield from some._sharing(problem, arch)
            if (
                held > MOST_HELD
                or (held < LEAST_HELD and stride > 1)
                or not some.keeps_rules(problem, arch)
            ):
                continue
            if packed and (held < LEAST_PACKED or problem.out_dtype.itemsize > 2):
                continue
            yield some
            full = blocks_in_registers(held + some.others(problem), block, arch)
            for evict_first in (False,) if packed else (False, True):
                more = some.with_knobs(min_blocks=full, evict_first=evict_first)
                if full > 1 and more.keeps_rules(problem, arch):
                    yield more

    def _may_share(self, problem: Problem) -> bool:
        """Whether it is worth a try with some of its columns in shared memory."""
        if problem.compute_dtype is DType.FLOAT64:
            return LEAST_OF_FLOAT64 <= self.cols_per_thread <= MOST_OF_FLOAT64
        return (
            LEAST_SHARED <= self.element_registers(problem) <= MOST_HELD
            and problem.cols > SHARED_AXIS
            and self.cluster_size >= 8
            and self.pack_size * problem.dtype.itemsize == SHARED_PACK
        )

    def _sharing(self, problem: Problem, arch: Arch) -> Iterator[ColumnsInRegisters]:
        """Yield this setting with about half of a thread's columns in shared memory, and with more.

        That is where an SM then holds more blocks, some of which load while others store: on an
        H200 float32 axis 1 of (32, 32000, 64) takes 158 us then, and 187 by one block an SM. In
        float64 it gains everywhere, as terms are left there: axis 0 of (8192, 8192) takes 308 us,
        and 377.
        """
        cols, double = self.cols_per_thread, problem.compute_dtype is DType.FLOAT64
        full = 0 if double else self._blocks_in_registers(problem, arch)
        of_double = (cols // 2, cols * 5 // 8, cols * 3 // 4, cols - 3)
        for count in dict.fromkeys(of_double if double else (cols // 2, cols * 2 // 3)):
            some = self.with_knobs(shared_cols=count)
            more = some.with_knobs(min_blocks=some._blocks(problem, arch))
            if more.min_blocks > full and more.keeps_rules(problem, arch):
                yield more

    def _blocks(self, problem: Problem, arch: Arch) -> int:
        """Return how many blocks an SM holds, by the registers that they are thought to take."""
        of_shared = blocks_in_shared(self.launch(problem).shared_bytes, arch)
        return min(self._blocks_in_registers(problem, arch), of_shared)

    def _blocks_in_registers(self, problem: Problem, arch: Arch) -> int:
        needed = self.element_registers(problem) + self.others(problem)
        return blocks_in_registers(needed, self.block_size, arch)

    def rank(self, problem: Problem, rows: int, arch: Arch) -> tuple[float, ...]:
        """Order candidates: 128 bytes a line, 32 registers, 128 threads, eight blocks for an SM."""
        if problem.compute_dtype is DType.FLOAT64:
            return self._rank_of_float64(problem, rows, arch)
        size = problem.dtype.itemsize
        line = self.rows_of_a_block * size
        blocks = max(1, rows // self.rows_of_a_block) * self.cluster_size
        in_sectors = problem.alignment == 1
        short = SHORT_LINE_IN_SECTORS if in_sectors else SHORT_LINE
        pack = BEST_PACK_OF_16_BYTES if problem.layout.step * size == MAX_PACK_BYTES else BEST_PACK
        if self.shared_cols:
            short, pack = SHORT_LINE_SHARED, SHARED_PACK // size
        best = FAR_LINE if problem.layout.step * size >= FAR else LINE
        score = Term(short, best).below(line) + Term(LONG_LINE, best).above(line)
        score += (HELD_IN_SECTORS if in_sectors else HELD).away(self.element_registers(problem))
        score += THREADS.away(self.block_size) + CLUSTER.above(self.cluster_size)
        score += FEW_BLOCKS.below(blocks, arch.multiprocessors)
        score += ONE_BLOCK * (self.min_blocks == 1) + PACKED * self.packed
        score += Term(PACK, min(pack, problem.dtype.max_pack)).away(self.pack_size)
        return (score, self.packed, self.evict_first, -self.min_blocks)

    def _rank_of_float64(self, problem: Problem, rows: int, arch: Arch) -> tuple[float, ...]:
        """Order candidates: 208 KB an SM, by 768 threads, in lines of 128 to 256 bytes."""
        line = self.rows_of_a_block * problem.dtype.itemsize
        blocks = max(1, rows // self.rows_of_a_block) * self.cluster_size
        resident = self._blocks(problem, arch)
        of_block = self.block_size * self.cols_per_thread * self.pack_size * problem.dtype.itemsize
        held = min(blocks / arch.multiprocessors, resident) * of_block / DOUBLE_ON_SM
        score = DOUBLE_SHORT_LINE.below(line) + DOUBLE_LONG_LINE.above(line)
        octaves = math.log2(held)
        score += DOUBLE_LITTLE * max(0.0, -octaves) + DOUBLE_MUCH * max(0.0, octaves)
        score += DOUBLE_THREADS_ON_SM.below(resident * self.block_size)
        score += DOUBLE_THREADS.away(self.block_size) + DOUBLE_PACK.above(self.pack_size)
        score += DOUBLE_FEW_BLOCKS.below(blocks, arch.multiprocessors)
        score += DOUBLE_HELD.away(self.element_registers(problem))
        score += DOUBLE_SHARED * (self.shared_cols > 0)
        return (score, self.evict_first, -self.min_blocks)

    @classmethod
    def estimate(cls, problem: Problem, rows: int, arch: Arch) -> float:
        """The copy's time; more where an axis is so long that only large clusters hold it."""
        return OF_SHORT_AXIS if problem.cols <= SHORT_AXIS else OF_LONG_AXIS
