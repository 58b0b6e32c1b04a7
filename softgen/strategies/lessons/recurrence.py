"""One block a row in two passes, with the online recurrence as its authors' kernel computes it.

Source: Milakov & Gimelshein, Online normalizer calculation for softmax (arXiv 1805.02867), section
3.1, and their benchmark (NVIDIA/online-softmax): an element is a pair (x, 1) like any part of a
row. Each one takes an exponential that waits for the one before; `online` folds a pack at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from softgen.problems.arch import WARP_SIZE, Arch
from softgen.problems.problem import Problem
from softgen.strategies.base import Lesson, Strategy, knob
from softgen.strategies.launch import Launch


@dataclass(frozen=True)
class Recurrence(Lesson):
    """One row per block, read twice, one element per load, each combined like a part of a row."""

    name = "recurrence"
    summary = "one block a row, two passes, a (max, sum) pair an element; for comparison"

    block_size: int = knob("b", "threads in a block")

    def check(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless the block is whole warps."""
        self.require_block(self.block_size)

    def launch(self, problem: Problem) -> Launch:
        """Return the launch shape: a row a block, one (m, d) pair per warp in shared memory."""
        warps = self.block_size // WARP_SIZE
        return Launch(
            self.block_size, 1, static_shared_bytes=2 * warps * problem.compute_dtype.itemsize
        )

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield 256 threads, and 1024 for long rows."""
        yield from (cls(256), cls(1024)) if problem.cols <= 4096 else (cls(1024), cls(256))
