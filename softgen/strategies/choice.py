"""How the largest elements of a row are chosen: by the lanes that share it, or by a block.

Lanes sort what they hold and merge their lists (templates/parts/top/part.cuh.j2). A block has a
board in shared memory (templates/parts/top/board.cuh.j2): its threads give the largest of their
elements, and the largest of some threads is a peak. The k-th largest peak is a bound: at least k
elements are not behind it, and few more, unless elements and threads have the same order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from softgen.problems.arch import WARP_SIZE
from softgen.problems.problem import Problem
from softgen.strategies.base import Strategy
from softgen.strategies.sliced import Sliced

# Keys of a list that each lane of a row has, and its bytes. With 32 keys arrays left the registers.
MOST_LISTED = 16
MOST_LIST_BYTES = 128

MOST_STORED = 16  # bytes that a lane stores at once

# Keys that a warp finds beyond a bound before it orders them: about 11 where 8 are chosen of 256.
FOUND = 32
MOST_BY_BOUND = 16  # are chosen so: of more the bound may leave more than `FOUND`


@dataclass(frozen=True)
class Choice:
    """Who chooses, and who has what of it.

    Attributes:
        lanes: how many lanes of a warp choose together.
        listed: the keys of a list that lanes merge, a power of two, or 0 where they give up their
            largest one after another: a whole warp finds it in one instruction.
        places: how many of the chosen a lane has, one after another.
        wide: how many results of a lane one store takes.
        found: the keys that a warp has shared memory for, to find those that may be chosen by their
            numbers before it orders them, or 0 where it orders all.
    """

    lanes: int
    listed: int
    places: int
    wide: int
    found: int

    @classmethod
    def of(cls, problem: Problem, strategy: Strategy) -> Choice | None:
        """Return the choice of a problem that has one."""
        chosen = problem.function.chosen
        if not problem.function.part.chooses:
            return None
        lanes = min(strategy.knobs.get("thread_group_width", WARP_SIZE), WARP_SIZE)
        listed = list_of(chosen)
        merges = strategy.sorts and lanes < WARP_SIZE
        if not merges or listed > MOST_LISTED or listed * problem.key_bytes > MOST_LIST_BYTES:
            listed = 0
        places = max(1, listed // lanes) if listed else -(-chosen // lanes)
        most = MOST_STORED // problem.compute_dtype.itemsize
        # A key of 8 bytes takes two instructions of a pair of which one compares two numbers.
        finds = strategy.sorts and lanes == WARP_SIZE and problem.key_bytes == 8
        found = FOUND if finds and chosen <= MOST_BY_BOUND else 0
        return cls(lanes, listed, places, math.gcd(places, chosen, most), found)


def list_of(chosen: int) -> int:
    """Return the length of a list that holds so many keys, a power of two."""
    return int(2 ** (chosen - 1).bit_length())


# A warp finds the k-th of 32 peaks by itself. Of random elements 31 are not behind the 20th peak.
# With only as many peaks as are chosen, five times as many elements would pass the bound.
MOST_OF_FEW_PEAKS = 24
MANY_PEAKS = 128

# Keys that a block has a place for. It looks for a nearer bound where more are found, and before it
# compares more than MANY with each other.
MOST_FOUND = 512
MANY = 128
LEAST_ROW_PEAKS = 64

# Shared memory for the largest elements of what threads of a walk visit together.
SLOT_BYTES = 24576

MOST_OF_CHUNK = 8  # elements that are compared with a bound at once


def peaks(chosen: int, threads: int) -> int:
    """Return how many peaks make a bound, where so many elements are chosen."""
    return WARP_SIZE if chosen <= MOST_OF_FEW_PEAKS else min(MANY_PEAKS, threads)


def lanes_of_peak(chosen: int, threads: int) -> int:
    """Return how many lanes share one of the peaks that the blocks of a row tell each other.

    With 64 peaks of a row, and twice as many as are chosen, the elements that pass the bound are at
    most 1.4 times those chosen. All blocks compare all peaks of the `threads` of a row.
    """
    wanted = max(LEAST_ROW_PEAKS, 2 * chosen)
    return max(n for n in (1, 2, 4, 8, 16, 32) if n == 1 or threads // n >= wanted)


def lanes_of_each(keys: int, threads: int) -> int:
    """Return how many lanes compare one of so many keys with all others, by so many threads."""
    return max(n for n in (1, 2, 4, 8, 16, 32) if n == 1 or keys * n <= threads)


def lanes_of_found(chosen: int, threads: int) -> int:
    """Return how many lanes compare a key that was found, where thrice the chosen are at most."""
    return lanes_of_each(3 * chosen, threads)


def lanes_of_row_peak(peaks: int, threads: int) -> int:
    """Return how many lanes compare one of a row's peaks, with an equal share of all."""
    return math.gcd(lanes_of_each(peaks, threads), peaks)


