"""One thread a row in three loops: the first step of the ladder, for teaching and comparison.

Source: "safe softmax", algorithm 2 of Milakov & Gimelshein (arXiv 1805.02867), run by one thread.
The first kernel of FastSoftmax (SzymonOzog) even repeats the first two loops in a thread for each
result, which cannot work in place: its threads read elements that others have replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from softgen.problems.arch import Arch
from softgen.problems.problem import Problem
from softgen.strategies.base import Lesson, Strategy, knob
from softgen.strategies.launch import Launch


@dataclass(frozen=True)
class Serial(Lesson):
    """One row per thread, read three times."""

    name = "serial"
    summary = "one thread a row, three loops; the naive kernel, for comparison"

    block_size: int = knob("b", "threads in a block")

    def check(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless the block is whole warps."""
        self.require_block(self.block_size)

    def launch(self, problem: Problem) -> Launch:
        """Return the launch shape: as many rows a block as it has threads."""
        return Launch(self.block_size, self.block_size, static_shared_bytes=0)

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield a warp a block, which spreads few rows over the most SMs, and four."""
        yield from (cls(32), cls(128))
