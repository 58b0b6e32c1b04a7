"""Columns of memory over resident blocks: for few rows, whose axis all SMs have to share.

Which settings are worth timing; what they are is in `spreading`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from softgen.problems.arch import KIB, Arch
from softgen.problems.dtypes import MAX_PACK_BYTES
from softgen.problems.problem import Problem
from softgen.strategies.bands import band_packs
from softgen.strategies.base import Strategy
from softgen.strategies.columnar import inputs_of
from softgen.strategies.spreading import KEPT_BYTES, Spreading

BLOCKS = (256, 512)
MOST_HELD = (64, 56, 48, 32, 16, 0)  # registers of elements, where they do not hold all
MOST_COLUMNS = 64  # in registers: each has instructions of its own
MOST_SPLITS = 3  # of columns into those in registers, in shared memory, and loaded again
BYTES_ON_THEIR_WAY = 48 * KIB  # of an SM, that keep memory busy
BYTES_OF_A_MICROSECOND = 4.2e6
# Of the speed, where blocks take parts of lines that begin anywhere. Axis 1 of (16, 1000000, 12)
# takes 225 us in float32 by 8 of the 12 rows of a line on an H100, and 79 by all; 287 and 204 in
# float64 (8d89dce3). Lines of whole LINE_BYTES begin on such.
CUT_LINES, LINE_BYTES = 0.4, 64
# Microseconds of an exchange: where one block combines for all, where each does; for a part read.
RELAYED, READ, EACH_PART = 2.3, 1.5, 0.003
LEAST_SLAB = 8 * KIB  # bytes of a block: below the exchange is all of its time
# Columns that a cluster holds, some of them in shared memory: axis 1 of (32, 32000, 64) takes 158
# us in float32 then, and 166 here; 329 and 418 in float64.
LONGEST_OF_CLUSTERS = 32 * KIB
FEW_TILES = 2  # times the SMs that rows of a block are; with more nothing need be shared so widely


@dataclass(frozen=True)
class Spread(Spreading):
    """Groups of resident blocks that share adjacent rows."""

    name = "spread"
    summary = (
        "columns of memory shared by resident blocks, in registers, shared memory and L2: few "
        "rows, long axes"
    )

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield groups that fill the GPU where rows are few."""
        found = [
            setting
            for pack, across in cls._grids(problem)
            for block in BLOCKS
            for setting in cls._filled(problem, rows, arch, pack, across, block)
        ]
        yield from sorted(found, key=lambda s: s.rank(problem, rows, arch))

    @classmethod
    def _grids(cls, problem: Problem) -> Iterator[tuple[int, int]]:
        """Yield packs and threads side by side: all of inner where it is short, else lines.

        Where packs along inner would be less than 16 bytes, also those that cross its end.
        """
        inner, widest = problem.layout.step, problem.dtype.max_pack
        if inner % widest and problem.cols * inner % widest == 0:
            yield widest, band_packs(problem, widest)
        for pack in cls.packs_worth_trying(problem):
            size = pack * problem.dtype.itemsize
            lines = [1 << i for i in range(8) if 16 <= size << i <= 256]
            whole = [inner // pack] if pack <= inner <= 256 else []
            for across in dict.fromkeys([*whole, *(w for w in lines if w * pack < inner)]):
                yield pack, across

    @classmethod
    def _filled(
        cls, problem: Problem, rows: int, arch: Arch, pack: int, across: int, block: int
    ) -> Iterator[Spread]:
        """Yield groups that take all SMs, with one block or two on each."""
        if across > block:
            return
        one = cls(pack, across, block, 1, 2, 1, 1)
        shared = one.rows_shared(problem)
        tiles = -(-rows // shared)
        if tiles > FEW_TILES * arch.multiprocessors or shared > block:
            return
        for full in (1, 2):
            blocks = arch.multiprocessors * full
            for groups in sorted({min(tiles, 1 << i) for i in range(5)}):
                size = blocks // groups
                setting = one.with_knobs(group_size=size, groups=groups, min_blocks=full)
                bytes_of_block = problem.cols * shared * problem.dtype.itemsize // max(1, size)
                if size < 2 or bytes_of_block < LEAST_SLAB:
                    continue
                if setting.stride <= setting.lines(problem):
                    yield from cls._holding(problem, arch, setting)

    @classmethod
    def _holding(cls, problem: Problem, arch: Arch, one: Spread) -> Iterator[Spread]:
        """Yield `one` with all columns in registers, else with as many as there is room for.

        Shared memory takes what registers do not hold.
        """
        wanted = -(-one.lines(problem) // one.stride)
        whole = one.with_knobs(cols_per_thread=wanted)
        if wanted <= MOST_COLUMNS and whole.keeps_rules(problem, arch):
            yield whole
            return
        word = max(1, one.pack_size * problem.dtype.itemsize // 4)
        room = (arch.shared_per_block // one.min_blocks - one.slot_bytes(problem) - KIB) // (
            inputs_of(problem) * one.block_size * 4 * word
        )
        staged = arch.compute_capability >= (8, 0) and 4 * word == MAX_PACK_BYTES
        found = 0
        for held in MOST_HELD:
            count = min(held // word, wanted)
            most = -(-(wanted - count) // one.at_once)
            shared = min(most, room // one.at_once) * one.at_once if staged else 0
            for unroll in (8, 4):
                if not shared:
                    count = max(1, count)
                some = one.with_knobs(cols_per_thread=count, cols_shared=shared)
                if some.walks(problem):
                    some = some.with_knobs(unroll=unroll)
                if some.keeps_rules(problem, arch) and found < MOST_SPLITS:
                    yield some
                    found += 1
                if not some.walks(problem):
                    break

    def rank(self, problem: Problem, rows: int, arch: Arch) -> float:
        """Return about the microseconds that an H200 takes: to move bytes, and to exchange parts.

        What is not held moves twice, unless L2 keeps it.
        """
        size = problem.dtype.itemsize * inputs_of(problem)
        shared = self.rows_shared(problem)
        tiles = -(-rows // shared)
        groups = min(self.groups, tiles)
        rounds = -(-tiles // groups)
        of_tile = problem.cols * shared * size
        kept = min(1.0, self.held_lines * self.stride / self.lines(problem))
        again = max(0.0, (1 - kept) * of_tile * groups - KEPT_BYTES) * tiles / groups
        threads = self.block_size * self.min_blocks
        ahead = self.unroll if self.walks(problem) else self.held_lines
        on_their_way = threads * self.pack_size * size * ahead
        line = size * (problem.layout.step if shared == problem.layout.step else shared)
        speed = BYTES_OF_A_MICROSECOND * min(1.0, on_their_way / BYTES_ON_THEIR_WAY) ** 0.15
        speed *= min(1.0, line / 256) ** 0.3 * min(1.0, threads / 512) ** 0.2
        speed *= groups * self.group_size / (arch.multiprocessors * self.min_blocks)
        speed *= (self.pack_size * problem.dtype.itemsize / MAX_PACK_BYTES) ** 0.2
        speed *= 0.98 ** (self.min_blocks - 1)
        whole = problem.layout.step
        cut = shared < whole and whole * problem.dtype.itemsize % LINE_BYTES
        speed *= CUT_LINES if cut else 1
        relays = self.relays(problem)
        parts = self.group_size * (1 if relays else shared)
        exchange = (RELAYED if relays else READ) + EACH_PART * parts
        found: float = (2 * tiles * of_tile + again) / speed + rounds * exchange
        return found

    @classmethod
    def estimate(cls, problem: Problem, rows: int, arch: Arch) -> float:
        """Little above a copy's time, where others have no blocks enough."""
        busy = rows * problem.dtype.itemsize / 64 * 8  # clusters of 8 with lines of 64 bytes
        if problem.cols > LONGEST_OF_CLUSTERS:
            return 1.15
        return 1.15 if problem.cols > 2048 and busy < arch.multiprocessors else 1.6
