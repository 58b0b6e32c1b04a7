"""The board of a choice (templates/parts/top/board.cuh.j2): what a block finds, in shared memory.

Threads name the largest of their elements. The k-th largest of such names is a bound: at least k
elements are not behind it, and of elements in any order that names do not follow few more.
"""

from __future__ import annotations

from softgen.spec.arch import WARP_SIZE
from softgen.spec.problem import Problem

# Names of a row are so many, each ranked by a thread: of 64, as many as may be chosen, the bound
# would be the least one, and what is found five times the choice.
MOST_SPANS = 128

# Keys that a block finds before it looks for a bound that is nearer.
MOST_FOUND = 512

MOST_OF_CHUNK = 8  # elements that are behind a bound at once


def span(threads: int) -> int:
    """Return how many adjacent lanes name their largest element together: a power of two."""
    lanes = 1
    while threads // lanes > MOST_SPANS:
        lanes *= 2
    return lanes


def chunk(cols_per_thread: int) -> int:
    """Return how many of a thread's elements are compared with a bound by the largest of them."""
    return max(n for n in range(1, MOST_OF_CHUNK + 1) if cols_per_thread % n == 0)


def board_bytes(problem: Problem, threads: int, *, held: bool) -> int:
    """Return the shared memory of a board; `held` where the threads hold the row."""
    function, number, key = problem.function, problem.compute_dtype.itemsize, problem.key_bytes
    warps = threads // WARP_SIZE
    keys = MOST_FOUND + function.chosen + 1
    numbers = threads // span(threads)
    if held:
        numbers += 2 * warps * function.sums
    elif function.groups:
        keys += warps
        numbers += function.groups
    return -(-(keys * key + numbers * number + 4) // key) * key


def rank_bytes(problem: Problem, parts: int) -> int:
    """Return the shared memory of what `parts` of a row count beside each id: a word each."""
    words = problem.function.ranked * parts
    return -(-4 * words // problem.key_bytes) * problem.key_bytes if words else 0
