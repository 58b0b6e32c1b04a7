"""A row in the registers of a thread block cluster: 2 to 16 blocks and one exchange between them.

Each warp pushes its (max, sum) pair straight into the shared memory of every block of the cluster,
by an asynchronous store that counts its bytes at the receiver's mbarrier. A block waits for the
pairs of all warps once. No fence of cluster scope is needed, and one costs dearly: it empties the
L1 cache, which took bfloat16 8192 x 32000 from 249 to 365 us on an H200.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from softgen.problems.arch import KIB, PORTABLE_CLUSTER, WARP_SIZE, Arch
from softgen.problems.dtypes import DType
from softgen.problems.layouts import Rows, Strided
from softgen.problems.problem import Problem
from softgen.problems.shards import Shards
from softgen.strategies import registers
from softgen.strategies.base import Strategy, knob
from softgen.strategies.choice import board_bytes, exchange_bytes, rank_bytes
from softgen.strategies.launch import Launch, blocks_in_registers
from softgen.strategies.sliced import Sliced, packed_knob

CLUSTER_SIZES = (2, 4, 8, 16)

# The shorter the exchange, the less is gained by more blocks on an SM.
LEAST_PACKED_CLUSTER = 8
# Two blocks on an SM less than most, where elements are packed for the sake of more: 7 took 495.2
# us at bfloat16 4096 x 128256, 6 and 9 took 507.9 and 498.7.
FEWER_PACKED = 2

# Threads of a candidate, and its registers of elements. Blocks of 128 threads with 80 still fit an
# SM five times where x has 16 bits.
BLOCK_SIZES = (128, 256, 512, 1024)
LEAST_HELD, MOST_HELD, MOST_HELD_BY_128 = 8, 64, 80
# Beside a loss blocks that leave fewer threads idle, for what a thread does counts there: at
# bfloat16 50257 clusters of 8 blocks of 128 threads have a seventh pack for a fifth of them, and of
# 160 threads five packs for all. Shares of a block's packs (cdccd377).
FITTING_BLOCK_SIZES = (160, 192, 224)
FITTING, IDLE = 20, 10

# `rank`, in logarithms of time, fitted on an H200 (5359b257): the first choice was within 3% of the
# fastest at 14 of 15 shapes from float32 4096 x 16384 to bfloat16 4096 x 128256.
BEST_PACKS, PACKS_WEIGHT = 8, 0.3  # of a thread
# Where rows are so few that by more packs an SM has fewer threads; small blocks are too many there:
# bfloat16 64 x 20000 takes 3.27 us on an H200 by 4 of 256 threads a row, and 4.89 by 16 of 128. At
# 62 shapes of 1 to 192 rows the first choice of all takes 1.02 of the fastest, and 1.17 at most.
LEAST_BEST_PACKS, BEST_THREADS = 2, 500
FEW_PACKS, BEST_BLOCK_OF_FEW, BLOCKS_WEIGHT = 5, 256, 0.03
BEST_BLOCK, BLOCK_WEIGHT = 128, 0.3
# Where the largest are chosen, of rows that are not few: the fewer blocks, the shorter each tells
# the others of its own. The best 20 of bfloat16 1024 x 128256 took 100 us by 16 blocks of 128 and
# 88 by 8 of 256, a choice of 64 of them 157 and 111 (166be245).
BEST_BLOCK_OF_TOP = 256
# A doubling of the ends of warps' parts: float32 4096 x 50257, 436 and 399 us (46e0d399).
ENDS_WEIGHT = 0.13

# Estimates, fitted on an H200 (5359b257): where rows are few and long, and elsewhere. On an H100
# float32 4 x 6096 takes 1.70 us here and 2.19 with a block a row, float16 148 x 13882 4.40 and
# 5.06, 242 x 9493 4.74 and 4.65 (8d89dce3); on an H200 bfloat16 128 x 6000 2.77 and 2.40.
FEW_ROWS, FEWER_ROWS = 1.5, 0.5  # of an SM
LONG_ROW_BYTES, LONG_ROW_WORDS = 16 * KIB, 5 * KIB
OF_FEW_ROWS, OF_MANY_ROWS = 1.01, 1.1
# float32 128 x 131072 takes 1.08, 128 x 262144 1.3 (16147d3a).
MOST_WORDS, OF_MORE_WORDS = 160 * KIB, 1.3


@dataclass(frozen=True)
class Cluster(Sliced):
    """One row per cluster of `cluster_size` blocks, held in registers."""

    name = "cluster"
    summary = "a row in the registers of 2 to 16 blocks, which push their pairs to each other"
    triggers = True
    patches = True
    past_rows = True
    cuts_sums = True
    layouts = (Rows, Strided, Shards)

    block_size: int = knob("b", "threads in a block")
    cluster_size: int = knob("k", "blocks that share a row")
    min_blocks: int = knob("m", "blocks that an SM must hold; caps the registers")
    evict_first: bool = knob(
        "ef", "whether loads and stores leave the caches first", constant=False
    )
    packed: bool = packed_knob()

    skipping = True
    one_row_a_block = True
    needs = (9, 0)

    def describe(self, problem: Problem) -> str:
        """Return how a row is held, for the header of a file."""
        blocks = f"a cluster of {self.cluster_size} blocks"
        parts = f"{problem.function.part.noun}s"
        alone = not (problem.writes_elements or problem.sharded)
        to = "the first" if alone else "every block"
        return f"a row in the registers of {blocks}, {parts} pushed to {to}"

    def check(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless the cluster covers the row and fits the registers."""
        require = self.require
        self.require_cluster(self.cluster_size, arch)
        self.require_pack(self.pack_size, problem)
        self.require_alike(self.pack_size, problem)
        self.require_block(self.block_size)
        require(self.cluster_size in CLUSTER_SIZES, f"cluster_size must be one of {CLUSTER_SIZES}")
        self.require_cols_per_thread(self.cols_per_thread, self.pack_size)
        self.require_choice(problem)
        require(
            not problem.function.part.chooses or problem.key_bytes <= 8,
            "a key is one push: those of float64 have 16 bytes",
        )
        self.require_packable(problem, arch)
        # 20 and 40 spilled 16 bytes at 40001 columns, however many registers there were.
        require(
            len(problem.element_inputs) == 1 or self.pack_size > 1 or self.cols_per_thread <= 16,
            "a thread takes at most 16 single elements of each of two inputs",
        )
        covered = self.cols_per_thread * self.block_size // self.pack_size
        need = self.slice_packs(problem)
        require(covered >= need, f"a block must cover {need} packs, it covers {covered}")
        held, others = self.element_registers(problem), self.others(problem, arch)
        self.require_registers(held, others, self.min_blocks, self.block_size, arch)

    def slices(self, problem: Problem) -> int:
        """Return into how many slices a row is cut: one a block."""
        return self.cluster_size

    @property
    def slice_threads(self) -> int:
        """The threads to which the packs of a slice are dealt in turn."""
        return self.block_size

    def slice_packs(self, problem: Problem) -> int:
        """Return the packs of a row that one block holds: an even split in whole cache lines."""
        packs, unit = self.row_packs(problem), self.line_packs(problem)
        return -(-packs // (self.cluster_size * unit)) * unit

    def others(self, problem: Problem, arch: Arch) -> int:
        """Return the registers of a thread beside its elements, with which ptxas does not spill.

        Where x and y have 16 bits, elements are packed while they are loaded, which leaves room for
        addresses. Two more blocks fit an SM, which takes 5% less time at bfloat16 4096 x 50257 on
        an H200. Wider results are not packed: with two more blocks bfloat16 to float32 spilled 136
        bytes there, and took 405 us, not 386. At 151937 columns one more block spilled 344 bytes,
        and took 1397 us, not 1324.
        """
        cut = not self.aligned(problem)
        if self.packed and problem.logs_sum:
            beside = problem.function.part.slice_registers > 0 and problem.writes_elements
            of_row = registers.PACKED_MORE_CUT if cut else registers.PACKED_MORE
            return registers.PACKED + beside * of_row
        if self.packed and not problem.function.part.has_maximum and not cut:
            return registers.PACKED_SUM
        chooses = problem.function.part.chooses
        if self.packed and chooses:
            small = self.block_size < 256
            more = registers.CHOICE_ON_SM_100 * (arch.compute_capability >= (10, 0))
            more += registers.CHOICE_OF_SMALL_BLOCKS * (problem.enters and small)
            return registers.PACKED_CHOICE + more
        if self.packed or chooses or problem.compute_dtype is DType.FLOAT64:
            return self.other_registers(problem)
        if problem.dtype.itemsize == 2 and problem.out_dtype.itemsize <= 2:
            mixed = problem.dtype is not problem.out_dtype
            tight = arch.compute_capability >= ((10, 0) if mixed else (12, 0))
            full = self.cols_per_thread >= 64 or tight
            apart = registers.STRIDES if isinstance(problem.layout, Strided) else 0
            if problem.sharded:
                apart = registers.HALVES_OF_SHARD
            more = self.input_registers(problem) + self.hook_registers(problem) + apart
            return (registers.HALVES_CUT if cut and full else registers.HALVES) + more
        apart = 0
        if problem.sharded and self.cols_per_thread > 32:
            longest = self.cols_per_thread > 64
            apart = registers.LONGEST_SHARD if longest else registers.LONG_SHARD
        elif self.cols_per_thread >= 64 and problem.out_dtype.itemsize < problem.dtype.itemsize:
            apart = registers.NARROWED
        return self.other_registers(problem) + registers.CUT_WORDS * cut + apart

    def part(self, problem: Problem) -> int:
        """Return the columns of a block's slice."""
        return self.slice_packs(problem) * self.pack_size

    def may_pack(self, problem: Problem) -> tuple[bool, ...]:
        """Return the values of `packed` worth timing.

        In small clusters too where rows are only read: logsumexp of bfloat16 2048 x 32000 takes
        31.1 us so on an H200, and 32.0 at best otherwise.
        """
        few = self.cluster_size < LEAST_PACKED_CLUSTER
        if few and problem.writes_elements and not (problem.sharded or problem.logs_sum):
            return (False,)
        return super().may_pack(problem)

    def launch(self, problem: Problem) -> Launch:
        """Return the launch shape: a cluster a row; all warps' pairs and an mbarrier a block."""
        if problem.function.part.chooses:  # one of each block, and what that is made of
            parts = board_bytes(problem, self, self.block_size)
            parts += exchange_bytes(problem, self.cluster_size, self.block_size)
            warps = self.block_size // WARP_SIZE
            parts += rank_bytes(problem, warps) + rank_bytes(problem, self.cluster_size)
        else:
            parts = self.cluster_size * self.block_size // WARP_SIZE * problem.part_bytes
        return Launch(
            self.block_size,
            rows_per_block=1,
            static_shared_bytes=parts + self.exchange_bytes(problem) + 8,
            cluster_size=self.cluster_size,
            strides=False,
        )

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield clusters whose threads all have a pack, and hold 8 to 64 registers of elements."""
        pack = cls.widest_pack(problem)
        several = len(problem.element_inputs) > 1
        found: list[Cluster] = []
        for cluster in CLUSTER_SIZES:
            for block in cls._block_sizes(problem, cluster):
                one = cls(pack, pack, block, cluster, 1, False)
                slice_packs = one.slice_packs(problem)
                filled = one.with_knobs(cols_per_thread=-(-slice_packs // block) * pack)
                for packed in filled.may_pack(problem):
                    setting = filled.with_knobs(packed=packed)
                    # What stays packed of one input is no wider than what does not.
                    counted = setting if several or problem.sharded else filled
                    held = counted.element_registers(problem)
                    chooses = packed and problem.function.part.chooses
                    small = block == 128 or (chooses and block <= BEST_BLOCK_OF_TOP)
                    most = MOST_HELD_BY_128 if small else MOST_HELD
                    if slice_packs >= block and LEAST_HELD <= held <= most:
                        found += setting._resident(problem, arch)
        yield from sorted(found, key=lambda s: s.rank(problem, rows, arch))

    @classmethod
    def _block_sizes(cls, problem: Problem, cluster: int) -> list[int]:
        """Return block sizes worth timing, beside a loss also one that leaves no thread idle."""
        sizes = [*BLOCK_SIZES]
        pack = cls.widest_pack(problem)
        if problem.logs_sum and problem.dtype.itemsize == 2 and pack > 1:
            packs = cls(pack, pack, 128, cluster, 1, False).slice_packs(problem)
            fitting = [b for b in FITTING_BLOCK_SIZES if -packs % b < packs / FITTING]
            idle = min(-packs % b for b in sizes[:2])
            sizes += fitting[:1] if idle > packs / IDLE else []
        return sizes

    def _resident(self, problem: Problem, arch: Arch) -> Iterator[Cluster]:
        """Yield the legal ones of this setting, with few or most blocks on an SM.

        Few is what the compiler leaves, or what FEWER_PACKED says.
        """
        need = self.element_registers(problem) + self.others(problem, arch)
        full = blocks_in_registers(need, self.block_size, arch)
        few = max(1, full - FEWER_PACKED) if self.packed else 1
        for blocks, evict_first in dict.fromkeys(((few, False), (full, False), (full, True))):
            setting = self.with_knobs(min_blocks=blocks, evict_first=evict_first)
            if setting.keeps_rules(problem, arch):
                yield setting

    def rank(self, problem: Problem, rows: int, arch: Arch) -> tuple[float, ...]:
        """Order candidates: 2 to 8 packs a thread, 128 threads or 256, the smallest such cluster.

        Packed elements gained 1 to 3% in clusters of 16 blocks, which exchange for longest, and
        lost 1% at bfloat16 8192 x 32000 in those of 4.
        """
        if problem.sharded and 2 * rows > arch.multiprocessors:
            # Rows on an SM hide the exchange: bfloat16 4096 x 50257 over two H200s took 110 us with
            # 3 of them, 117 with 2.25 and 131 with 1.5, and 111 with 3 that stay in the caches.
            return (-self.min_blocks / self.cluster_size, not self.evict_first, self.block_size)
        packs = self.packed != (self.cluster_size > PORTABLE_CLUSTER)
        if len(problem.element_inputs) > 1:  # a gradient, bfloat16 8192 x 32000: 361, 385 us
            packs = not self.packed
        if problem.logs_sum:  # loads wait for the target: bfloat16 16384 x 50257, 892 and 940 us
            packs = not self.packed
        pack = problem.dtype.max_pack
        each = rows * problem.cols / pack / (BEST_THREADS * arch.multiprocessors)
        best_packs = min(max(each, LEAST_BEST_PACKS), BEST_PACKS)
        distance = abs(math.log(self.cols_per_thread / pack / best_packs))
        few = each < FEW_PACKS
        best = BEST_BLOCK_OF_FEW if few else BEST_BLOCK
        if problem.function.part.chooses and 4 * rows >= arch.multiprocessors:
            best = BEST_BLOCK_OF_TOP
        threads = abs(math.log(self.block_size / best))
        score = PACKS_WEIGHT * distance + BLOCK_WEIGHT * threads
        if few:
            score += BLOCKS_WEIGHT * math.log2(self.cluster_size)
        if self.realigns(problem):
            score += ENDS_WEIGHT * math.log2(self.cluster_size)
        return (score, packs, self.evict_first, -self.min_blocks)

    @classmethod
    def estimate(cls, problem: Problem, rows: int, arch: Arch) -> float:
        """Little above the copy's time, and least where rows are few and long."""
        words = problem.cols * problem.compute_dtype.itemsize // 4
        if words > MOST_WORDS:
            return OF_MORE_WORDS
        of_sm = rows / arch.multiprocessors
        few = of_sm <= FEW_ROWS and problem.cols * problem.dtype.itemsize >= LONG_ROW_BYTES
        fewer = of_sm <= FEWER_ROWS and words >= LONG_ROW_WORDS
        return OF_FEW_ROWS if few or fewer else OF_MANY_ROWS
