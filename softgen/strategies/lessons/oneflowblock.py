"""OneFlow's kernels for a block a row: staged in shared memory, or read three times.

Source: oneflow/core/cuda/softmax.cuh of Oneflow-Inc/oneflow at commit 25c8978 (SoftmaxBlockSMemImpl
and SoftmaxBlockUncachedImpl, and what chooses between them), written anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from softgen.problems.arch import FREE_SHARED, MAX_GRID, WARP_SIZE, Arch
from softgen.problems.dtypes import DType
from softgen.problems.problem import Problem
from softgen.strategies.base import Lesson, Strategy, knob
from softgen.strategies.launch import Launch, blocks_per_multiprocessor

# Threads in a block: of a staged row, as OneFlow tries them, and of one that is not.
BLOCK_SIZES = (1024, 512, 256, 128)
UNSTAGED_BLOCK_SIZE = 1024

# Static shared memory of OneFlow's kernel by block size, which counts against FREE_SHARED, as CUDA
# 13.0 compiles it: what its two reductions need.
REDUCTION_BYTES = {128: 64, 256: 96, 512: 176, 1024: 336}

# OneFlow's exponent is __expf(x - max). A relative error grows with z = x - max by three roundings:
# of x - max and of its product with log2(e), 2^-24 each at most, and of log2(e), 1.3e-8. The first
# two are not at their largest for one z: all stay below 2e-6 + 9e-8 |z| down to results of 1e-30,
# with 4e-7 to spare for exp2 and the quotient.
EXPONENT_ERROR = 9e-8

PACK_SIZES = (1, 2)
SLOTS = 4  # of a reduction, beside one a warp: the result, in whole accesses of 16 bytes
WAVES = 32  # that a grid has at most: as many threads as the device holds at once, so many times


def waves(block_size: int, arch: Arch) -> int:
    """Return the largest grid that OneFlow launches: its blocks stride over more rows."""
    return arch.multiprocessors * arch.threads_per_multiprocessor // block_size * WAVES


def pack_size(problem: Problem) -> int:
    """Return 2 for an even width, else 1.

    OneFlow does not ask where rows lie; here there are packs only if the first row starts on the
    boundary of one.
    """
    return 2 if problem.cols % 2 == 0 and problem.alignment >= 2 else 1


def require_one_of_its_packs(strategy: Strategy, size: int, problem: Problem) -> None:
    """Raise IllegalVariantError unless rows consist of such packs, on their boundaries."""
    strategy.require_pack(size, problem)
    strategy.require(size in PACK_SIZES, "OneFlow's packs have 1 or 2 elements")
    strategy.require(
        problem.cols % size == 0 and problem.alignment >= size,
        "packs of 2 are for even widths, and rows that start on their boundaries",
    )


def exponent_error(problem: Problem) -> float:
    """Return what OneFlow's exponent adds to the allowed error of a result where |z| = 1."""
    return EXPONENT_ERROR if problem.compute_dtype is DType.FLOAT32 else 0.0


def computes(problem: Problem) -> bool:
    """Whether OneFlow's header has the function."""
    return problem.function.textbook


