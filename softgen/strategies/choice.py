"""How lanes that share a row choose of it (templates/parts/top/part.cuh.j2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from softgen.spec.arch import WARP_SIZE
from softgen.spec.parts import TOP
from softgen.spec.problem import Problem
from softgen.strategies.base import Strategy

# Keys of a list that each lane of a row has, and its bytes. With 32 keys arrays left the registers.
MOST_LISTED = 16
MOST_LIST_BYTES = 128

MOST_STORED = 16  # bytes that a lane stores at once

# Keys that a warp finds beyond a bound before it orders them: about 11 where 8 are chosen of 256.
FOUND = 32
MOST_FOUND = 16  # are chosen so: of more the bound may leave more than `FOUND`


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
        if problem.function.part is not TOP:
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
        found = FOUND if finds and chosen <= MOST_FOUND else 0
        return cls(lanes, listed, places, math.gcd(places, chosen, most), found)


def list_of(chosen: int) -> int:
    """Return the length of a list of so many, a power of two."""
    return int(2 ** (chosen - 1).bit_length())
