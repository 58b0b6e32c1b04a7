"""OneFlow's choice of a softmax kernel, so that it can be asked for by name and timed against.

Source: oneflow/core/cuda/softmax.cuh of Oneflow-Inc/oneflow (DispatchSoftmax and what it calls).
"""

from __future__ import annotations

from softgen.spec.arch import KIB, WARP_SIZE, Arch
from softgen.spec.dtypes import DType
from softgen.spec.problem import Problem
from softgen.strategies.base import Strategy
from softgen.strategies.safe import Safe
from softgen.strategies.shared import PLAIN, Shared, resident_blocks
from softgen.strategies.warp import Warp

# The widest row that OneFlow gives to a warp: 32 lanes of 32 elements.
MAX_WARP_COLS = 1024

# Threads in a block of its warp kernel, of its kernel with the row in shared memory, and of the one
# that keeps nothing on the chip.
WARP_BLOCK_SIZE = 128
SHARED_BLOCK_SIZES = (1024, 512, 256, 128)
UNCACHED_BLOCK_SIZE = 1024

# It never asks for more shared memory than a block has without asking.
SHARED_LIMIT = 48 * KIB


def oneflow_dispatch(problem: Problem, rows: int, arch: Arch) -> Strategy:
    """Return the setting that OneFlow would launch for `rows` rows of `problem` on `arch`.

    Rows of up to 1024 columns go to its warp kernel, with packs of two where the width is even. A
    narrow row takes one pack a lane on the fewest lanes, two rows at a time if their number is
    even; a wider one takes all 32 lanes and the fewest packs.

    Above 1024 columns a row goes to shared memory if it fits, with the largest block that does not
    lower the number of blocks an SM holds. OneFlow's buffer there is float32 whatever the input is,
    and decides what fits; softgen's `shared` keeps the input's type. What is left, and what float64
    always gets, is its uncached kernel: three passes by 1024 threads.
    """
    if problem.compute_dtype is DType.FLOAT64:
        return Safe(UNCACHED_BLOCK_SIZE)
    if problem.cols > MAX_WARP_COLS:
        return _in_shared_memory(problem, arch) or Safe(UNCACHED_BLOCK_SIZE)
    pack = _pack(problem)
    for width in (1, 2, 4, 8, 16, 32):
        if problem.cols <= width * pack:
            rows_per_access = 2 if rows % 2 == 0 else 1
            return Warp.covering(problem, pack, width, rows_per_access, WARP_BLOCK_SIZE)
    return Warp.covering(problem, pack, 32, 1, WARP_BLOCK_SIZE)


def _pack(problem: Problem) -> int:
    """Return 2 for an even width, if the first row too starts on the boundary of a pack."""
    return 2 if problem.cols % 2 == 0 and problem.alignment >= 2 else 1


def _in_shared_memory(problem: Problem, arch: Arch) -> Shared | None:
    """Return the setting for a row in shared memory, or None if OneFlow's buffer does not fit."""
    blocks = {}
    for size in SHARED_BLOCK_SIZES:
        buffer = problem.cols * problem.compute_dtype.itemsize
        reduction = 2 * size // WARP_SIZE * problem.compute_dtype.itemsize
        fits = buffer + reduction <= SHARED_LIMIT
        blocks[size] = resident_blocks(buffer + reduction, size, arch) if fits else 0
    most = blocks[min(blocks)]
    best = next(size for size in SHARED_BLOCK_SIZES if blocks[size] == most)
    return Shared(_pack(problem), best, PLAIN, 1, 0) if most else None
