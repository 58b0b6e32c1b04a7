"""thread: one row per thread, for narrow rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from softgen import Arch, Problem, register
from softgen.strategies import Launch, Strategy, knob


@dataclass(frozen=True)
class Thread(Strategy):
    """One row per thread, read twice."""

    name = "thread"
    summary = "a row a thread, two passes"

    block_size: int = knob("b", "threads in a block")

    def check(self, problem: Problem, arch: Arch) -> None:
        self.require_block(self.block_size)
        self.require(problem.cols <= 1024, "one thread sums at most 1024 columns accurately")

    def launch(self, problem: Problem) -> Launch:
        return Launch(self.block_size, rows_per_block=self.block_size, static_shared_bytes=0)

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        if cls(block_size=128).is_legal(problem, arch):
            yield cls(block_size=128)

    @classmethod
    def estimate(cls, problem: Problem, rows: int, arch: Arch) -> float:
        return 3.0  # expected time over that of a copy


register(Thread, templates=Path(__file__).parent / "templates")
