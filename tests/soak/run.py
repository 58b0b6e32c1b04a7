"""The run: calls are made, one in a thousand is compared, and memory is measured."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from softgen.call.runner import MOST_CALLS, Calls
from tests.differential.regimes import Random

SEED = 7
KINDS = 300  # calls that are made again and again
EVERY = 1000  # calls of which one is compared
FRESH = 10  # calls of which one is of a shape of its own
SHARES = (0.1, 0.5, 1.0)

# What the second half of a run may add: nothing that a call leaves behind.
MOST_BLOCKS = 2000  # Python's, of which an object is one or more
MOST_RESIDENT = 4 * 2**20


class Drawn(Protocol):
    """A call that was drawn."""

    def run(self) -> Any:
        """Make it."""

    def wrong(self) -> list[str] | None:
        """Make it, and return what is wrong with it; None where softgen says that it is refused."""


class Place(Protocol):
    """Where calls are made.

    Attributes:
        most_device: what the second half of a run may add to the device's memory, in bytes.
    """

    most_device: int

    def drawn(self, seed: int, number: int) -> Drawn | None:
        """Return a call of a seed, the same each time; None for one that takes too long."""

    def wrong(self, one: Drawn) -> list[str] | None:
        """Make a call and return what `Drawn.wrong` says of it."""

    def fresh(self, random: Random) -> Any:
        """Make a call of a shape that few calls have."""

    def device_bytes(self) -> int:
        """Return how much memory of the device is taken."""

    def forget(self) -> None:
        """Forget what a stand-in has noted of each call."""


class Memory(NamedTuple):
    """What is taken: blocks of Python's allocator, and bytes."""

    calls: int
    seconds: float
    blocks: int
    resident: int
    device: int

    def __str__(self) -> str:
        return (
            f"{self.calls} calls, {self.seconds:.0f} s: {self.blocks} blocks, "
            f"{self.resident / 2**20:.1f} MiB resident, {self.device / 2**20:.2f} MiB of the device"
        )


@dataclass
class Report:
    """What was called.

    Attributes:
        checked: how many calls were compared.
        entries: the most that calls of one function had.
        wrong: a line for each value that is wrong, and for each memory that grew.
        taken: the memory, at each of SHARES.
    """

    checked: int = 0
    entries: int = 0
    wrong: list[str] = field(default_factory=list)
    taken: list[Memory] = field(default_factory=list)

    def judge(self, most_device: int) -> None:
        """Add a line for each memory that grew in the second half."""
        before, after = self.taken[-2:]
        for name, most in (
            *(("blocks", MOST_BLOCKS), ("resident", MOST_RESIDENT), ("device", most_device)),
        ):
            grown = getattr(after, name) - getattr(before, name)
            if grown > most:
                calls = after.calls - before.calls
                self.wrong.append(f"{name} grew by {grown} in {calls} calls, more than {most}")
        if self.entries > MOST_CALLS:
            self.wrong.append(f"{self.entries} entries of a function, more than {MOST_CALLS}")

    def __str__(self) -> str:
        of_calls = f"{self.checked} calls compared, at most {self.entries} entries of a function"
        return "\n".join([*map(str, self.taken), f"{of_calls}: {len(self.wrong)} wrong"])


def soak(
    place: Place,
    count: int,
    seed: int = SEED,
    kinds: int = KINDS,
    every: int = EVERY,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Make `count` calls, and return what is wrong with them.

    Args:
        place: where they are made.
        count: how many, a multiple of `every`, three times it or more.
        seed: of all that is drawn.
        kinds: how many calls are made again and again; all are compared once before.
        every: calls of which one is compared.
        say: called with a line on what is wrong, and on memory.
    """
    report, random, started = Report(), np.random.default_rng(seed), time.monotonic()

    def compare(number: int, one: Drawn) -> bool:
        wrong = place.wrong(one)
        report.checked += 1
        for line in wrong or ():
            report.wrong.append(f"--seed {seed}: call {number}: {line}")
            say(report.wrong[-1])
        return wrong is not None

    known: dict[int, Drawn] = {}
    number = 0
    while len(known) < kinds:
        one = place.drawn(seed, number)
        if one is not None and compare(number, one):
            known[number] = one
        number += 1
    numbers, marks = [*known], [round(share * count) for share in SHARES]
    for done in range(every, count + 1, every):
        for turn, at in enumerate(random.integers(kinds, size=every - 1)):
            if turn % FRESH == 0:
                place.fresh(random)
            else:
                known[numbers[at]].run()
        # Of the same shapes and types, on fresh numbers: one that wrote over x did it often.
        number = numbers[done // every % kinds]
        again = place.drawn(seed, number)
        assert again is not None
        compare(number, again)
        known[number] = again
        place.forget()
        if marks and done >= marks[0]:
            marks.pop(0)
            report.taken.append(measured(place, report, done, time.monotonic() - started))
            say(str(report.taken[-1]))
    report.judge(place.most_device)
    return report


def measured(place: Place, report: Report, calls: int, seconds: float) -> Memory:
    """Return what is taken when what may go has gone."""
    place.forget()
    for each in [one for one in gc.get_objects() if issubclass(type(one), Calls)]:
        report.entries = max(report.entries, len(each.entries))
        each.entries.clear()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return Memory(calls, seconds, sys.getallocatedblocks(), resident, place.device_bytes())
