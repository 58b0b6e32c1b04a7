"""`softgen tune --shard`: which part of the shapes this process of several tunes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from softgen.errors import InvalidValueError
from softgen.tuning.work_queue import Task, largest_first

# Variables of a launcher: the number of this process, how many there are, and its number on this
# machine. Slurm sets SLURM_NTASKS, and SLURM_PROCID as 0, in a batch script too, which is one
# process: SLURM_STEP_NUM_TASKS is there under srun alone.
LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)
MOST_PROCESSES = 1 << 20


class Shard(NamedTuple):
    """One process of several that share the shapes.

    Attributes:
        rank: its number, from 0.
        world: how many there are.
        local: its number among those of this machine; None where no launcher says it.
        origin: who says so.
    """

    rank: int
    world: int
    local: int | None
    origin: str

    def part(self, tasks: Sequence[Task]) -> list[Task]:
        """Return this process's tasks, in the order that was asked for.

        They are dealt out by size, so that every process has as many, and large ones among them.
        """
        mine = largest_first(tasks)[self.rank :: self.world]
        return sorted(mine, key=lambda task: task.number)


def shard_of(text: str | None) -> Shard | None:
    """Return the shard that an option names, else a launcher; None where one process tunes all."""
    if text is not None:
        match = re.fullmatch(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", text)
        if not match or not _is_part(int(match[1]), int(match[2])):
            count = int(match[2]) if match else 0
            known = 1 < count <= MOST_PROCESSES
            parts = f"0/{count} to {count - 1}/{count}" if known else "for example 0/8 to 7/8"
            raise InvalidValueError(
                f"--shard: {text!r} is no part of the shapes; write RANK/WORLD, {parts}"
            )
        found = Shard(int(match[1]), int(match[2]), None, "--shard")
        return found if found.world > 1 else None
    for names in LAUNCHERS:
        rank, world, local = (os.environ.get(name) for name in names)
        if rank is not None and world is not None:
            return _launched(names, rank, world, local)
    return None


def _launched(names: Sequence[str], rank: str, world: str, local: str | None) -> Shard | None:
    number, count = _number(rank), _number(world)
    if not _is_part(number, count):
        raise InvalidValueError(
            f"{names[0]}={rank!r} and {names[1]}={world!r} name no process of several; unset "
            "them, or say --shard 0/1 to tune all shapes"
        )
    if count == 1:
        return None
    on_machine = _number(local or "")
    return Shard(
        number, count, on_machine if on_machine >= 0 else None, f"{names[0]} and {names[1]}"
    )


def _number(text: str) -> int:
    """Return the number that a text is, -1 if it is none."""
    return int(text) if re.fullmatch(r"\d{1,9}", text) else -1


def _is_part(rank: int, world: int) -> bool:
    return 0 <= rank < world <= MOST_PROCESSES
