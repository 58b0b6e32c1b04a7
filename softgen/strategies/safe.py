"""One block a row in three passes: maximum, sum, result. Any size, any alignment, nothing clever.

Source: "safe softmax", algorithm 2 of Milakov & Gimelshein, Online normalizer calculation for
softmax (arXiv 1805.02867). The tuner checks every other candidate against this kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from softgen.problems.arch import WARP_SIZE, Arch
from softgen.problems.layouts import AnyWidth, Columns, Rows, Strided
from softgen.problems.problem import Problem
from softgen.strategies.base import Feature, Strategy, knob
from softgen.strategies.choice import board_bytes, rank_bytes
from softgen.strategies.launch import Launch

# What a function itself may know of a row: with 16 ids 1024 threads spilled 64 bytes in float64.
MOST_OWN_REGISTERS = 32

FILTER_DIGITS = 15  # that a warp counts where elements are filtered

# Estimates: four accesses of an element for two; of columns, where each load of 4 bytes moves a
# sector of 32, fitted (0d5c02c7).
OF_ROWS, OF_COLUMNS = 4.0, 30.0


@dataclass(frozen=True)
class Safe(Strategy):
    """One row per block, read three times, one element per load."""

    name = "safe"
    summary = "one block a row, three passes; any size and alignment; the oracle of the tuner"
    takes = frozenset(Feature)
    loads_ignored = True
    layouts = (Rows, Strided, Columns, AnyWidth)

    block_size: int = knob("b", "threads in a block")

    def check(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless the block is whole warps."""
        self.require_block(self.block_size)
        self.require(
            not (problem.function.groups and isinstance(problem.layout, AnyWidth)),
            "groups must divide the columns, of which a launch says how many there are",
        )

    def describe(self, problem: Problem) -> str:
        """Return how often a row is read, for the header of a file."""
        function = problem.function
        finds = (1 + function.part.has_maximum) if function.reduces else 0
        passes = ("one pass", "two passes", "three passes")[finds + problem.writes_elements - 1]
        return f"one block a row, {passes}; the oracle of the tuner"

    def launch(self, problem: Problem) -> Launch:
        """Return the launch shape: a row a block, one partial result per warp in shared memory.

        Where nothing is found of a row warps exchange nothing.
        """
        warps = self.block_size // WARP_SIZE if problem.function.reduces else 0
        number, function = problem.compute_dtype.itemsize, problem.function
        shared = warps * number
        if function.part.draws:
            board = function.filtered * 4 * FILTER_DIGITS * (warps + 1)
            shared += warps * problem.part_bytes + board
        if function.part.chooses:
            shared = shared * function.sums + board_bytes(problem, self, self.block_size)
            shared += rank_bytes(problem, self.block_size // WARP_SIZE)
        return Launch(self.block_size, 1, static_shared_bytes=shared)

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield 1024 threads for long rows, 256 for the others.

        As few as 32 where rows lie side by side: those may be millions, of a few columns each.
        """
        if problem.layout.step > 1 and problem.cols <= 128:
            found = cls(32)
        else:
            own = sum(hook.registers(problem.compute_dtype) for hook in problem.function.modifiers)
            found = cls(1024 if problem.cols > 4096 and own <= MOST_OWN_REGISTERS else 256)
        if found.keeps_rules(problem, arch):
            yield found

    @classmethod
    def estimate(cls, problem: Problem, rows: int, arch: Arch) -> float:
        """Three reads and a write instead of one of each, in scalar loads."""
        return OF_ROWS if problem.layout.step == 1 else OF_COLUMNS
