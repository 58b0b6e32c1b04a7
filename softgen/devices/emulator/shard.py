"""Which device of several that hold rows together a launch is on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from softgen.errors import InvalidValueError
from softgen.problems.layouts import FIRST
from softgen.problems.problem import Problem
from softgen.problems.shards import mailbox_bytes
from softgen.problems.storage import storage_dtype

PATIENCE = 20_000


@dataclass(frozen=True)
class Shard:
    """A launch's place among those of other devices.

    Attributes:
        shard: number of the device.
        shards: how many devices there are.
        room: rows that a mailbox has room for; the same in all launches.
        patience: how long the kernel waits for another device: looks at the clock, which comes on
            by a nanosecond with each, on all devices.
        late: turns that the device leaves to others before the launch.
        first: the number of its first column, for a kernel that looks for columns.
    """

    shard: int
    shards: int
    room: int
    patience: int = PATIENCE
    late: int = 0
    first: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.shard < self.shards:
            raise InvalidValueError(
                f"shard must be from 0 to {self.shards - 1}, got {self.shard}: there are "
                f"{self.shards} shards"
            )

    def head(self, left: int) -> tuple[int, ...]:
        """Return what host/job.h has of it, before `left` other launches."""
        return (self.shard, self.shards, left, mailbox_bytes(self.shards, self.room), self.late)

    def numbers(self, problem: Problem) -> list[npt.NDArray[Any]]:
        """Return what the kernel takes; the emulator puts its addresses in."""
        numbers = problem.layout_numbers
        mailboxes: tuple[Any, ...] = ([0] * self.shards, 0, 0)
        values = (*mailboxes, self.shard, self.shards, self.room, self.patience)
        if numbers[-1].name == FIRST:
            values += (self.first,)
        given = zip(numbers, values, strict=True)
        return [np.array(value, storage_dtype(operand.dtype)) for operand, value in given]
