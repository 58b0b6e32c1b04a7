"""One block a row in two passes: the online recurrence, then the result.

Source: algorithm 3 and the parallel form of section 3.1 of Milakov & Gimelshein, Online normalizer
calculation for softmax (arXiv 1805.02867): pairs (m, d) of a running maximum and a running sum form
a monoid. A thread rescales d only when its maximum grows (FastSoftmax's conditional rescale).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from softgen.problems.arch import WARP_SIZE, Arch
from softgen.problems.dtypes import DType
from softgen.problems.layouts import AnyWidth, Rows, Strided
from softgen.problems.operands import Measure
from softgen.problems.problem import Problem
from softgen.strategies import registers
from softgen.strategies.base import Feature, Strategy, knob
from softgen.strategies.choice import board_bytes, rank_bytes, slot_bytes
from softgen.strategies.launch import Launch, blocks_in_registers
from softgen.strategies.sliced import halves_in_float32

MOST_PARTS = 65536

BLOCK_SIZES = (128, 256, 512, 1024)
UNROLLS, READER_UNROLLS = (1, 2, 4), (1, 2, 3, 4, 6)

# `rank` where nothing is found of a row: whether blocks share it, and the packs and threads that
# are best, by how often 512 threads load a pack of it. At bfloat16 4096 x 128256 an H200 takes 507
# us by 128 threads that share a row, and 526 with a block a row of 512 threads; at 16384 x 50257,
# whose rows start anywhere, 799 and 824 (7876bfde).
SHARED_FROM = 4
SHARED, WHOLE = (True, 4, 128), (False, 2, 512)

# `rank` where rows are only read: packs and threads. On an H200 READER was within 1% of the fastest
# setting at 4096 x 128256 and 8192 x 151936 bfloat16, and READER_OF_FEW_ROWS at 128 x 4194304
# float32 (bd70f401). Where rows start anywhere more packs are 5% faster (16384 x 50257), as a block
# waits for the ends of its row (d59c10db), and for entropies (149f8ed8).
READER, READER_OF_FEW_ROWS = (2, 512), (2, 1024)
CUT_READER, CUT_READER_OF_LONG_ROWS = (4, 128), (6, 256)
SHORT_READER = (2, 128)  # won at 2048 x 32000 (149f8ed8)
MANY_COLS = 40000  # from here on a block that only reads is better large
THIRD_SUM = 3  # the numbers of a part that has one sum more than (max, sum)

# `rank` where the largest are chosen: threads by the rows of a multiprocessor, as all but one of
# its blocks can read while one chooses, more where rows are at least WIDE_TOP long. On an H200 that
# takes 1.06 of the fastest at most, at 32 shapes of 116 to 4096 rows and 16384 to 151936 columns.
THREADS_OF_TOP, MOST_OF_TOP = ((1, 1024), (2, 512), (4, 256)), 128
WIDE_TOP, MOST_OF_WIDE_TOP = 65536, 256

# `rank` of the others. On an H200 the first choice was within 5% of the fastest online setting at
# 18 of 20 shapes from 2048 to 1000000 columns; threads with 2 packs or 12 lost 10 to 50%
# (a46c9826).
BEST_PACKS = 5  # of a thread

# Estimates: two reads and a write instead of one of each, by as many SMs as there are rows, and
# less than `safe` (16147d3a).
OF_WRITES, MOST = 1.5, 3.9
# One read if that is all: logsumexp takes 1.01 to 1.04 of a read on an H200 from 50257 columns on,
# where cluster takes 1.03 to 1.08, and 1.23 at 4096, where block takes 1.08 (bd70f401).
OF_READS, OF_NARROW_READS, NARROW = 1.0, 1.25, 16384
FEW_READS = 0.9  # rows for each SM
# Where the largest are chosen: by fewer rows, as a cluster takes longer, and by many narrow rows.
# Of bfloat16 4096 x 8192 the best 20 take 30 us, and 48 by a block for each row that holds it.
FEW_OF_TOP, NARROW_OF_TOP, MANY_OF_TOP = 0.75, 4096, 4


@dataclass(frozen=True)
class Online(Strategy):
    """One row per block, read twice; the second read comes from L2 where the row fits."""

    name = "online"
    summary = "one block strides over a row, (max, sum) pairs; any size and alignment"
    takes = frozenset(Feature) - {Feature.FILTERS}
    cuts_sums = True
    layouts = (Rows, Strided, AnyWidth)

    pack_size: int = knob("p", "elements moved by one load or store")
    unroll: int = knob("u", "packs that a thread loads before it uses the first", unnamed=1)
    block_size: int = knob("b", "threads in a block")
    parts: int = knob("s", "blocks that share a row of which nothing is found", default=1)
    min_blocks: int = knob("m", "blocks that an SM must hold; caps the registers", default=1)

    def check(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless packs and unrolled loads fit a thread."""
        registers.require_walk(self, self.pack_size, self.unroll, self.block_size, problem, arch)
        function = problem.function
        if function.part.chooses:
            plain = function.sums and not function.chooses_scores and not function.groups
            self.require(plain, "what is found while a row is read are its largest elements")
            self.require(
                function.ranked <= 1, "while a row is read what is larger than one id is counted"
            )
            self.require(
                not isinstance(problem.layout, AnyWidth),
                "what is chosen is found by slots, as many as the constant number of columns asks",
            )
        whole = function.reduces or problem.shortens
        self.require(
            1 <= self.parts <= MOST_PARTS and (self.parts == 1 or not whole),
            f"parts must be from 1 to {MOST_PARTS}, and 1 where a row is reduced by one block",
        )
        self.require(
            self.min_blocks == 1 or self._caps(problem),
            "min_blocks must be 1 but where 16-bit elements are only read, or nothing is found of "
            "a row in float32",
        )
        self.require(
            self.parts == 1 or not isinstance(problem.layout, AnyWidth),
            "parts must be 1 where a launch says how wide rows are: their size is a constant",
        )
        if self.min_blocks != 1 or (function.ranked and self.keeps_packs(problem)):
            held, others = self._held(problem, arch), self._others(problem, arch)
            self.require_registers(held, others, self.min_blocks, self.block_size, arch)

    def keeps_packs(self, problem: Problem) -> bool:
        """Return whether elements that are only read stay packed until their terms are summed."""
        return (
            halves_in_float32(problem)
            and self.pack_size >= 2
            and not (problem.writes_elements or problem.enters or problem.shortens)
            and problem.function.part.has_maximum
            and problem.function.part.packs
            and len(problem.element_inputs) == 1
        )

    def describe(self, problem: Problem) -> str:
        """Return what the file of `problem` does, for its header."""
        if not problem.function.reduces:
            blocks = f"{self.parts} blocks share" if self.parts > 1 else "one block strides over"
            return f"{blocks} a row, of which nothing is found"
        if problem.function.part.chooses:
            return "one block strides over a row, and loads again what may be chosen"
        return f"one block strides over a row, {problem.function.part.plural}"

    def _caps(self, problem: Problem) -> bool:
        """Return whether it is known how many registers a thread needs."""
        if problem.function.reduces or problem.compute_dtype is not DType.FLOAT32:
            return self.keeps_packs(problem)
        hooks = sum(hook.registers(problem.compute_dtype) for hook in problem.modifiers)
        return hooks <= registers.MOST_WRITER_HOOKS and len(problem.element_inputs) == 1

    def _held(self, problem: Problem, arch: Arch) -> int:
        """Return the registers of packs that are loaded together."""
        held = self.unroll * self.pack_size * problem.dtype.itemsize // 4
        old = problem.function.reduces and arch.compute_capability < (8, 0)
        return held * registers.OLD_PACKS if old else held

    def _others(self, problem: Problem, arch: Arch) -> int:
        """Return the registers of a thread beside those."""
        if problem.function.reduces:
            newer = bool(problem.function.modifiers) and arch.compute_capability >= (10, 0)
            more = problem.function.part.walk_registers + registers.READER_TARGET * newer
            if problem.function.ranked and arch.compute_capability < (9, 0):
                more += registers.READER_RANK * self.unroll
            return registers.READER + more
        aligned = problem.alignment >= self.pack_size
        more = 0 if aligned else registers.WRITER_ENDS[problem.dtype.itemsize]
        if any(result.measure is Measure.LOGARITHM for result in problem.results):
            more += registers.WRITER_LOG
        own_terms = problem.leaves and problem.function.shifts and problem.dtype is DType.FLOAT32
        if own_terms and self.unroll <= 2:
            more += registers.WRITER_ROOT
        return registers.WRITER + self.pack_size + more

    def overrun(self, problem: Problem) -> int:
        """Return the columns of all parts, and as many again: the last may begin behind the row."""
        return super().overrun(problem) * (2 * self.parts if self.parts > 1 else 1)

    def launch(self, problem: Problem) -> Launch:
        """Return the launch shape: a row a block, a part for each warp in shared memory.

        Where nothing is found of a row warps exchange nothing.
        """
        warps, shared = self.block_size // WARP_SIZE, 0
        if problem.function.part.chooses:
            maxima = warps * problem.compute_dtype.itemsize
            shared = board_bytes(problem, self, self.block_size) + maxima
            shared += slot_bytes(problem, self)
            if problem.function.ranked:
                shared += rank_bytes(problem, warps)
        elif problem.function.reduces:
            shared = warps * problem.part_bytes
        return Launch(self.block_size, 1, static_shared_bytes=shared, blocks_per_row=self.parts)

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield the widest pack and half of it.

        Where rows are only read half of a pack was never among the fastest, but more loads in
        flight were: bfloat16 16384 x 50257 took 378 us for entropies with 3, and 384 with 4.
        """
        pack = cls.common_pack(problem)
        reads = not problem.writes_elements
        packs = {pack} if reads else {pack, max(1, pack // 2)}
        found = [
            cls(pack, unroll, block)
            for pack in packs
            for unroll in (READER_UNROLLS if reads else UNROLLS)
            for block in BLOCK_SIZES
            if block * pack <= max(problem.cols, BLOCK_SIZES[0] * pack)
        ]
        if not problem.function.reduces:
            found += cls._sharing(problem, pack)
        found = [s._capped(problem, arch) for s in found]
        legal = [s for s in found if s.keeps_rules(problem, arch)]
        yield from sorted(legal, key=lambda s: s.rank(problem, rows, arch))

    def _capped(self, problem: Problem, arch: Arch) -> Online:
        """Return this setting with as many blocks on an SM as there may be, if packs are kept.

        With a third sum and 4 packs or fewer the compiler's own choice is faster: entropies of
        bfloat16 4096 x 128256 took 256 us in 45 registers and 238 in 61; with 6 packs 243 in 79.
        """
        writes = not problem.function.reduces
        third = problem.function.part.numbers == THIRD_SUM and not writes
        # Where nothing is found of a row ptxas spilled 4 to 32 bytes on sm_86 and sm_120.
        other = writes and arch.compute_capability != (9, 0)
        if not self._caps(problem) or other or (third and self.unroll <= 4):
            return self
        needed = self._held(problem, arch) + self._others(problem, arch)
        blocks = blocks_in_registers(needed, self.block_size, arch)
        return self.with_knobs(min_blocks=blocks)

    @classmethod
    def _sharing(cls, problem: Problem, pack: int) -> list[Online]:
        """Return settings with so many blocks a row that each block loads its part at once."""
        return [
            cls(pack, unroll, block, parts)
            for unroll in UNROLLS
            for block in BLOCK_SIZES[:-1]
            if 1 < (parts := -(-problem.cols // (pack * unroll * block))) <= MOST_PARTS
        ]

    def rank(self, problem: Problem, rows: int, arch: Arch) -> tuple[float, ...]:
        """Order candidates: the least comes first."""
        if not problem.function.reduces:
            return self._rank_of_writers(problem)
        if not problem.writes_elements:
            return self._rank_of_readers(problem, rows, arch)
        return self._rank_of_two_passes(problem)

    def _rank_of_writers(self, problem: Problem) -> tuple[float, ...]:
        """Order candidates where nothing is found of a row: 128 threads with 4 packs each."""
        packs = problem.cols / (self.pack_size * 512)
        shares, unroll, threads = SHARED if packs >= SHARED_FROM else WHOLE
        distance = abs(math.log2(self.unroll / unroll)) + abs(math.log2(self.block_size / threads))
        return (-self.pack_size, (self.parts > 1) != shares, distance)

    def _rank_of_readers(self, problem: Problem, rows: int, arch: Arch) -> tuple[float, ...]:
        """Order candidates where rows are only read: by loads in flight, then by block size."""
        many_rows, many_cols = rows > arch.multiprocessors, problem.cols >= MANY_COLS
        cut = problem.alignment < self.pack_size
        best = READER if many_rows else READER_OF_FEW_ROWS
        if problem.function.part.chooses:
            best = self._best_of_top(problem, rows / arch.multiprocessors)
        elif self.keeps_packs(problem) and many_rows:
            if cut or problem.function.part.numbers == THIRD_SUM:
                best = CUT_READER_OF_LONG_ROWS if many_cols else CUT_READER
            elif not many_cols:
                best = SHORT_READER
        elif cut:
            best = CUT_READER
        unroll, threads = best
        return (-self.pack_size, abs(self.unroll - unroll), abs(self.block_size - threads))

    def _best_of_top(self, problem: Problem, rows: float) -> tuple[int, int]:
        """Return the best packs and threads where a multiprocessor chooses from so many rows."""
        wide = problem.cols >= WIDE_TOP
        most = MOST_OF_WIDE_TOP if wide else MOST_OF_TOP
        threads = next((n for limit, n in THREADS_OF_TOP if rows <= limit), most)
        if not self.keeps_packs(problem):
            return 3 if problem.dtype.itemsize == 2 else 4, threads
        return 6 if wide and rows > THREADS_OF_TOP[-1][0] else 4, threads

    def _rank_of_two_passes(self, problem: Problem) -> tuple[float, ...]:
        """Order candidates: wide packs, a block near 5 packs a thread, then few rounds of loads."""
        packs = problem.cols / (self.pack_size * self.block_size)
        unrolled, single = divmod(int(packs), self.unroll)
        return (
            -self.pack_size,
            max(packs / BEST_PACKS, BEST_PACKS / packs),
            unrolled + single,
            self.unroll,
        )

    @classmethod
    def estimate(cls, problem: Problem, rows: int, arch: Arch) -> float:
        """Two reads and a write instead of one of each, by as many SMs as there are rows."""
        if not problem.writes_elements and problem.function.reduces:
            chooses = problem.function.part.chooses
            many = chooses and rows > MANY_OF_TOP * arch.multiprocessors
            narrow = problem.cols < (NARROW_OF_TOP if many else NARROW)
            least = OF_NARROW_READS if narrow else OF_READS
            few = FEW_OF_TOP if chooses else FEW_READS
            return min(MOST, max(least, few * arch.multiprocessors / max(1, rows)))
        return min(MOST, max(OF_WRITES, arch.multiprocessors / max(1, rows)))
