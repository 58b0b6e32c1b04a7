"""OneFlow's choice of a softmax kernel, so that it can be asked for by name and timed against.

Source: oneflow/core/cuda/softmax.cuh of Oneflow-Inc/oneflow (DispatchSoftmax and what it calls).
"""

from __future__ import annotations

from softgen.problem import DType, Problem
from softgen.strategies.base import Strategy
from softgen.strategies.safe import Safe
from softgen.strategies.warp import Warp

# The widest row that OneFlow gives to a warp: 32 lanes of 32 elements.
MAX_WARP_COLS = 1024

# Threads in a block of its warp kernel, and of its block kernel that keeps nothing on the chip.
WARP_BLOCK_SIZE = 128
UNCACHED_BLOCK_SIZE = 1024


def oneflow_dispatch(problem: Problem, rows: int) -> Strategy:
    """Return the setting that OneFlow would launch for `rows` rows of `problem`.

    Rows of up to 1024 columns go to its warp kernel, with packs of two where the width is even. A
    narrow row takes one pack a lane on the fewest lanes, two rows at a time if their number is
    even; a wider one takes all 32 lanes and the fewest packs.

    Above 1024 columns OneFlow keeps the row in shared memory if it fits, which no strategy of
    softgen does yet; one that does will take that place. What is left, and what float64 always
    gets, is its uncached kernel: three passes by 1024 threads.
    """
    if problem.compute_dtype is DType.FLOAT64 or problem.cols > MAX_WARP_COLS:
        return Safe(UNCACHED_BLOCK_SIZE)
    # An even width keeps every row on a pack's boundary only if the first row starts on one.
    pack = 2 if problem.cols % 2 == 0 and problem.alignment >= 2 else 1
    for width in (1, 2, 4, 8, 16, 32):
        if problem.cols <= width * pack:
            rows_per_access = 2 if rows % 2 == 0 else 1
            return Warp.covering(problem, pack, width, rows_per_access, WARP_BLOCK_SIZE)
    return Warp.covering(problem, pack, 32, 1, WARP_BLOCK_SIZE)
