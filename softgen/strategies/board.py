"""The board of a choice (templates/parts/top/board.cuh.j2): what a block finds, in shared memory.

Threads give the largest of their elements, of which 32 or 64 names are made. The k-th largest name
is a bound: at least k elements are not behind it, and of elements in an order that threads do not
follow few more.
"""

from __future__ import annotations

from softgen.spec.arch import WARP_SIZE
from softgen.spec.problem import Problem

# With as many names as are chosen the bound is the least of them, and of random elements five
# times as many are not behind it.
MOST_OF_FEW_NAMES = 24

# Keys that a block finds before it looks for a bound that is nearer.
MOST_FOUND = 512

MOST_OF_CHUNK = 8  # elements that are behind a bound at once


def names(chosen: int) -> int:
    """Return of how many names a bound is made, where so many are chosen."""
    return WARP_SIZE if chosen <= MOST_OF_FEW_NAMES else 2 * WARP_SIZE


def chunk(cols_per_thread: int) -> int:
    """Return how many of a thread's elements are compared with a bound by the largest of them."""
    return max(n for n in range(1, MOST_OF_CHUNK + 1) if cols_per_thread % n == 0)


def board_bytes(problem: Problem, threads: int, *, held: bool) -> int:
    """Return the shared memory of a board; `held` where the threads hold the row."""
    function, number, key = problem.function, problem.compute_dtype.itemsize, problem.key_bytes
    warps = threads // WARP_SIZE
    keys, numbers = MOST_FOUND + function.chosen, 0
    if held:
        numbers += 2 * warps * function.sums
    elif function.groups:
        keys += warps
        numbers += function.groups
    return -(-(keys * key + numbers * number + 4 * (threads + 1)) // key) * key
