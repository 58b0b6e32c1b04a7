"""What strategies share that reduce columns of memory: the layout Columns, (outer, cols, inner).

The threads of a block are a grid: `threads_across` of them side by side along inner, each with a
pack of adjacent rows, and the others behind each other along the axis. Rows are numbered through,
so a block may have the last rows of one outer index and the first of the next. What the threads of
a row find is combined in up to three steps: over the lanes of a warp, over the warps of a block,
and over the blocks of a cluster (templates/lib/columns/).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from softgen.problems.arch import KIB, WARP_SIZE, Arch
from softgen.problems.layouts import Columns
from softgen.problems.problem import Problem
from softgen.strategies import registers
from softgen.strategies.base import PACK_SIZES, Feature, Strategy, knob
from softgen.strategies.launch import Launch

ACROSS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CLUSTERS = (1, 2, 4, 8, 16)
BLOCKS = (64, 128, 256, 512, 1024)
MOST_SHARED = 48 * KIB  # static

# A thread combines at most so many parts of its rows itself, which saves a barrier.
MOST_PARTS_OF_A_THREAD = 16


def inputs_of(problem: Problem) -> int:
    """Return how many inputs have an element a column."""
    return len(problem.element_inputs)


def sums_in_place(problem: Problem) -> bool:
    """Whether a thread that holds elements can sum their terms.

    It can where there is one input, or where parts are sums. Parts with a maximum that come from
    two inputs are only added up by a walk.
    """
    return inputs_of(problem) == 1 or not problem.function.part.has_maximum


@dataclass(frozen=True)
class Columnar(Strategy):
    """Base of strategies whose threads hold or walk packs of adjacent rows."""

    layouts = (Columns,)
    takes = frozenset({Feature.MORE_INPUTS, Feature.SUMS, Feature.HOOKS, Feature.FLOAT8})
    triggers = True

    pack_size: int = knob("p", "adjacent rows moved by one load or store")
    threads_across: int = knob("w", "threads side by side, a pack of rows each")
    block_size: int = knob("b", "threads in a block")

    @property
    def blocks_of_a_row(self) -> int:
        """The blocks of the cluster that shares a row; 1 without one."""
        return int(getattr(self, "cluster_size", 1))

    @property
    def threads_along(self) -> int:
        """The threads of a block behind each other along the axis."""
        return self.block_size // self.threads_across

    @property
    def rows_of_a_block(self) -> int:
        """The rows side by side that a block reduces."""
        return self.threads_across * self.pack_size

    @property
    def stride(self) -> int:
        """The threads of all blocks along the axis, and how far apart a thread's columns are."""
        return self.blocks_of_a_row * self.threads_along

    @property
    def folds(self) -> bool:
        """Whether lanes of a warp have the same rows, and combine what they found."""
        return self.threads_across < WARP_SIZE and self.threads_along > 1

    @property
    def warp_parts(self) -> int:
        """The parts of a row in a block, once the lanes of each warp are combined."""
        return self.block_size // max(self.threads_across, WARP_SIZE)

    @property
    def alone(self) -> bool:
        """Whether the lanes of one warp have a whole row, so that nothing goes through memory."""
        return self.warp_parts == 1 and self.blocks_of_a_row == 1

    @property
    def direct(self) -> bool:
        """Whether each thread combines all parts that its block has of the thread's rows."""
        parts = self.warp_parts * self.pack_size
        return self.blocks_of_a_row == 1 and parts <= MOST_PARTS_OF_A_THREAD

    @property
    def sharers(self) -> int:
        """The adjacent lanes that combine the parts of a row in a cluster, a power of two.

        One thread a row would combine those of 16 warps and of 16 blocks one after another.
        """
        if self.blocks_of_a_row == 1:
            return 1
        most = min(WARP_SIZE, self.blocks_of_a_row, self.block_size // self.rows_of_a_block)
        return math.gcd(self.warp_parts, 1 << max(0, most.bit_length() - 1))

    @property
    def lanes_idle(self) -> bool:
        """Whether there are lanes without a row where lanes share the parts of one."""
        return self.sharers > 1 and self.sharers * self.rows_of_a_block < self.block_size

    @property
    def needs(self) -> tuple[int, int]:
        """The first compute capability that has the instructions of this setting."""
        return (9, 0) if self.blocks_of_a_row > 1 else (7, 5)

    def slot_bytes(self, problem: Problem) -> int:
        """Return the static shared memory of a block: parts of its warps, of its cluster's."""
        if self.alone or not problem.function.reduces:
            return 0
        blocks = self.blocks_of_a_row
        slots = self.warp_parts + (blocks if blocks > 1 else 0)
        return slots * self.rows_of_a_block * problem.part_bytes + 8 * (blocks > 1)

    def require_pack_of_rows(self, problem: Problem) -> None:
        """Raise IllegalVariantError unless one access can move a pack of adjacent rows."""
        self.require(self.pack_size in PACK_SIZES, f"pack_size must be one of {PACK_SIZES}")
        self.require(
            self.pack_size <= problem.alignment,
            f"packs of {self.pack_size} where rows start on {problem.alignment} elements",
        )

    def check_grid(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless blocks, packs and clusters are possible."""
        require = self.require
        self.require_cluster(self.blocks_of_a_row, arch)
        require(self.blocks_of_a_row in CLUSTERS, f"cluster_size must be one of {CLUSTERS}")
        self.require_pack_of_rows(problem)
        self.require_block(self.block_size)
        require(self.threads_across in ACROSS, f"threads_across must be one of {ACROSS}")
        require(
            self.block_size % self.threads_across == 0,
            f"block_size must be a multiple of threads_across ({self.threads_across})",
        )
        shared = self.slot_bytes(problem)
        require(
            shared <= MOST_SHARED,
            f"the parts of a block take {shared} bytes of shared memory, of {MOST_SHARED}",
        )

    def overrun(self, problem: Problem) -> int:
        """Return the columns that all threads of a row load at once, and those of two steps."""
        return self.stride * max(2, getattr(self, "unroll", 1), getattr(self, "cols_per_thread", 1))

    def launch(self, problem: Problem) -> Launch:
        """Return the launch shape: so many rows a block or cluster, and their parts."""
        return Launch(
            self.block_size,
            rows_per_block=self.rows_of_a_block,
            static_shared_bytes=self.slot_bytes(problem),
            cluster_size=self.blocks_of_a_row,
            strides=False,
        )

    def part(self, problem: Problem) -> int:
        """Return the columns that all blocks of a cluster have in one round, else 0."""
        return self.stride if self.blocks_of_a_row > 1 else 0

    @staticmethod
    def packs_worth_trying(problem: Problem) -> list[int]:
        """Return the widest packs that rows allow, and half of that where it is 4 bytes or more.

        Hooks of rows take registers for each row of a pack: then single elements too.
        """
        widest = min(problem.alignment, problem.dtype.max_pack)
        found = [p for p in (widest, widest // 2) if p * problem.dtype.itemsize >= 4 or p == widest]
        single = 1 not in found and registers.of_hooks(problem, 2) > registers.of_hooks(problem)
        return [*found, 1] if single else found
