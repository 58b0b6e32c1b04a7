"""Tune shapes on several GPUs: workers get one at a time, and are replaced if they die or hang.

What happens is told by events, each of which names the GPU that it is from.
"""

from __future__ import annotations

import abc
import queue
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

from softgen import errors
from softgen.errors import SoftgenError
from softgen.tuning.entry import Entry, entry_from_json
from softgen.tuning.tune import Progress
from softgen.tuning.work_queue import Task, WorkQueue

# Workers of a GPU that may end in a row, without a shape that was finished in between.
MOST_ENDS = 3

# Seconds without an answer after which a worker hangs: until it waits for shapes (importing CuPy
# and loading CUDA took up to 20 on a busy host), and, beyond twice the budget, until the next
# candidate, or the choice. Without a budget all candidates of a shape may take that long.
STARTING_SECONDS = 300.0
ANSWER_SECONDS = 120.0
UNBOUNDED_SECONDS = 1800.0


class Began(NamedTuple):
    """A worker has got a shape."""

    worker: str
    task: Task


class Stepped(NamedTuple):
    """A worker has looked at a candidate for the shape that it has."""

    worker: str
    step: Progress


class Finished(NamedTuple):
    """A shape is tuned, and its choice stored."""

    worker: str
    task: Task
    entry: Entry


class Failed(NamedTuple):
    """A shape will not be tuned; the error says why, and on which workers."""

    task: Task
    error: SoftgenError


class Said(NamedTuple):
    """A worker says something on stderr, or something is to be said of it."""

    worker: str
    text: str


Event = Began | Stepped | Finished | Failed | Said

Answer = dict[str, Any]


class Worker(abc.ABC):
    """What tunes on one GPU. It tells a queue each of its answers, and None when it has ended.

    Answers are those of `process.py`, and {"said": text}.

    Attributes:
        slot: number of the GPU among those of the fleet.
        name: of the GPU, in messages.
        task: what it is tuning; None while it has nothing.
        ready: whether it waits for shapes, or has one.
        certain: whether one that is not ready will be, or end, whatever others do.
        heard_at: when it last answered or was given a shape, by time.monotonic().
    """

    certain = True

    def __init__(self, slot: int, name: str) -> None:
        self.slot, self.name = slot, name
        self.task: Task | None = None
        self.ready = False
        self.heard_at = time.monotonic()

    @abc.abstractmethod
    def give(self, task: Task, budget: float | None) -> None:
        """Have it tune a shape, for so many seconds; None for no limit."""

    @abc.abstractmethod
    def how_ended(self) -> str:
        """Return how it ended, in words."""

    @abc.abstractmethod
    def end(self) -> bool:
        """End it, and return whether it has: a driver that hangs may keep it."""


Heard = queue.SimpleQueue[tuple[Worker, Answer | None]]
Hire = Callable[[int, Heard], Worker]


class Fleet:
    """The workers, and what is left to tune.

    Args:
        tasks: the shapes.
        slots: numbers of GPUs, all of one model.
        budget: seconds a shape; None for no limit.
        hire: begins a worker for a slot.
    """

    def __init__(
        self, tasks: Sequence[Task], slots: Sequence[int], budget: float | None, hire: Hire
    ) -> None:
        self._queue = WorkQueue(tasks)
        self._slots = slots[: len(tasks)]
        self._budget = budget
        self._hire = hire
        self._heard: Heard = queue.SimpleQueue()
        self._workers: dict[int, Worker] = {}
        self._ends = dict.fromkeys(self._slots, 0)
        self._ended_at: dict[int, list[str]] = {}  # by number of the task

    def events(self) -> Generator[Event, None, None]:
        """Tune all shapes and yield what happens.

        Closing the iterator, or an exception in it as of Ctrl-C, ends the workers.
        """
        try:
            for slot in self._slots:
                self._begin(slot)
            while self._workers and (self._queue or any(w.task for w in self._workers.values())):
                yield from self._listen()
                yield from self._hand_out()
            for task in self._queue.take_all():
                yield Failed(task, SoftgenError(f"{task}: no GPU is left to tune it on"))
        finally:
            for worker in self._workers.values():
                worker.end()

    def _begin(self, slot: int) -> None:
        self._workers[slot] = self._hire(slot, self._heard)

    def _listen(self) -> Iterator[Event]:
        """Wait for an answer, or until a worker has not given one for too long."""
        waits = {w: limit for w in self._workers.values() if (limit := self._patience(w))}
        ends = {w: w.heard_at + limit for w, limit in waits.items()}
        first = min(ends, key=ends.__getitem__, default=None)
        left = None if first is None else max(0.0, ends[first] - time.monotonic())
        try:
            worker, answer = self._heard.get(timeout=left)
        except queue.Empty:
            assert first is not None
            budget = f" with a budget of {self._budget:g} s" if first.task and self._budget else ""
            yield from self._ended(first, f"no answer for {waits[first]:g} s{budget}")
            return
        if self._workers.get(worker.slot) is not worker:
            return  # one that was given up has ended
        worker.heard_at = time.monotonic()
        if answer is None:
            yield from self._ended(worker)
        else:
            yield from self._answered(worker, answer)

    def _patience(self, worker: Worker) -> float | None:
        """Return how many seconds a worker may go on without an answer; None for any number."""
        if not worker.ready:
            return STARTING_SECONDS if worker.certain else None
        if worker.task is None:
            return None
        return UNBOUNDED_SECONDS if self._budget is None else 2 * self._budget + ANSWER_SECONDS

    def _hand_out(self) -> Iterator[Event]:
        for worker in self._workers.values():
            if worker.ready and worker.task is None:
                others = any(w.ready or w.certain for w in self._workers.values() if w != worker)
                worker.task = task = self._queue.take(worker.name, others)
                if task is not None:
                    worker.heard_at = time.monotonic()
                    worker.give(task, self._budget)
                    yield Began(worker.name, task)

    def _answered(self, worker: Worker, answer: Answer) -> Iterator[Event]:
        task = worker.task
        if "said" in answer:
            yield Said(worker.name, answer["said"])
        elif "ready" in answer:
            worker.ready = True
        elif "step" in answer:
            yield Stepped(worker.name, Progress(**answer["step"]))
        else:
            assert task is not None
            worker.task = None
            self._ends[worker.slot] = 0
            if "entry" in answer:
                yield Finished(worker.name, task, entry_from_json(answer["entry"]))
            else:
                kind: type[SoftgenError] = getattr(errors, answer["kind"], SoftgenError)
                yield Failed(task, kind(f"{task}, on {worker.name}: {answer['error']}"))

    def _ended(self, worker: Worker, hung: str = "") -> Iterator[Event]:
        """Replace a process that has ended or hung, and give its shape to another once."""
        gone = worker.end()
        del self._workers[worker.slot]
        self._ends[worker.slot] += 1
        task = worker.task
        how = hung or worker.how_ended()
        did = "is killed" if hung else "ended"
        yield Said(worker.name, f"its process {did}{f' at {task}' if task else ''} ({how})")
        if task is not None:
            ends = self._ended_at.setdefault(task.number, [])
            ends.append(f"{worker.name} ({how})")
            if not self._queue.give_back(task, worker.name):
                told = f"{task}: the process that tuned it ended on {' and on '.join(ends)}"
                yield Failed(task, SoftgenError(told))
        if not gone:
            yield Said(worker.name, "its process does not end; the GPU or its driver hangs")
        if not gone or not worker.ready or self._ends[worker.slot] >= MOST_ENDS:
            yield Said(worker.name, "nothing more is tuned on it")
        elif self._queue:
            self._begin(worker.slot)
