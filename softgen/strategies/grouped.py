"""Columns of memory that groups of resident blocks share, and packs that cross the end of inner.

The blocks of a group have some adjacent rows together, and each has some of their columns. Where no
pack of 16 bytes divides inner, packs cross its end, as in `bands`: a group then has all rows of an
outer index, and what is a column to it is a band of columns. Either is a line: packs of memory that
lie side by side, one of each thread across.
"""

from __future__ import annotations

from dataclasses import dataclass

from softgen.problems.arch import WARP_SIZE
from softgen.problems.problem import Problem
from softgen.strategies.bands import band_packs
from softgen.strategies.columnar import Columnar

COUNTER_BYTES = 4  # of a row in the workspace: blocks that have read what it has in all
MOST_PLAIN_TERMS = 512  # of a thread: sums of more lose to rounding what counts


@dataclass(frozen=True)
class Grouped(Columnar):
    """Base of strategies whose groups of blocks share adjacent rows."""

    alone = False

    def flat(self, problem: Problem) -> bool:
        """Whether packs cross the end of inner."""
        return problem.layout.step % self.pack_size != 0

    def rows_shared(self, problem: Problem) -> int:
        """Return the rows that the blocks of a group share."""
        return problem.layout.step if self.flat(problem) else self.rows_of_a_block

    def lines(self, problem: Problem) -> int:
        """Return the columns of a row, or the bands of an outer index; the last may be cut."""
        if not self.flat(problem):
            return problem.cols
        return -(-problem.cols * problem.layout.step // self.rows_of_a_block)

    @property
    def folds(self) -> bool:
        """Whether lanes of a warp have the same rows, and combine what they found."""
        return self.threads_across < WARP_SIZE and WARP_SIZE % self.threads_across == 0

    def require_bands(self, problem: Problem) -> None:
        """Raise IllegalVariantError unless an outer index is whole packs, and threads a band."""
        inner = problem.layout.step
        self.require_pack(self.pack_size, problem)
        band = band_packs(problem, self.pack_size)
        self.require(
            problem.cols * inner % self.pack_size == 0,
            f"{problem.cols * inner} elements of an outer index are no whole packs of "
            f"{self.pack_size}",
        )
        # Lanes of a warp would combine theirs, and not what a pack has of a row.
        self.require(
            self.pack_size % inner != 0,
            f"a pack of {self.pack_size} would have several columns of each of {inner} rows",
        )
        self.require(
            self.threads_across == band <= self.block_size and inner <= self.block_size,
            f"threads_across must be {band}, the packs of a band, where packs cross the end of "
            f"inner, and there must be a thread a row of {inner}",
        )

    def require_resident(self, group_size: int, groups: int, most: int, device: str) -> None:
        """Raise IllegalVariantError unless `device` holds all blocks of so many groups at once."""
        self.require(group_size > 0 and groups > 0, "group_size and groups must be positive")
        self.require(group_size * groups <= most, f"{device} holds {most} such blocks at once")
