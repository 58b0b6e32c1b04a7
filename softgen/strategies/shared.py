"""A row in the shared memory of one block, in its own dtype: each element is read once from memory.

OneFlow has such a kernel for rows above 1024 columns. This one makes no float32 copy of 16-bit
rows, and takes all the shared memory that a block may opt in to, not 48 KB. The row gets
there through registers, by cp.async or by a bulk copy; with several stages the next rows are on
their way while one is reduced.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from softgen.problems.arch import KIB, MAX_GRID, WARP_SIZE, Arch
from softgen.problems.dtypes import DType
from softgen.problems.layouts import Rows, Strided
from softgen.problems.problem import Problem
from softgen.strategies.base import Feature, Strategy, knob
from softgen.strategies.launch import Launch, before_dynamic, resident_blocks

PLAIN, ASYNC, BULK = range(3)
NEEDS = {ASYNC: (8, 0), BULK: (9, 0)}

WAYS = ((PLAIN, 1), (ASYNC, 1), (BULK, 1), (BULK, 2), (BULK, 3))  # copy and stages
BLOCK_SIZES = (128, 256, 512, 1024)
MOST_STAGES = 8
SMALLEST_ROW = 4 * KIB  # below, a block has less than two warps of packs: `warp` is for those
BARRIER_BYTES = 8

THREADS_ON_SM = 1024  # what `rank` prefers: a guess that no measurement has confirmed (314b997b)

# Estimates, fitted on an H200 (314b997b): behind `block` where a thread holds few elements, and
# ahead of all that read rows twice. Where clusters are there a wide row is better cut: rings of
# bulk copies won nowhere. Rows too few for the GPU want more than one block each.
FEW_ROWS = 10  # times fewer than SMs
OF_FEW_ROWS, OF_ROWS_BESIDE_CLUSTERS, OF_ROWS = 1.45, 1.4, 1.25


@dataclass(frozen=True)
class Shared(Strategy):
    """One row per block, read once into shared memory and there twice."""

    name = "shared"
    summary = "a row in the shared memory of one block, in its own type"
    takes = frozenset(
        {
            *(Feature.MORE_INPUTS, Feature.SUMS, Feature.PARTS, Feature.SLOPES),
            *(Feature.HOOKS, Feature.PICKS, Feature.FLOAT8),
        }
    )
    layouts = (Rows, Strided)
    loads_ignored = True

    pack_size: int = knob("p", "elements moved by one load or store")
    block_size: int = knob("b", "threads in a block")
    copy: int = knob(
        "y", "how a row is loaded: 0 by registers, 1 cp.async, 2 bulk copy", constant=False
    )
    stages: int = knob("s", "rows that are on their way or in use", unnamed=1)
    multiprocessors: int = knob(
        "n", "SMs that a grid which strides over the rows is for; 0: any grid", constant=False
    )
    resident: int = knob("m", "blocks that such a grid has for each SM", constant=False, default=1)

    def check(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless the stages fit and the row can be copied this way."""
        require = self.require
        self.require_pack(self.pack_size, problem)
        self.require_alike(self.pack_size, problem)
        self.require_block(self.block_size)
        # 1024 threads have 64 registers each: packs of 4 or 8 float64 spilled 8 to 448 bytes, and
        # packs of 4 of two float32 inputs 92.
        wide = problem.compute_dtype is DType.FLOAT64 or len(problem.element_inputs) > 1
        require(
            self.block_size <= 512 or self.pack_size <= 2 or not wide,
            "float64, or two inputs, in packs of more than 2 elements leaves room for 512 threads",
        )
        # In 16-bit packs of 8, elements of which one is drawn spilled 56 bytes on sm_75.
        own = problem.function.part.draws
        require(self.block_size <= 512 or not own, "a draw leaves room for 512 threads")
        require(self.copy in (PLAIN, ASYNC, BULK), "copy must be 0, 1 or 2")
        require(1 <= self.stages <= MOST_STAGES, f"stages must be from 1 to {MOST_STAGES}")
        require(self.stages == 1 or self.copy == BULK, "more than one stage needs copy=2")
        require(self.multiprocessors >= 0, "multiprocessors must not be negative")
        require(self.resident >= 1, "resident must be at least 1")
        require(
            self._blocks <= MAX_GRID,
            f"multiprocessors * resident must be at most {MAX_GRID}",
        )
        require(
            (self.multiprocessors > 0) == (self.stages > 1),
            "a grid that strides over the rows has 2 stages or more, any other has one",
        )
        require(
            self.resident == 1 or self.stages > 1,
            "resident is for a grid that strides over the rows, of 2 stages or more",
        )
        if self.copy != PLAIN:
            self._require_copies(problem, arch)
        wide = self.block_size == 1024 and self.pack_size == 8
        half = problem.out_dtype is DType.FLOAT16 and problem.writes_elements
        require(
            not (wide and half and arch.compute_capability < (8, 0)),
            f"1024 threads that store packs of 8 float16 spill 72 bytes on {arch.name}",
        )
        need = self.launch(problem).shared_bytes
        require(
            need <= arch.shared_per_block,
            f"a block needs {need} bytes of shared memory, {arch.name} has {arch.shared_per_block}",
        )

    def _require_copies(self, problem: Problem, arch: Arch) -> None:
        name = "cp.async" if self.copy == ASYNC else "a bulk copy"
        self.require(
            arch.compute_capability >= self.needs,
            f"{name} needs {self.oldest_arch}, this is {arch.name}",
        )
        self.require(
            self.pack_size == problem.dtype.max_pack and problem.alignment >= self.pack_size,
            f"{name} moves packs of 16 bytes between 16-byte boundaries",
        )

    @property
    def needs(self) -> tuple[int, int]:
        """The first compute capability that has the instructions of this setting."""
        return NEEDS.get(self.copy, super().needs)

    def launch(self, problem: Problem) -> Launch:
        """Return the launch shape: a row a block, a part for each warp and the stages."""
        warps = self.block_size // WARP_SIZE
        elements = _row_packs(problem, self.pack_size) * self.pack_size
        row = len(problem.element_inputs) * elements * problem.dtype.itemsize
        barriers = BARRIER_BYTES * self.stages if self.copy == BULK else 0
        return Launch(
            self.block_size,
            rows_per_block=1,
            static_shared_bytes=before_dynamic(warps * problem.part_bytes),
            dynamic_shared_bytes=self.stages * row + barriers,
            most_blocks=self._blocks or MAX_GRID,
            multiprocessors=self.multiprocessors,
        )

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield the two best block sizes for each way to load a row that is legal."""
        pack = cls.common_pack(problem)
        if problem.cols * problem.dtype.itemsize < SMALLEST_ROW:
            return
        found: list[Shared] = []
        for copy, stages in WAYS:
            settings = [
                cls._filling(problem, arch, block, copy, stages)
                for block in BLOCK_SIZES
                if block <= _row_packs(problem, pack)
            ]
            legal = [setting for setting in settings if setting.keeps_rules(problem, arch)]
            found += sorted(legal, key=lambda s: s.rank(problem, rows, arch))[:2]
        yield from sorted(found, key=lambda s: s.rank(problem, rows, arch))

    @classmethod
    def _filling(cls, problem: Problem, arch: Arch, block: int, copy: int, stages: int) -> Shared:
        """Return a setting with the widest pack; a ring with the blocks that fit the GPU."""
        pack = cls.common_pack(problem)
        if stages == 1:
            return cls(pack, block, copy, 1, 0)
        one = cls(pack, block, copy, stages, arch.multiprocessors)
        return one.with_knobs(resident=one._resident(problem, arch))

    @property
    def _blocks(self) -> int:
        """The largest grid that strides over the rows; 0 where blocks do not."""
        return self.multiprocessors * self.resident

    def _resident(self, problem: Problem, arch: Arch) -> int:
        return resident_blocks(self.launch(problem).shared_bytes, self.block_size, arch)

    def rank(self, problem: Problem, rows: int, arch: Arch) -> tuple[float, ...]:
        """Order candidates: about 1024 threads an SM, then the copies that need no registers."""
        threads = self.block_size * self._resident(problem, arch)
        return (abs(math.log2(threads / THREADS_ON_SM)), -self.copy, self.stages, self.block_size)

    @classmethod
    def estimate(cls, problem: Problem, rows: int, arch: Arch) -> float:
        """More than a copy: loads, exponentials and stores of a row follow each other.

        And few rows fit an SM.
        """
        if rows * FEW_ROWS < arch.multiprocessors:
            return OF_FEW_ROWS
        return OF_ROWS_BESIDE_CLUSTERS if arch.compute_capability >= (9, 0) else OF_ROWS


def _row_packs(problem: Problem, pack_size: int) -> int:
    """Return the packs that cover a row, which may start behind the boundary of its first pack."""
    overhang = 0 if problem.alignment >= pack_size else pack_size - 1
    return -(-(problem.cols + overhang) // pack_size)
