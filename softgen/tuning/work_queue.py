"""Which shape a worker gets next: the largest first, and what one worker lost goes to another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from softgen.problems.problem import Problem

MOST_TRIES = 2  # of a shape whose worker ends: what ends two of them would end a third


class Task(NamedTuple):
    """A shape to tune.

    Attributes:
        number: its place among those that were asked for.
        problem: the compile-time part.
        rows: number of rows.
    """

    number: int
    problem: Problem
    rows: int

    @property
    def bytes(self) -> int:
        """The bytes that a launch moves."""
        return self.rows * self.problem.bytes_per_row

    def __str__(self) -> str:
        problem = self.problem
        layout = f", {problem.layout.label}" if problem.layout.label else ""
        return f"{problem.computed} {problem.dtype.value} {self.rows}x{problem.cols}{layout}"


def largest_first(tasks: Iterable[Task]) -> list[Task]:
    """Return the tasks by bytes: small ones at the end let all workers finish together."""
    return sorted(tasks, key=lambda task: -task.bytes)


class WorkQueue:
    """The shapes that no worker has, and which workers have lost one.

    Args:
        tasks: all shapes.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._left = largest_first(tasks)
        self._lost: dict[int, list[str]] = {}

    def __len__(self) -> int:
        return len(self._left)

    def take(self, worker: str, others: bool) -> Task | None:
        """Take out the next shape for `worker`; None if it has to wait, or none is left.

        Args:
            worker: a name, the same for a process that replaces another.
            others: whether there are other workers, to which what this one lost is left.
        """
        for place, task in enumerate(self._left):
            if not others or worker not in self._lost.get(task.number, ()):
                return self._left.pop(place)
        return None

    def give_back(self, task: Task, worker: str) -> bool:
        """Put back, at the head, what `worker` lost; False if that was its last try."""
        lost = self._lost.setdefault(task.number, [])
        lost.append(worker)
        if len(lost) >= MOST_TRIES:
            return False
        self._left.insert(0, task)
        return True

    def take_all(self) -> list[Task]:
        """Take out all shapes, in the order of their numbers: no worker is left."""
        left, self._left = self._left, []
        return sorted(left, key=lambda task: task.number)
