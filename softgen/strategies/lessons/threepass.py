"""One block a row in three passes, with each refinement of FastSoftmax's ladder as a switch.

Source: FastSoftmax (SzymonOzog), kernels.cu. Its kernel 2 is the tree over stretches, 3 coalesced,
5 with packs, 6 with shuffles, 7 unrolled, and 9 the tree, with packs, unrolled. Its kernel 4 keeps
the tree in half the shared memory by overwriting slots that other warps may not have read yet: that
race is not rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from softgen.problems.arch import WARP_SIZE, Arch
from softgen.problems.problem import Problem
from softgen.strategies.base import Lesson, Strategy, knob
from softgen.strategies.launch import Launch
from softgen.strategies.registers import require_walk


@dataclass(frozen=True)
class Threepass(Lesson):
    """One row per block, read three times, by single elements or by packs."""

    name = "threepass"
    summary = "one block a row, three passes, each refinement a switch; for comparison"

    pack_size: int = knob("p", "elements moved by one load or store")
    unroll: int = knob("u", "packs that a thread loads before it uses the first")
    coalesced: bool = knob("co", "whether neighbouring threads load neighbours")
    shuffle: bool = knob("sh", "whether lanes exchange by shuffles", constant=False)
    block_size: int = knob("b", "threads in a block")

    def check(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless the walk fits a thread and the tree is a full one."""
        require_walk(self, self.pack_size, self.unroll, self.block_size, problem, arch)
        self.require(
            self.coalesced or self.by_element, "packs and unrolled loads must be coalesced"
        )
        self.require(
            self.shuffle or self.block_size & (self.block_size - 1) == 0,
            "a tree in shared memory takes a block_size that is a power of two",
        )
        self.require(
            self.shuffle or self.by_element or self.block_size <= 512,
            "a tree and packs spill with 1024 threads, which have 64 registers each",
        )

    @property
    def by_element(self) -> bool:
        """Whether a thread loads and stores its elements one by one."""
        return self.pack_size * self.unroll == 1

    def launch(self, problem: Problem) -> Launch:
        """Return the launch shape: a row a block; a slot of shared memory a warp, or a thread."""
        slots = self.block_size // (WARP_SIZE if self.shuffle else 1)
        return Launch(
            self.block_size, 1, static_shared_bytes=slots * problem.compute_dtype.itemsize
        )

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield the ladder from its end: packs with shuffles, then without, then single elements.

        Blocks and unrolling are those of FastSoftmax's search.
        """
        widest = problem.dtype.max_pack
        blocks = (256, 128, 512, 1024) if problem.cols <= 4096 else (1024, 512, 256, 128)
        for shuffle in (True, False):
            for pack, unroll in ((widest, 4), (widest, 2), (widest, 1), (1, 4)):
                for block in blocks:
                    setting = cls(pack, unroll, True, shuffle, block)
                    if setting.keeps_rules(problem, arch):
                        yield setting
        for coalesced, shuffle in ((True, True), (True, False), (False, True), (False, False)):
            for block in blocks:
                yield cls(1, 1, coalesced, shuffle, block)
