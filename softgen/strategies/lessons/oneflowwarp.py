"""OneFlow's kernel for narrow rows: a row in the registers of 1 to 32 lanes.

Source: oneflow/core/cuda/softmax.cuh of Oneflow-Inc/oneflow at commit 25c8978 (SoftmaxWarpImpl and
what chooses its parameters), written anew. Its article, "How to implement an efficient softmax CUDA
kernel", names the parameters. `warp` is softgen's kernel of that kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from softgen.problems.arch import MAX_GRID, WARP_SIZE, Arch
from softgen.problems.dtypes import DType
from softgen.problems.problem import Problem
from softgen.strategies.base import Lesson, Strategy, knob
from softgen.strategies.launch import Launch
from softgen.strategies.lessons.oneflowblock import (
    computes,
    exponent_error,
    pack_size,
    require_one_of_its_packs,
    waves,
)

BLOCK_SIZE = 128
GROUP_WIDTHS = (1, 2, 4, 8, 16, 32)

# Elements of a row that OneFlow gives to a lane at most.
MOST_COLS_PER_THREAD = 32


@dataclass(frozen=True)
class OneflowWarp(Lesson):
    """One or two rows per group of lanes, in registers, by packs of one or two elements."""

    name = "oneflowwarp"
    summary = "OneFlow's kernel of a row in the registers of 1 to 32 lanes"

    pack_size: int = knob("p", "elements moved by one load or store")
    cols_per_thread: int = knob("c", "elements of a row that a lane holds")
    thread_group_width: int = knob("g", "lanes that share a row")
    rows_per_access: int = knob("r", "rows that a thread group holds at once")
    padding: bool = knob(
        "pad", "whether the group covers more columns than the row has", constant=False
    )
    block_size: int = knob("b", "threads in a block")
    blocks: int = knob(
        "n", "blocks of the largest grid, which stride over the rows", constant=False
    )

    @classmethod
    def computes(cls, problem: Problem) -> bool:
        """Whether OneFlow's header has the function."""
        return super().computes(problem) and computes(problem)

    def check(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless the group covers the row by whole packs."""
        require, width = self.require, self.thread_group_width
        require_one_of_its_packs(self, self.pack_size, problem)
        self.require_cols_per_thread(self.cols_per_thread, self.pack_size)
        require(
            problem.compute_dtype is DType.FLOAT32, "OneFlow holds no row of float64 in registers"
        )
        require(
            self.cols_per_thread <= MOST_COLS_PER_THREAD,
            f"a lane holds {MOST_COLS_PER_THREAD} elements of a row at most",
        )
        require(width in GROUP_WIDTHS, "thread_group_width must be a power of two up to 32")
        require(self.rows_per_access in (1, 2), "rows_per_access must be 1 or 2")
        require(
            self.rows_per_access == 1 or self.cols_per_thread == self.pack_size,
            "rows_per_access=2 is for rows of one pack a lane",
        )
        covered = self.cols_per_thread * width
        require(
            covered > problem.cols if self.padding else covered == problem.cols,
            f"the group covers {covered} columns, and must cover "
            + (f"more than {problem.cols} with padding" if self.padding else f"{problem.cols}"),
        )
        self.require_block(self.block_size)
        require(1 <= self.blocks <= MAX_GRID, f"blocks must be from 1 to {MAX_GRID}")

    def exponent_error(self, problem: Problem) -> float:
        """Return that of OneFlow's exponent."""
        return exponent_error(problem)

    def launch(self, problem: Problem) -> Launch:
        """Return the launch shape: as many thread groups as fit the block, no shared memory."""
        groups = self.block_size // self.thread_group_width
        return Launch(
            self.block_size,
            groups * self.rows_per_access,
            static_shared_bytes=0,
            most_blocks=self.blocks,
        )

    @classmethod
    def chosen(cls, problem: Problem, rows: int, arch: Arch) -> OneflowWarp:
        """Return what OneFlow launches for `rows` rows of up to 1024 columns.

        A narrow row takes one pack a lane on the fewest lanes, two rows at a time if their number
        is even. A wider one takes all 32 lanes and the fewest packs, one row at a time.
        """
        pack = pack_size(problem)
        for width in GROUP_WIDTHS:
            if problem.cols <= width * pack:
                return cls._of(problem, pack, pack, width, 2 - rows % 2, arch)
        packs = -(-problem.cols // (WARP_SIZE * pack))
        return cls._of(problem, pack, packs * pack, WARP_SIZE, 1, arch)

    @classmethod
    def _of(
        cls, problem: Problem, pack: int, each: int, width: int, rows_at_once: int, arch: Arch
    ) -> OneflowWarp:
        padding = each * width != problem.cols
        return cls(pack, each, width, rows_at_once, padding, BLOCK_SIZE, waves(BLOCK_SIZE, arch))

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield OneFlow's choice, then the one for the other parity of the number of rows."""
        both = (cls.chosen(problem, rows, arch), cls.chosen(problem, rows + 1, arch))
        yield from dict.fromkeys(s for s in both if s.keeps_rules(problem, arch))
