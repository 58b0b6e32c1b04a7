"""A row cut into chunks for many blocks, in one launch: for few rows, or columns in the millions.

The first blocks reduce every chunk of a row to its (max, sum) pair; the next ones, while further
blocks reduce the next row, read each chunk again and write its results. A block only ever waits for
blocks before it, which the GPU starts first, so no two of them have to be resident together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from softgen.problems.arch import WARP_SIZE, Arch
from softgen.problems.dtypes import DType
from softgen.problems.layouts import Rows, Strided
from softgen.problems.problem import Problem
from softgen.strategies import registers
from softgen.strategies.base import Feature, Strategy, knob
from softgen.strategies.launch import Launch, blocks_in_registers
from softgen.strategies.sliced import Sliced

COUNTER_BYTES = 4  # chunks of a row that are written

# Every writer combines the pairs of all chunks: 4096 of them made 4 x 16777216 float32 1.6 times
# slower than 1024 on an H200, and 1024 made 1 x 4194304 1.2 times slower than 256 (16147d3a).
FEW_CHUNKS = 512

# Estimates, fitted on an H200 (16147d3a): of long or few rows, and of others. Where rows are only
# read logsumexp took 1.13 of a read at bfloat16 4096 x 128256, 1.7 at 8 x 128256 (bd70f401).
LONG_ROW, FEW_ROWS = 65536, 0.1  # columns; rows for each SM
OF_FAVOURED, OF_OTHERS = 1.55, 1.65
OF_READS, OF_READS_OF_FEW = 1.15, 1.3


@dataclass(frozen=True)
class Split(Sliced):
    """Chunks of a row per block, each read twice; the second read comes from L2 where it can."""

    name = "split"
    summary = "a row cut into chunks, reduced and then written by as many blocks as there are"
    takes = Sliced.takes - {Feature.PICKS, Feature.TOPS, Feature.RANKS}
    cuts_sums = True
    loads_to_end = True
    layouts = (Rows, Strided)

    block_size: int = knob("b", "threads in a block")
    min_blocks: int = knob("m", "blocks that an SM must hold; caps the registers")
    reverse: bool = knob("rev", "whether chunks are written last one first", constant=False)

    writes_early = True

    def check(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless a chunk fits the registers of a block."""
        require = self.require
        self.require_pack(self.pack_size, problem)
        self.require_alike(self.pack_size, problem)
        self.require_block(self.block_size)
        self.require_cols_per_thread(self.cols_per_thread, self.pack_size)
        if problem.compute_dtype is DType.FLOAT64:
            held, most = self.element_registers(problem), self.most_of_float64(arch)
            require(
                held <= most,
                f"a thread would hold {held} registers of float64; at most {most} do not spill on "
                f"{arch.name}",
            )
        held, others = self.element_registers(problem), self.other_registers(problem)
        self.require_registers(held, others, self.min_blocks, self.block_size, arch)
        require(2 * self.chunks(problem) < 2**31, "a grid has fewer than 2**31 blocks, two a chunk")

    def chunks(self, problem: Problem) -> int:
        """Return the number of chunks of a row."""
        packs_per_chunk = self.cols_per_thread // self.pack_size * self.block_size
        return -(-self.row_packs(problem) // packs_per_chunk)

    def slices(self, problem: Problem) -> int:
        """Return into how many slices a row is cut: its chunks."""
        return self.chunks(problem)

    @property
    def slice_threads(self) -> int:
        """The threads to which the packs of a slice are dealt in turn."""
        return self.block_size

    @staticmethod
    def most_of_float64(arch: Arch) -> int:
        """Return the registers that may hold elements in float64, whose exp wants many.

        Of 255 registers 128 for elements spilled 32 to 48 bytes on sm_90, and 64 spilled 48 bytes
        on sm_120.
        """
        return 32 if arch.compute_capability >= (12, 0) else 64

    def part(self, problem: Problem) -> int:
        """Return the columns of a chunk."""
        return self.cols_per_thread * self.block_size

    def launch(self, problem: Problem) -> Launch:
        """Return the launch shape: a task a chunk to reduce, one to write, a block a task."""
        chunks = self.chunks(problem)
        return Launch(
            self.block_size,
            rows_per_block=1,
            # Where rows are only read there is also one bool.
            static_shared_bytes=self.block_size // WARP_SIZE * problem.part_bytes
            + (not problem.writes_elements),
            blocks_per_row=2 * chunks if problem.writes_elements else chunks,
            workspace_bytes_per_row=COUNTER_BYTES + chunks * problem.part_bytes,
            strides=False,
        )

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield chunks of 4 or 8 packs a thread (2 or 4 where a pack is 16 float64 registers).

        For rows of three chunks or more.
        """
        pack = cls.widest_pack(problem)
        words = problem.compute_dtype.itemsize // 4
        found = []
        for packs in (4, 2) if pack * words == 16 else (8, 4):  # 8 of those spill
            for block in (128, 256, 512) if words == 1 else (128, 256):  # 512 spill float64
                setting = cls(pack, packs * pack, block, 1, True)
                need = setting.element_registers(problem) + setting.other_registers(problem)
                full = blocks_in_registers(need, block, arch)
                if words > 1:  # float64 spills at 128 registers
                    full = 1
                for reverse in (True, False) if problem.writes_elements else (False,):
                    setting = cls(pack, packs * pack, block, full, reverse)
                    if setting.keeps_rules(problem, arch) and setting.chunks(problem) > 2:
                        found.append(setting)
        yield from sorted(found, key=lambda s: max(FEW_CHUNKS, s.chunks(problem)))

    def other_registers(self, problem: Problem) -> int:
        """Return the registers of a thread beside those, with which ptxas does not spill."""
        return super().other_registers(problem) + registers.TASK

    @classmethod
    def estimate(cls, problem: Problem, rows: int, arch: Arch) -> float:
        """Two reads and a write, or one read, on the whole GPU whatever the rows."""
        if not problem.writes_elements:
            return OF_READS if rows >= arch.multiprocessors else OF_READS_OF_FEW
        few_rows = rows < FEW_ROWS * arch.multiprocessors
        return OF_FAVOURED if problem.cols > LONG_ROW or few_rows else OF_OTHERS
