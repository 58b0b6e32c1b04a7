"""Short rows, and columns with little behind the axis: tiles of whole outer indices.

Where inner is a few elements, accesses along it are parts of a sector, and so are those of rows
that are shorter than a pack or start anywhere in one. All elements of some outer indices follow
each other in memory, though: a block moves them in whole packs, and its threads find the columns
of their rows in shared memory, whatever inner is. Along the last axis inner is 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from softgen.problems.arch import KIB, WARP_SIZE, Arch
from softgen.problems.dtypes import MAX_PACK_BYTES
from softgen.problems.layouts import Columns, Rows
from softgen.problems.problem import Problem
from softgen.strategies import registers
from softgen.strategies.base import Feature, Strategy, asks_place, knob
from softgen.strategies.columnar import inputs_of, sums_in_place
from softgen.strategies.costs import Term
from softgen.strategies.launch import Launch

SHARERS = (1, 2, 4, 8, 16, 32, 64, 128)
BLOCKS = (32, 64, 96, 128, 192, 256, 512, 1024)
MOST_SHARED = 48 * KIB  # static
# Inner of a candidate: from there on packs along it are lines, and so are single elements.
MOST_INNER, MOST_ODD_INNER = 64, 256
APART = (1, 2, 3, 4, 5, 7, 8)  # of a candidate
MOST_HELD = 48  # registers of elements of a candidate
ROUNDS = (1, 2, 4, 8)  # of a candidate
LONGEST_ROW = 256  # bytes, of a candidate along the last axis

# The terms of `rank`, fitted on an H200 (20287baa), but for those with a commit of their own.
# bfloat16 axis 1 of (100000, 21, 3) takes 10.9 us by 96 threads, 11.4 by 128 of which 8 are idle,
# 12.8 by 64 of which 16 are, and 13.5 by 96 of which two share a row: all of them with `apart` 1,
# where a warp's accesses are four. Where they are one or two it is 7.3 us by 192 threads, 7.6 by 96
# and 8.3 by 480.
IDLE = 2.5  # all threads (aa7201bc)
SHARING, THREADS, HELD = Term(0.3), Term(0.3, 128), Term(0.3, 32)
WAVEFRONT = 0.1  # an access of a warp to shared memory (40402b00)
MOVED = Term(0.3, 2 * MAX_PACK_BYTES)  # bytes a thread (0795f176)

# Estimates, over the time of a copy. Along the last axis rows below 16 bytes: `warp` takes 1.3
# times as long at 4 columns of bfloat16, 1.8 at 3 of float32. Where its accesses are of 2 bytes it
# takes 2.2 to 2.7 times as long at 3 and 7 columns (7eace6aa).
OF_SHORT_ROWS, OF_OTHER_ROWS = 0.95, 1.05
# A few columns fit the registers of one thread: `columns` takes 0.92 of the time there (20287baa).
FEW_COLS, OF_FEW_COLS = 4, 1.1
# Inner of a sector or two, and more. Fitted (a025bbd5).
SMALL_INNER, OF_SMALL_INNER, OF_LARGE_INNER = 64, 1.02, 1.2  # bytes


@dataclass(frozen=True)
class Tiles(Strategy):
    """Some outer indices per block, moved through shared memory in whole packs."""

    name = "tiles"
    summary = "rows that follow each other, in shared memory: short ones, and small inner"
    layouts = (Columns, Rows)
    takes = frozenset({Feature.MORE_INPUTS, Feature.SUMS, Feature.HOOKS})
    triggers = True

    pack_size: int = knob("p", "elements moved by one load or store")
    cols_per_thread: int = knob("c", "elements of a row held by one thread")
    threads_per_row: int = knob("t", "threads that share a row")
    outers: int = knob("o", "outer indices of a block")
    block_size: int = knob("b", "threads in a block")
    apart: int = knob("a", "outer indices from one thread's to its neighbour's", default=1)

    def describe(self, problem: Problem) -> str:
        """Return what a block has, for the header of a file."""
        return f"a block moves {self.outers} outer indices in packs, through shared memory"

    @classmethod
    def computes(cls, problem: Problem) -> bool:
        """Whether the template has what the problem asks for."""
        if any(map(asks_place, problem.hooks)) or len(problem.modifiers) > len(problem.hooks):
            return False  # along the last axis too
        return sums_in_place(problem) and super().computes(problem)

    def check(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless a tile is whole packs and its rows have threads."""
        require, inner = self.require, problem.layout.step
        require(
            self.pack_size == problem.dtype.max_pack,
            f"pack_size must be {problem.dtype.max_pack}, which 16 bytes hold",
        )
        require(
            not problem.writes_elements or problem.dtype.itemsize == problem.out_dtype.itemsize,
            "results stand where their elements stood: types of one size",
        )
        self.require_block(self.block_size)
        require(self.threads_per_row in SHARERS, f"threads_per_row must be one of {SHARERS}")
        require(
            self.threads_per_row <= problem.cols,
            f"{self.threads_per_row} threads for a row of {problem.cols}",
        )
        wanted = -(-problem.cols // self.threads_per_row)
        require(
            self.cols_per_thread == wanted,
            f"cols_per_thread must be {wanted}, what {self.threads_per_row} threads hold of "
            f"{problem.cols} columns",
        )
        require(self.outers >= 1, "outers must be at least 1")
        require(
            self.apart >= 1 and self.outers % self.apart == 0,
            f"apart must be a divisor of {self.outers}, the outer indices of a block",
        )
        require(
            self.rounds(problem) == 1
            or (
                self.threads_per_row == 1
                and self.block_size % inner == 0
                and self.outers * inner % self.block_size == 0
            ),
            f"{self.outers} x {inner} rows of {self.threads_per_row} threads are more than "
            f"{self.block_size}, and not so many times a row a thread",
        )
        tile = self.tile_bytes(problem)
        require(
            tile % MAX_PACK_BYTES == 0,
            f"{self.outers} outer indices are {tile} bytes, and must be a multiple of 16",
        )
        shared = self.launch(problem).static_shared_bytes
        require(shared <= MOST_SHARED, f"a tile and parts take {shared} bytes of {MOST_SHARED}")
        loads = -(-tile // (MAX_PACK_BYTES * self.block_size))
        held = max(self.held(problem), 4 * loads)
        self.require_registers(held, registers.TILES.of(problem, 1), 1, self.block_size, arch)

    def fused(self, problem: Problem) -> bool:
        """Return whether one FMA, and not two instructions, makes the exponent of an element.

        It rounds alike what has one maximum: the parts of several threads would not fit each other.
        """
        return self.threads_per_row == 1 and not problem.hooks and problem.out_dtype.itemsize <= 2

    def tile_bytes(self, problem: Problem) -> int:
        """Return the size of a block's elements of an input."""
        return self.outers * problem.layout.step * problem.cols * problem.dtype.itemsize

    def rounds(self, problem: Problem) -> int:
        """Return how many rows a thread has, one after another."""
        threads = self.outers * problem.layout.step * self.threads_per_row
        return -(-threads // self.block_size)

    def part(self, problem: Problem) -> int:
        """Return the columns that the threads of a row have in one round."""
        return self.threads_per_row

    def launch(self, problem: Problem) -> Launch:
        """Return the launch shape: a tile, and parts where threads share rows."""
        rows = self.outers * problem.layout.step
        parts = rows * self.threads_per_row if self.threads_per_row > 1 else 0
        shared = inputs_of(problem) * self.tile_bytes(problem) + parts * problem.part_bytes
        return Launch(self.block_size, rows, static_shared_bytes=shared, strides=False)

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield blocks that are as full as whole packs allow, where inner is small."""
        inner, pack = problem.layout.step, problem.dtype.max_pack
        if inner == 1 and not cls._is_cut(problem):
            return
        if inner > (MOST_ODD_INNER if cls._is_narrow(problem) else MOST_INNER):
            return
        unit = MAX_PACK_BYTES // math.gcd(
            MAX_PACK_BYTES, inner * problem.cols * problem.dtype.itemsize
        )
        found = [
            cls(pack, -(-problem.cols // sharers), sharers, outers, block)
            for sharers in SHARERS
            for block in BLOCKS
            for rounds in ROUNDS
            if (outers := rounds * (block // (inner * sharers)) // unit * unit)
            and (rounds == 1 or cls._is_light(problem, rounds))
        ]
        legal = [setting for setting in found if setting.keeps_rules(problem, arch)]
        held = [s._turned(problem) for s in legal if s.held(problem) <= MOST_HELD]
        yield from sorted(held, key=lambda s: s.rank(problem, rows, arch))

    def _turned(self, problem: Problem) -> Tiles:
        """Return this setting with the `apart` whose warps meet in the fewest banks."""
        turned = [self.with_knobs(apart=step) for step in APART if self.outers % step == 0]
        return min(turned, key=lambda s: s._wavefronts(problem))

    def _wavefronts(self, problem: Problem) -> int:
        """Return how many accesses to shared memory one load of a warp takes."""
        sharing, size = self.threads_per_row * problem.layout.step, problem.dtype.itemsize
        of_outer = problem.layout.step * problem.cols * size
        return _wavefronts(self.outers, self.apart, sharing, of_outer, size)

    @staticmethod
    def _is_light(problem: Problem, rounds: int) -> bool:
        """Whether a thread moves so many rows in at most four packs."""
        return rounds * problem.cols * problem.dtype.itemsize <= 4 * MAX_PACK_BYTES

    def held(self, problem: Problem) -> int:
        """Return the registers of a thread that hold elements."""
        of_input = self.cols_per_thread * problem.compute_dtype.itemsize // 4
        return inputs_of(problem) * of_input

    def rank(self, problem: Problem, rows: int, arch: Arch) -> float:
        """Order candidates: few idle threads, small blocks, a thread a row, banks for all."""
        rounds = self.rounds(problem)
        used = self.outers * problem.layout.step * self.threads_per_row / self.block_size / rounds
        moved = self.tile_bytes(problem) / self.block_size
        score = IDLE * (1 - used) + SHARING.above(self.threads_per_row)
        score += THREADS.away(self.block_size) + WAVEFRONT * self._wavefronts(problem)
        return score + MOVED.below(moved) + HELD.above(self.held(problem))

    @classmethod
    def estimate(cls, problem: Problem, rows: int, arch: Arch) -> float:
        """The copy's time where packs along inner are less than a sector or two."""
        size = problem.dtype.itemsize
        if problem.layout.step == 1:
            short = problem.cols * size < MAX_PACK_BYTES or problem.alignment * size <= 2
            return OF_SHORT_ROWS if short else OF_OTHER_ROWS
        if problem.cols <= FEW_COLS:
            return OF_FEW_COLS
        small = problem.layout.step * size <= SMALL_INNER or cls._is_narrow(problem)
        return OF_SMALL_INNER if small else OF_LARGE_INNER

    @classmethod
    def _is_cut(cls, problem: Problem) -> bool:
        """Whether rows are short, and shorter than a pack or not whole packs."""
        row = problem.cols * problem.dtype.itemsize
        return row <= LONGEST_ROW and (row < MAX_PACK_BYTES or cls._is_narrow(problem))

    @staticmethod
    def _is_narrow(problem: Problem) -> bool:
        """Whether accesses along inner are less than 16 bytes."""
        return problem.alignment * problem.dtype.itemsize < MAX_PACK_BYTES


@functools.cache
def _wavefronts(outers: int, apart: int, sharing: int, of_outer: int, size: int) -> int:
    """Return how many accesses to shared memory one load of the first warp takes.

    A bank is a word of each 128 bytes; it gives one word at a time, to all who want that word.

    Args:
        outers: outer indices of a block.
        apart: see `Tiles.apart`.
        sharing: threads side by side that have elements of one.
        of_outer: its bytes.
        size: bytes of an element.
    """
    each = outers // apart
    words: set[int] = set()
    for nth in range(min(-(-WARP_SIZE // sharing), outers)):
        begin = (nth % each * apart + nth // each) * of_outer
        end = begin + min(sharing, WARP_SIZE - nth * sharing) * size
        words.update(range(begin // 4, (end + 3) // 4))
    banks = [0] * WARP_SIZE
    for word in words:
        banks[word % WARP_SIZE] += 1
    return max(banks)
