"""What strategies share that hold slices of a row in registers (lib/row_slice.cuh.j2)."""

from __future__ import annotations

from dataclasses import dataclass

from softgen.arch import KIB
from softgen.problem import DType, Problem
from softgen.strategies.base import LINE_BYTES, OTHER_REGISTERS, Strategy, knob

# Where rows start anywhere, the packs of a row of this size or more are counted from the cache line
# in which it starts, so that a warp's accesses are whole lines: float32 4096 x 4099 took 1% less on
# an H200. In shorter rows the lanes before the row cost as much.
LONG_ROW = 8 * KIB

# What the cut packs of rows that start anywhere cost.
UNALIGNED_REGISTERS = {DType.FLOAT32: 4, DType.FLOAT64: 12}


@dataclass(frozen=True)
class Sliced(Strategy):
    """Base of strategies whose threads hold packs of one slice of a row each."""

    pack_size: int = knob("p", "elements moved by one load or store")
    cols_per_thread: int = knob("c", "elements of a row held by one thread")

    def line_packs(self, problem: Problem) -> int:
        """Return the packs of a cache line, in whose multiples long rows are cut; 1 for others.

        Rows that start on packs are counted from their first column, so for them it helps only
        where they start on cache lines too.
        """
        row = problem.cols * problem.dtype.itemsize
        anywhere = problem.alignment < self.pack_size
        in_lines = row >= LONG_ROW and (anywhere or row % LINE_BYTES == 0)
        return LINE_BYTES // (self.pack_size * problem.dtype.itemsize) if in_lines else 1

    def overhang(self, problem: Problem) -> int:
        """Return by how many elements a row may start behind its first pack."""
        if problem.alignment >= self.pack_size:
            return 0
        return self.line_packs(problem) * self.pack_size - problem.alignment

    def row_packs(self, problem: Problem) -> int:
        """Return the packs that cover a row wherever it starts."""
        return -(-(problem.cols + self.overhang(problem)) // self.pack_size)

    def element_registers(self, problem: Problem) -> int:
        """Return the 32-bit registers of a thread that hold elements."""
        return self.cols_per_thread * problem.compute_dtype.itemsize // 4

    def other_registers(self, problem: Problem) -> int:
        """Return the registers of a thread beside those, with which ptxas does not spill."""
        other = OTHER_REGISTERS[problem.compute_dtype]
        return other + UNALIGNED_REGISTERS[problem.compute_dtype] * (self.overhang(problem) > 0)