def exchange_bytes(problem: Problem, blocks: int, block_size: int) -> int:
    """Return the shared memory for what the blocks of a row tell each other about a choice."""
    chosen, number = problem.function.chosen, problem.compute_dtype.itemsize
    sent = -(-chosen // WARP_SIZE) * WARP_SIZE
    slot = sent * problem.key_bytes + number * (1 + 2 * problem.function.sums)
    slots = blocks * -(-slot // 8) * 8
    count = blocks * block_size // lanes_of_peak(chosen, blocks * block_size)
    warps = -(-min(count * lanes_of_row_peak(count, block_size), block_size) // WARP_SIZE)
    of_peaks = count * number + (warps + warps % 2) * number + 8
    return slots + of_peaks


def most_found(chosen: int, strategy: Strategy) -> int:
    """Return how many keys a board has a place for: those of a row, or of a block's slice.

    The first block of a cluster also has the keys of up to 16 blocks: 32 or 64 of each.
    """
    many = chosen > WARP_SIZE and "cluster_size" in strategy.knobs
    return MOST_FOUND if isinstance(strategy, Sliced) and not many else 2 * MOST_FOUND


class Slots(NamedTuple):
    """Where a thread that walks over a row keeps the largest of what it visited.

    With a slot for 32 elements of 128256 about 30 slots of a row pass the bound.

    Attributes:
        number: how many slots a thread has.
        packs: how many packs share one, a multiple of those that are loaded at once.
    """

    number: int
    packs: int


def slots(problem: Problem, strategy: Strategy) -> Slots:
    """Return the slots of a thread, so many as `SLOT_BYTES` are enough for."""
    threads, unroll = strategy.knobs["block_size"], strategy.knobs["unroll"]
    packs = max(1, -(-(problem.cols // strategy.knobs["pack_size"]) // threads))
    most = SLOT_BYTES // (problem.compute_dtype.itemsize * threads)
    of_slot = unroll * -(-packs // (most * unroll))
    return Slots(-(-packs // of_slot), of_slot)


def slot_bytes(problem: Problem, strategy: Strategy) -> int:
    """Return the shared memory for the slots of a block, and for those that have what is chosen."""
    threads = strategy.knobs["block_size"]
    number = slots(problem, strategy).number
    return threads * (number * problem.compute_dtype.itemsize + 2) + 4


def chunk(strategy: Sliced) -> int:
    """Return how many of a thread's elements are compared with a bound at once: their largest is.

    They are adjacent, or of single loads.
    """
    if strategy.pack_size > 1:
        return strategy.pack_size
    return max(n for n in range(1, MOST_OF_CHUNK + 1) if strategy.cols_per_thread % n == 0)


def board_bytes(problem: Problem, strategy: Strategy, threads: int) -> int:
    """Return the shared memory of a board."""
    function, number, key = problem.function, problem.compute_dtype.itemsize, problem.key_bytes
    warps, held = threads // WARP_SIZE, isinstance(strategy, Sliced)
    many = peaks(function.chosen, threads)
    keys, numbers, words = most_found(function.chosen, strategy) + function.chosen, 0, threads + 1
    if many > WARP_SIZE:
        keys += 1
        words += many
    if held:
        numbers += 2 * warps * function.sums
    elif function.groups:
        keys += warps
        numbers += function.groups
    unit = max(key, 8)
    return -(-(keys * key + numbers * number + 4 * words) // unit) * unit


def rank_bytes(problem: Problem, parts: int) -> int:
    """Return the shared memory for the counts that `parts` of a row have for each id.

    Each part has an even number of words, as an odd one would be padded to 8 bytes somewhere.
    """
    ids = problem.function.ranked
    return 4 * parts * (ids + ids % 2)
