"""Columns of memory in two passes: (max, sum) pairs of a strip of rows, then their results.

Source: algorithm 3 of Milakov & Gimelshein (arXiv 1805.02867), for rows that lie side by side. A
strip is what a block, or a cluster of blocks, has: some rows with all of their columns. The second
pass reads it from the L2 cache as long as all strips that are under way fit there, so strips are
narrow, and the blocks of a cluster share one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from softgen.problems.arch import Arch
from softgen.problems.problem import Problem
from softgen.strategies import registers
from softgen.strategies.base import MOST_UNROLL, Feature, Strategy, knob
from softgen.strategies.columnar import (
    ACROSS,
    CLUSTERS,
    Columnar,
    inputs_of,
)

UNROLLS = (1, 2, 4, 8)
BLOCKS = (128, 256, 512, 1024)

CACHED = 0.6  # of the L2 cache for strips; the results pass through it too


@dataclass(frozen=True)
class Strips(Columnar):
    """A strip of adjacent rows per block or cluster, read twice."""

    name = "strips"
    summary = "columns of memory in two passes over a strip of rows, the second from L2; any length"

    takes = Columnar.takes | {
        *(Feature.PLACES, Feature.ENDS, Feature.GIVEN_PAIRS, Feature.PARTS),
    }

    unroll: int = knob("u", "columns that a thread loads before it uses the first", unnamed=1)
    cluster_size: int = knob("k", "blocks that share a row", default=1)

    def describe(self, problem: Problem) -> str:
        """Return what the file of `problem` does, for its header."""
        blocks = f"a cluster of {self.cluster_size} blocks" if self.cluster_size > 1 else "a block"
        passes = "in two passes" if self._reads_twice(problem) else "in one pass"
        return f"{blocks} walks along {self.rows_of_a_block} rows {passes}"

    def check(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless packs and unrolled loads fit a thread."""
        self.check_grid(problem, arch)
        self.require(1 <= self.unroll <= MOST_UNROLL, f"unroll must be from 1 to {MOST_UNROLL}")
        of_input = self.pack_size * self.unroll * problem.compute_dtype.itemsize // 4
        held, others = inputs_of(problem) * of_input, registers.STRIPS.of(problem, self.pack_size)
        if not problem.function.reduces:
            others += registers.GIVEN[problem.compute_dtype]
        self.require_registers(held, others, 1, self.block_size, arch)

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield strips of 32 bytes and more whose threads all have columns."""
        least = min(32, rows * problem.dtype.itemsize)
        found = [
            cls(pack, across, block, unroll, cluster)
            for pack in cls.packs_worth_trying(problem)
            for across in ACROSS
            if least <= pack * across * problem.dtype.itemsize <= 512
            for block in BLOCKS
            if block >= across
            for cluster in CLUSTERS
            if block // across * cluster <= max(problem.cols, 32)
            for unroll in UNROLLS
            if unroll == 1 or unroll * (block // across) * cluster <= problem.cols
        ]
        legal = [setting for setting in found if setting.keeps_rules(problem, arch)]
        yield from sorted(legal, key=lambda s: s.rank(problem, rows, arch))

    def rank(self, problem: Problem, rows: int, arch: Arch) -> float:
        """Order candidates: strips that stay in L2, 64 bytes a line, a block for every SM."""
        line = inputs_of(problem) * self.rows_of_a_block * problem.dtype.itemsize
        strips = max(1.0, rows / self.rows_of_a_block)
        resident = arch.multiprocessors * arch.threads_per_multiprocessor / 2 / self.block_size
        under_way = min(strips, max(1.0, resident / self.cluster_size)) * problem.cols * line
        score = (
            1.0 * max(0.0, math.log2(under_way / (CACHED * arch.l2_bytes)))
            if self._reads_twice(problem)
            else 0.0
        )
        score += 0.4 * max(0.0, math.log2(64 / line)) + 0.1 * max(0.0, math.log2(line / 128))
        score += 0.8 * max(0.0, math.log2(arch.multiprocessors / (strips * self.cluster_size)))
        bytes_at_once = self.unroll * self.pack_size * problem.dtype.itemsize
        score += 0.2 * abs(math.log2(bytes_at_once / 64)) + 0.1 * math.log2(self.cluster_size)
        return score + 0.1 * abs(math.log2(self.block_size / 512))

    @classmethod
    def estimate(cls, problem: Problem, rows: int, arch: Arch) -> float:
        """Two reads, the second from L2; one where no elements are written, or pairs are given.

        Where an axis is long, registers of large clusters are no sure winner.
        """
        if not cls._reads_twice(problem):
            return 1.1
        return 1.3 if problem.cols > 2048 else 1.5

    @staticmethod
    def _reads_twice(problem: Problem) -> bool:
        return problem.writes_elements and problem.function.reduces