@dataclass(frozen=True)
class OneflowBlock(Lesson):
    """One row per block, by packs of one or two elements."""

    name = "oneflowblock"
    summary = "OneFlow's kernels of a block a row: staged in shared memory, or three passes"

    pack_size: int = knob("p", "elements moved by one load or store")
    staged: bool = knob(
        "st",
        "whether a row is kept in shared memory, in the type of all arithmetic",
        constant=False,
    )
    block_size: int = knob("b", "threads in a block")
    blocks: int = knob(
        "n", "blocks of the largest grid, which stride over the rows", constant=False
    )

    def describe(self, problem: Problem) -> str:
        """Return which of OneFlow's kernels it is, for the header of a file."""
        if self.staged:
            return f"OneFlow's kernel with a row in shared memory, as {problem.compute_dtype.value}"
        return "OneFlow's kernel that keeps nothing of a row, and reads it three times"

    @classmethod
    def computes(cls, problem: Problem) -> bool:
        """Whether OneFlow's header has the function."""
        return super().computes(problem) and computes(problem)

    def check(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless rows are whole packs, and fit if they are staged."""
        require_one_of_its_packs(self, self.pack_size, problem)
        self.require_block(self.block_size)
        self.require(1 <= self.blocks <= MAX_GRID, f"blocks must be from 1 to {MAX_GRID}")
        self.require(
            not self.staged or problem.compute_dtype is DType.FLOAT32,
            "OneFlow stages no row of float64",
        )
        launch = self.launch(problem)
        self.require(
            launch.shared_bytes <= FREE_SHARED,
            f"a block needs {launch.shared_bytes} bytes of shared memory, and OneFlow asks for no "
            f"more than {FREE_SHARED}",
        )

    def exponent_error(self, problem: Problem) -> float:
        """Return that of OneFlow's exponent."""
        return exponent_error(problem)

    def launch(self, problem: Problem) -> Launch:
        """Return the launch shape: a row a block, two reductions and a staged row."""
        compute = problem.compute_dtype.itemsize
        warps = self.block_size // WARP_SIZE
        return Launch(
            self.block_size,
            1,
            static_shared_bytes=2 * (warps + SLOTS) * compute,
            dynamic_shared_bytes=problem.cols * compute if self.staged else 0,
            most_blocks=self.blocks,
        )

    @classmethod
    def chosen(cls, problem: Problem, arch: Arch) -> OneflowBlock:
        """Return what OneFlow launches for a row that is too wide for a warp, or of float64.

        A row is staged if its block gets the shared memory without asking for more. The block is
        then the largest of which an SM holds as many as of 128 threads.
        """
        pack = pack_size(problem)
        resident = {size: _resident(problem, pack, size, arch) for size in BLOCK_SIZES}
        most = resident[min(BLOCK_SIZES)]
        if problem.compute_dtype is DType.FLOAT64 or not most:
            return cls(pack, False, UNSTAGED_BLOCK_SIZE, waves(UNSTAGED_BLOCK_SIZE, arch))
        best = next(size for size in BLOCK_SIZES if resident[size] == most)
        return cls(pack, True, best, waves(best, arch))

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield OneFlow's choice, then its kernels in all block sizes that it has."""
        first = cls.chosen(problem, arch)
        found = [cls(first.pack_size, True, size, waves(size, arch)) for size in BLOCK_SIZES]
        found.append(
            cls(first.pack_size, False, UNSTAGED_BLOCK_SIZE, waves(UNSTAGED_BLOCK_SIZE, arch))
        )
        yield from dict.fromkeys(s for s in (first, *found) if s.keeps_rules(problem, arch))


def _resident(problem: Problem, pack: int, block_size: int, arch: Arch) -> int:
    """Return how many blocks an SM holds of OneFlow's kernel for a staged row; 0 if it has to ask.

    As the CUDA runtime counts them for OneFlow, by threads, registers and shared memory.
    """
    row = problem.cols * problem.compute_dtype.itemsize
    shared = row + REDUCTION_BYTES[block_size]
    if shared > FREE_SHARED:
        return 0
    launch = Launch(block_size, 1, REDUCTION_BYTES[block_size], row)
    return blocks_per_multiprocessor(
        launch, _registers(problem, pack, block_size, arch), shared, arch
    )


def _registers(problem: Problem, pack: int, block_size: int, arch: Arch) -> int:
    """Return the registers of a thread of OneFlow's kernel for a staged row, or fewer.

    As CUDA 13.0 compiles it. Only packs of two on sm_90 and sm_120 take so many that an SM holds
    fewer blocks than its threads allow.
    """
    if pack == 1:
        return 32
    if arch.compute_capability == (9, 0):
        return 34 if problem.dtype.itemsize == 2 else 33 if block_size >= 512 else 32
    return 44 if arch.compute_capability == (12, 0) and problem.dtype.itemsize == 2 else 32
