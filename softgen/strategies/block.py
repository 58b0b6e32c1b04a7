"""A row in the registers of a group of warps, with one exponential and one exchange.

Each warp takes the exponentials against its own maximum and keeps them; the warps exchange (max,
sum) pairs once, through shared memory, and what was kept is scaled to the row's maximum at the end.
The pairs are those of Milakov & Gimelshein (arXiv 1805.02867, section 3.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from softgen.problems.arch import KIB, WARP_SIZE, Arch
from softgen.problems.dtypes import DType
from softgen.problems.layouts import Rows, Strided
from softgen.problems.problem import Problem
from softgen.problems.shards import Shards
from softgen.strategies import registers
from softgen.strategies.base import Strategy, knob
from softgen.strategies.choice import board_bytes, rank_bytes
from softgen.strategies.launch import Launch, blocks_in_registers
from softgen.strategies.sliced import Sliced, packed_knob

# Between the powers of two fewer lanes are left without columns: bfloat16 4096 x 4097 in a fixed
# order takes 19.4 us on an H200 in 96 threads, and 20.0 in 128.
WIDTHS = (64, 96, 128, 192, 256, 512, 1024)

# Registers of elements of a candidate: from SPILLING on some of those with few others spill 8
# bytes, and none of them won (12da6e32).
LEAST_HELD, MOST_HELD, SPILLING = 4, 64, 44
# Widths that are also tried with two rows a block: float32 10373 x 1464, 8 elements in each of 192
# threads, took 42.10 us on an H100, and 41.96 with two.
PAIRED_WIDTH, WIDEST_PAIRED, MOST_HELD_BY_WIDEST = 128, 192, 16

# `rank`, in logarithms of time. From device times on an H200 (f80f30b1): float32 4096 x 512 to
# 16384, 20000 x 5000, {16, 128} x {1024, 2048}.
BEST_HELD, BEST_HELD_OF_FEW_ROWS = 28, 8  # registers of elements
HELD_WEIGHT = 0.3
# A doubling of the ends of warps' parts: bfloat16 4096 x 8191, 41 and 36 us (46e0d399).
ENDS_WEIGHT = 0.25

# Estimates. On an H200 float32 4096 x 16384 takes 1.17 of the copy, and bfloat16 8192 x 32000,
# where one row fills an SM, 1.14: behind the online kernel's 1.10 (5359b257).
MOST_WORDS, OF_MORE_WORDS = 16384, 1.6
HELD_WELL, OF_HELD_WELL, OF_HELD_BADLY = 52 * KIB, 1.02, 1.2
# Two inputs of 16 bits that are not held packed leave an SM room for one row: the gradient of
# bfloat16 6000 x 9000 took 125 us, and 80 in a cluster; of float32 151, and 150 (537607bc).
HELD_WELL_OF_TWO = 16 * KIB
# With a fixed order bfloat16 4096 x 12671 took 68 us here, and 53 in a cluster (46e0d399).
HELD_WELL_IN_FIXED_ORDER = 20 * KIB


@dataclass(frozen=True)
class Block(Sliced):
    """One row per group of `thread_group_width` threads, held in registers."""

    name = "block"
    summary = "a row in the registers of 2 to 32 warps, one exchange of (max, sum) pairs"
    triggers = True
    turns = True
    past_rows = True
    cuts_sums = True
    layouts = (Rows, Strided, Shards)

    thread_group_width: int = knob("g", "threads that share a row")
    block_size: int = knob("b", "threads in a block")
    min_blocks: int = knob("m", "blocks that an SM must hold; caps the registers")
    packed: bool = packed_knob()

    skipping = True

    def check(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless the group covers the row and fits the registers."""
        require, width = self.require, self.thread_group_width
        self.require_pack(self.pack_size, problem)
        self.require_alike(self.pack_size, problem)
        self.require_block(self.block_size)
        require(width in WIDTHS, f"thread_group_width must be one of {WIDTHS}")
        require(
            self.block_size % width == 0,
            f"block_size must be a multiple of thread_group_width ({width})",
        )
        self.require_cols_per_thread(self.cols_per_thread, self.pack_size)
        self.require_choice(problem)
        self.require_packable(problem, arch)
        if problem.function.part.chooses:
            require(self.block_size == width, "one row a block has a board for its choice")
        span = problem.cols + self.overhang(problem)
        require(
            self.cols_per_thread * width >= span,
            f"the group must cover {span} columns, it covers {self.cols_per_thread * width}",
        )
        held, others = self.element_registers(problem), self.other_registers(problem)
        if problem.dtype is DType.FLOAT32 and arch.compute_capability < (8, 0):
            others += registers.FLOAT32_ON_SM_75
        self.require_registers(held, others, self.min_blocks, self.block_size, arch)

    def describe(self, problem: Problem) -> str:
        """Return how a row is held, for the header of a file."""
        warps = self.thread_group_width // WARP_SIZE
        parts = problem.function.part.plural
        return f"a row in the registers of {warps} warps, one exchange of {parts}"

    @property
    def unnamed(self) -> tuple[str, ...]:
        """The knobs that no constant of the emitted file names: at their values it needs none."""
        return ("thread_group_width",) if self.thread_group_width == self.block_size else ()

    @property
    def slice_threads(self) -> int:
        """The threads to which the packs of a slice are dealt in turn."""
        return self.thread_group_width

    def launch(self, problem: Problem) -> Launch:
        """Return the launch shape: a group a row, one (m, d) pair per warp in shared memory."""
        rows = self.block_size // self.thread_group_width
        if problem.function.part.chooses:
            parts = board_bytes(problem, self, self.block_size)
            parts += rank_bytes(problem, self.block_size // WARP_SIZE)
        else:
            parts = self.block_size // WARP_SIZE * problem.part_bytes
        return Launch(
            self.block_size,
            rows,
            static_shared_bytes=parts + rows * self.exchange_bytes(problem),
            strides=False,
        )

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield groups whose threads hold 4 to 64 registers of elements.

        Evicting first never won at 40 shapes on an H200, nor did three or more rows a block.
        """
        pack = cls.widest_pack(problem)
        found: list[Block] = []
        for width in WIDTHS:
            covering = cls._covering(problem, pack, width)
            held = covering.element_registers(problem)
            if held > MOST_HELD or (width > min(WIDTHS) and held < LEAST_HELD):
                continue
            for packed in covering.may_pack(problem):
                setting = covering.with_knobs(packed=packed)
                found += setting._resident(problem, arch)
        yield from sorted(found, key=lambda s: s.rank(problem, rows, arch))

    def _resident(self, problem: Problem, arch: Arch) -> Iterator[Block]:
        """Yield the legal ones: one or two rows a block, any or most blocks on an SM."""
        width, held = self.thread_group_width, self.element_registers(problem)
        need = held + self.other_registers(problem)
        narrow = width <= PAIRED_WIDTH or (width == WIDEST_PAIRED and held <= MOST_HELD_BY_WIDEST)
        pairs = narrow and not problem.function.part.chooses and not self.packed
        for block in (width, 2 * width) if pairs else (width,):
            for blocks in dict.fromkeys((1, blocks_in_registers(need, block, arch))):
                setting = self.with_knobs(block_size=block, min_blocks=blocks)
                registers = arch.registers_per_multiprocessor // (block * blocks)
                if held >= SPILLING and registers <= 2 * held:
                    continue
                if setting.keeps_rules(problem, arch):
                    yield setting

    @classmethod
    def _covering(cls, problem: Problem, pack: int, width: int) -> Block:
        """Return the setting with the fewest packs a thread, one row a block."""
        one = cls(pack, pack, width, width, min_blocks=1)
        packs = -(-one.row_packs(problem) // width)
        return one.with_knobs(cols_per_thread=packs * pack)

    def rank(self, problem: Problem, rows: int, arch: Arch) -> tuple[float, ...]:
        """Order candidates: about 28 registers of elements a thread, and full SMs.

        Where rows are too few to fill the GPU, more threads a row: 8 registers.
        """
        waste = self.cols_per_thread * self.thread_group_width / problem.cols
        few = rows < 2 * arch.multiprocessors
        held = self.cols_per_thread * problem.compute_dtype.itemsize // 4
        distance = abs(math.log(held / (BEST_HELD_OF_FEW_ROWS if few else BEST_HELD)))
        groups = self.block_size // self.thread_group_width
        score = math.log(waste) + HELD_WEIGHT * distance
        if self.realigns(problem):
            score += ENDS_WEIGHT * math.log2(self.thread_group_width)
        # Two inputs are twice as much to hold: softmax's gradient, bfloat16 8192 x 8192, takes 94.9
        # us packed, and 109.4.
        packs = self.packed == (len(problem.element_inputs) == 1)
        return (score, packs, -self.min_blocks, groups)

    @classmethod
    def estimate(cls, problem: Problem, rows: int, arch: Arch) -> float:
        """The copy's time while an SM holds several rows, so that loads and stores overlap."""
        words = problem.cols * problem.compute_dtype.itemsize // 4
        if words > MOST_WORDS:
            return OF_MORE_WORDS
        held_well = HELD_WELL_IN_FIXED_ORDER if problem.fixed_order else HELD_WELL
        if len(problem.element_inputs) > 1 and problem.dtype.itemsize == 2:
            held_well = HELD_WELL_OF_TWO
        is_held = problem.cols * problem.dtype.itemsize <= held_well
        return OF_HELD_WELL if is_held else OF_HELD_BADLY
