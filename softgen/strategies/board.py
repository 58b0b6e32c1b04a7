"""The board of a choice (templates/parts/top/board.cuh.j2): what a block finds, in shared memory.

Threads give the largest of their elements, of which names are made. The k-th largest name is a
bound: at least k elements are not behind it, and of elements in an order that threads do not follow
few more.
"""

from __future__ import annotations

from softgen.spec.arch import WARP_SIZE
from softgen.spec.problem import Problem
from softgen.strategies.base import Strategy
from softgen.strategies.sliced import Sliced

# Of 32 names a warp finds the k-th by itself: of random elements 31 are not behind the 20th. With
# as many names as are chosen it would be five times the choice.
MOST_OF_FEW_NAMES = 24
MANY_NAMES = 128

# Keys that a block has a place for. It looks for a nearer bound where more are found, and before it
# compares more than MANY with each other.
MOST_FOUND = 512
MANY = 96

MOST_OF_CHUNK = 8  # elements that are behind a bound at once


def names(chosen: int, threads: int) -> int:
    """Return of how many names a bound is made, where so many are chosen."""
    return WARP_SIZE if chosen <= MOST_OF_FEW_NAMES else min(MANY_NAMES, threads)


def most_found(strategy: Strategy) -> int:
    """Return how many keys a board has a place for: a row's, or those of what a block holds."""
    return MOST_FOUND if isinstance(strategy, Sliced) else 2 * MOST_FOUND


def chunk(strategy: Sliced) -> int:
    """Return how many of a thread's elements are compared with a bound by the largest of them.

    They are adjacent, or of single loads.
    """
    if strategy.pack_size > 1:
        return strategy.pack_size
    return max(n for n in range(1, MOST_OF_CHUNK + 1) if strategy.cols_per_thread % n == 0)


def board_bytes(problem: Problem, strategy: Strategy, threads: int) -> int:
    """Return the shared memory of a board."""
    function, number, key = problem.function, problem.compute_dtype.itemsize, problem.key_bytes
    warps, held = threads // WARP_SIZE, isinstance(strategy, Sliced)
    many = names(function.chosen, threads)
    keys, numbers, words = most_found(strategy) + function.chosen, 0, threads + 1
    if many > WARP_SIZE:
        keys += 1
        words += many
    if held:
        numbers += 2 * warps * function.sums
    elif function.groups:
        keys += warps
        numbers += function.groups
    return -(-(keys * key + numbers * number + 4 * words) // key) * key
