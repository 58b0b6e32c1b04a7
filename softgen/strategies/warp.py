"""A row in the registers of 1 to 32 lanes of a warp, several rows a warp: OneFlow's warp softmax.

Source: "How to implement an efficient softmax CUDA kernel" (OneFlow), whose names the knobs keep.
Lanes of a thread group take packs in turn, so a group's accesses are contiguous; maximum and sum
are butterfly shuffles inside the group, and no shared memory or barrier is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from softgen.problems.arch import WARP_SIZE, Arch
from softgen.problems.dtypes import DType
from softgen.problems.layouts import Rows, Strided
from softgen.problems.problem import Problem
from softgen.strategies.base import PACK_SIZES, Feature, Strategy, knob
from softgen.strategies.choice import Choice, list_of
from softgen.strategies.launch import Launch
from softgen.strategies.sliced import PACKED_NEEDS, Sliced, halves_in_float32, packed_knob

# 32-bit registers that may hold elements. A thread has 255; addresses, the packs in flight and the
# reductions take the rest, and at least OTHER_REGISTERS. Fitted (221d1d00).
MAX_ELEMENT_REGISTERS, OTHER_REGISTERS = 160, 32

# Registers of elements worth timing: a lane that holds fewer leaves memory latency uncovered, one
# that holds more leaves too few warps on an SM. float64's exp needs many registers for itself:
# 16 elements a lane compile to 128 registers or more, 32 spill.
LEAST_REGISTERS = 1
MOST_REGISTERS = {DType.FLOAT32: 64, DType.FLOAT64: 32}

# Rows that are also proposed with loads and stores that leave the caches first, and of how many
# settings: 3% less at float16 49152 x 64 on an H200, 2% at 128, nothing from 512 columns on.
SHORT_ROW = 512  # bytes
BEST = 2

SECTOR_BYTES = 32

# `rank`, in logarithms of time. Fitted to 2,462 settings at 51 shapes on an H200 (a46c9826): the
# first choice is within 5% of the fastest warp setting at 39 of them and within 20% at 47; the
# other four have 1 to 10 columns. Where rows start off 16 bytes, to 1,100 settings at 18 shapes
# (c5e0cfb1): within 5% at 16 of them, and within 14%.
WASTE, CUT_WASTE = 2.0, 1.3  # lanes without columns
BEST_HELD, BEST_HELD_OF_CUT, HELD_WEIGHT = 6, 8, 0.5  # registers of elements
CUT = 16  # packs of a row
SECTORS = 0.5  # a lane that reads part of a sector
PACK = 0.3
ROWS = 0.4  # at once

# `rank` of a choice, whose instructions take the time, as counted in code for sm_90 (5e354deb).
# What is waited for where a scheduler has no other warps, in such warps; registers of keys and
# elements that leave an SM warps enough.
SCHEDULERS = 4  # of an SM
LATENCY = 3
FEW_REGISTERS, CROWD = 40, 0.4
# Lanes that write more than 16 bytes of a row leave gaps between their stores: the best 8 of
# 65536 x 8 took 4.5 us on an H200 by one lane a row, and 2.7 by two (36e14a91).
MOST_PLACES, GAPS = 4, 0.5
OF_ROW, OF_PLACE, OF_SUM, OF_PACK, OF_KEY = 60, 25, 4, 4, 6  # instructions
TWO_IN_ORDER = {4: 2, 8: 6, 16: 12}  # instructions for two keys, by their bytes
UNSORTED = 0.3  # the power of the share that is chosen, of which the rest is not sorted
OF_LARGEST, OF_MERGED = 12, 2  # instructions for each that a warp finds, or that lanes merge

# Estimates: the copy's time, or where rows do not fill the GPU with one warp each. On an H200
# float32 128 x 2048 takes 3.7 us here and 2.5 with a block a row (f80f30b1). A choice takes
# barriers there: the best 8 of bfloat16 1 x 384 take 1.24 us here and 1.94 with a block (36e14a91).
OF_MANY_ROWS, OF_FEW_ROWS = 1.0, 1.3
MOST_OF_FEW, MOST_OF_FEW_CHOSEN = 256, 512  # columns from which few rows are a loss
# Rows of an SM that are few, and of long rows: float32 867 x 1403 takes 5.24 us on an H100, and
# 4.56 with a block a row (8d89dce3).
FEW_ROWS, LONG_ROW, FEW_LONG_ROWS = 2, 768, 7


@dataclass(frozen=True)
class Warp(Sliced):
    """One row per group of `thread_group_width` lanes, held in registers."""

    name = "warp"
    summary = "a row in the registers of 1 to 32 lanes; several rows a warp"
    triggers = True
    turns = True
    past_rows = True
    loads_to_end = True
    sorts = True
    takes = frozenset(Feature) - {Feature.SLOPES, Feature.FILTERS}
    layouts = (Rows, Strided)

    thread_group_width: int = knob("g", "lanes that share a row")
    rows_per_access: int = knob("r", "rows that a thread group holds at once", unnamed=1)
    padding: bool = knob(
        "pad", "whether the group covers more columns than the row has", constant=False
    )
    block_size: int = knob("b", "threads in a block")
    evict_first: bool = knob(
        "ef", "whether loads and stores leave the caches first", constant=False, default=False
    )
    packed: bool = packed_knob()

    def describe(self, problem: Problem) -> str:
        """Return how a row is held, for the header of a file."""
        width, rows = self.thread_group_width, self.rows_per_access
        lanes = {1: "a lane", 32: "a warp"}.get(width, f"{width} lanes")
        return f"a row in the registers of {lanes}" + (f", {rows} rows at once" if rows > 1 else "")

    def check(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless the group covers the row and fits the registers."""
        require, width = self.require, self.thread_group_width
        self.require_pack(self.pack_size, problem)
        self.require_alike(self.pack_size, problem)
        require(
            problem.function.reduces or not problem.shortens,
            "where the pair of a row is given its elements are finished as they are loaded, also "
            "those behind its end",
        )
        require(width in (1, 2, 4, 8, 16, 32), "thread_group_width must be a power of two up to 32")
        require(self.rows_per_access in (1, 2, 4), "rows_per_access must be 1, 2 or 4")
        self.require_cols_per_thread(self.cols_per_thread, self.pack_size)
        self.require_choice(problem)
        if self.packed:
            self.require_packed_choice(problem, arch)
        require(
            self.rows_per_access == 1 or not problem.function.part.draws,
            "what is drawn of a row is known where it is loaded, of one row at a time",
        )
        covered, span = self.cols_per_thread * width, problem.cols + self.overhang(problem)
        if covered < span:
            self.refuse(f"the group must cover {span} columns, it covers {covered}")
        if self.padding and covered <= problem.cols:
            self.refuse(f"padding needs a group wider than {problem.cols} columns")
        if not self.padding and covered != problem.cols:
            self.refuse(
                f"without padding a group must cover just {problem.cols} columns, not {covered}"
            )
        self.require_block(self.block_size)
        registers = self.all_registers(problem)
        limit = min(
            MAX_ELEMENT_REGISTERS,
            arch.registers_per_multiprocessor // self.block_size - OTHER_REGISTERS,
        )
        if registers > limit:
            self.refuse(
                f"a lane would hold {registers} registers of elements; at most {limit} do not spill"
            )

    @property
    def skipping(self) -> bool:
        """Whether the template can leave out packs: where a thread has one row at a time."""
        return self.rows_per_access == 1

    @property
    def slice_threads(self) -> int:
        """The threads to which the packs of a slice are dealt in turn."""
        return self.thread_group_width

    def all_registers(self, problem: Problem) -> int:
        """Return the 32-bit registers of a lane that hold elements, of all its rows."""
        return self.element_registers(problem) * self.rows_per_access

    def require_packed_choice(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless lanes choose from elements as they were loaded."""
        choice, function = Choice.of(problem, self), problem.function
        as_loaded = not (problem.modifiers or function.groups or function.chooses_scores)
        self.require(
            choice is not None and choice.listed > 0 and as_loaded,
            "only elements that lanes choose from as they were loaded stay packed, by merged lists",
        )
        self.require(
            halves_in_float32(problem) and self.pack_size >= 2 and problem.column_bits > 0,
            "only 16-bit elements in packs of two or more, computed in float32, can stay packed",
        )
        self.require(
            arch.compute_capability >= PACKED_NEEDS,
            f"the maximum of two 16-bit elements at once needs sm_80, {arch.name} has none",
        )

    def sorted_keys(self, problem: Problem) -> int:
        """Return the most keys that a lane sorts at once: of packs, or of a few packs' elements."""
        if not self.chooses_packs(problem):
            return self.cols_per_thread
        places = list_of(problem.function.chosen) // self.thread_group_width
        return max(self.packs, places * self.pack_size)

    def chooses_packs(self, problem: Problem) -> bool:
        """Return whether packs are chosen before their elements, as in a row of many packs.

        All of 64 elements in 8 packs are compared, as each pack may have one of the 8 largest.
        """
        listed, packs = list_of(problem.function.chosen), problem.cols // self.pack_size
        return self.packed and packs >= 2 * listed >= 2 * self.thread_group_width

    def launch(self, problem: Problem) -> Launch:
        """Return the launch shape: as many thread groups as fit the block."""
        rows = self.block_size // self.thread_group_width * self.rows_per_access
        choice = Choice.of(problem, self)
        found = choice.found * problem.key_bytes if choice else 0
        shared = self.block_size // WARP_SIZE * found
        return Launch(self.block_size, rows, static_shared_bytes=shared, strides=False)

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield every pack and group width whose lanes hold a sensible number of elements."""
        most = MOST_REGISTERS[problem.compute_dtype]
        legal = []
        for pack in PACK_SIZES:
            for width in (1, 2, 4, 8, 16, 32):
                one = cls.covering(problem, pack, width)
                registers = one.all_registers(problem)
                packed = one.with_knobs(packed=True)
                if problem.function.part.chooses and packed.keeps_rules(problem, arch):
                    one, registers = packed, packed.all_registers(problem)
                for rows_per_access in (1, 2, 4):
                    if registers * rows_per_access > most:  # asked first: it is of half of them
                        break
                    for block_size in (128, 256):
                        setting = one.with_knobs(
                            rows_per_access=rows_per_access, block_size=block_size
                        )
                        if setting.keeps_rules(problem, arch):
                            legal.append(setting)
        usual = [s for s in legal if s.all_registers(problem) >= LEAST_REGISTERS]

        ordered = sorted(usual or legal, key=lambda s: s.rank(problem, rows, arch))
        for place, setting in enumerate(ordered):
            yield setting
            if place < BEST and problem.cols * problem.dtype.itemsize <= SHORT_ROW:
                yield setting.with_knobs(evict_first=True)

    @classmethod
    def covering(
        cls, problem: Problem, pack: int, width: int, rows_per_access: int = 1, block: int = 128
    ) -> Warp:
        """Return the setting whose group covers the row with the fewest packs a lane."""
        one = cls(pack, pack, width, rows_per_access, True, block)
        packs = -(-one.row_packs(problem) // width)
        padding = packs * pack * width != problem.cols
        return cls(pack, packs * pack, width, rows_per_access, padding, block)

    def rank(self, problem: Problem, rows: int, arch: Arch) -> tuple[float, float]:
        """Return about the logarithm of the time, up to a constant; orders the candidates."""
        if problem.function.part.chooses:
            return self._rank_of_choice(problem, rows, arch)
        waste = self.cols_per_thread * self.thread_group_width / problem.cols
        aligned = problem.alignment >= problem.dtype.max_pack
        wasting, usual = (WASTE, BEST_HELD) if aligned else (CUT_WASTE, BEST_HELD_OF_CUT)
        cut = 0.0 if self.aligned(problem) else CUT * self.pack_size / problem.cols
        # Lanes that exchange words gain nothing by packs of more than two of them.
        gain = min(self.pack_size, 4) if self.realigns(problem) else self.pack_size
        # A group whose lanes touch less than one 32-byte sector per load reads sectors twice.
        span = self.thread_group_width * self.pack_size * problem.dtype.itemsize
        sectors = 1.0 if self.cols_per_thread == self.pack_size else min(1.0, span / SECTOR_BYTES)
        registers = self.all_registers(problem)
        score = (
            wasting * math.log(waste)
            + cut
            - SECTORS * math.log(sectors)
            + HELD_WEIGHT * abs(math.log(registers / usual))
            - PACK * math.log(gain)
            + ROWS * math.log(self.rows_per_access)
        )
        return score, self.block_size

    def _rank_of_choice(self, problem: Problem, rows: int, arch: Arch) -> tuple[float, float]:
        """Return about the logarithm of the time of a choice, which its instructions take."""
        instructions = sum(self._instructions(problem)) * self.rows_per_access
        warps = rows * self.thread_group_width / (WARP_SIZE * self.rows_per_access)
        busy = warps / (SCHEDULERS * arch.multiprocessors)
        crowd = max(0.0, math.log(self.all_registers(problem) / FEW_REGISTERS))
        score = math.log(instructions * (busy + LATENCY)) + CROWD * crowd
        choice = Choice.of(problem, self)
        has_gaps = choice is not None and choice.places > MOST_PLACES
        return score + GAPS * has_gaps, self.block_size

    def _instructions(self, problem: Problem) -> Iterator[float]:
        """Yield about how many instructions a warp takes for a row of each lane."""
        choice = Choice.of(problem, self)
        assert choice is not None
        chosen, summed = problem.function.chosen, OF_SUM * problem.function.sums
        in_order = TWO_IN_ORDER[problem.key_bytes]
        yield OF_ROW + OF_PLACE * choice.places + summed * self.cols_per_thread
        yield OF_PACK * self.packs
        few = [choice.places * self.pack_size, self.packs]
        for keys in few if self.chooses_packs(problem) else [self.cols_per_thread]:
            depth = math.log2(keys)
            pairs = keys / 4 * (depth**2 - depth + 4) - 1  # Batcher's, of which some is dead code
            yield OF_KEY * keys + in_order * pairs * min(1, chosen / keys) ** UNSORTED
            if not choice.listed:
                yield chosen * (OF_LARGEST + in_order * min(keys, chosen) / 4)
                continue
            for lanes in (2**n for n in range(1, choice.lanes.bit_length())):
                both = min(choice.listed, lanes * list_of(keys))
                yield both * (OF_MERGED + in_order / 2 * (1 + math.log2(both)))

    @classmethod
    def estimate(cls, problem: Problem, rows: int, arch: Arch) -> float:
        """The copy's time; more where the rows are too few to fill the GPU with one warp each."""
        few = MOST_OF_FEW_CHOSEN if problem.function.part.chooses else MOST_OF_FEW
        few_rows = FEW_ROWS if problem.cols < LONG_ROW else FEW_LONG_ROWS
        lost = rows < few_rows * arch.multiprocessors and problem.cols >= few
        return OF_FEW_ROWS if lost else OF_MANY_ROWS
