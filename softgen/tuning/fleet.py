"""Tune shapes on several GPUs of this machine: a process each, which gets a shape at a time.

Processes, and no threads: NVRTC's compilations, Python and CuPy's launches of one GPU wait for no
other, and a process that dies takes one shape with it. Each stores what it has finished itself.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from softgen import errors
from softgen.errors import SoftgenError
from softgen.tuning.entry import entry_from_json
from softgen.tuning.events import Began, Event, Failed, Finished, Said, Stepped
from softgen.tuning.handout import Handout, Task
from softgen.tuning.tune import Progress

WORKER = "softgen.tuning.worker"  # the module whose `main` a process runs

# Processes of a GPU that may end in a row, without a shape that was finished in between.
MOST_ENDS = 3

Answer = dict[str, Any]


class _Worker:
    """A process that tunes on one GPU.

    Attributes:
        name: of the GPU, in messages.
        task: what it is tuning; None while it has nothing.
        ready: whether it has loaded CUDA and waits for shapes.
    """

    def __init__(self, device: int, heard: queue.SimpleQueue[tuple[_Worker, Answer | None]]):
        self.device, self.name = device, f"GPU {device}"
        self.task: Task | None = None
        self.ready = False
        self._heard = heard
        self._last_words = ""
        # It imports what is imported here, and no module of a user's current folder instead.
        path = [*map(str, sys.path)]
        code = f"import sys; sys.path[:] = {path!r}; from {WORKER} import main; main({device})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C of a terminal is ours alone; we end it
        )
        self._said = threading.Thread(target=self._hear_stderr, daemon=True)
        self._answered = threading.Thread(target=self._hear_stdout, daemon=True)
        self._said.start()
        self._answered.start()

    def _hear_stderr(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if line.strip():
                self._last_words = line.strip()
                self._heard.put((self, {"said": line.rstrip()}))

    def _hear_stdout(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):  # else it was killed as it wrote
                self._heard.put((self, json.loads(line)))
        self._process.wait()
        self._said.join()
        self._heard.put((self, None))

    def give(self, task: Task, budget: float | None) -> None:
        """Have it tune a shape; one that has ended meanwhile says so by itself."""
        self.task = task
        request = {"problem": task.problem.as_json, "rows": task.rows, "budget": budget}
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def how_ended(self) -> str:
        """Return how the process ended, with the last that it said."""
        code = self._process.returncode
        how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        return f"{how}: {self._last_words}" if self._last_words else how

    def end(self) -> None:
        """End the process; what it has finished is stored."""
        self._process.kill()
        self._answered.join()
        with contextlib.suppress(OSError):  # a request that it did not read
            self._process.__exit__(None, None, None)


class Fleet:
    """The processes that tune, and what is left to tune.

    Args:
        tasks: the shapes.
        devices: numbers of GPUs, all of one model.
        budget: seconds a shape; None for no limit.
    """

    def __init__(self, tasks: Sequence[Task], devices: Sequence[int], budget: float | None) -> None:
        self._handout = Handout(tasks)
        self._devices = devices[: len(tasks)]
        self._budget = budget
        self._heard: queue.SimpleQueue[tuple[_Worker, Answer | None]] = queue.SimpleQueue()
        self._workers: dict[int, _Worker] = {}
        self._ends = dict.fromkeys(self._devices, 0)
        self._ended_at: dict[int, list[str]] = {}  # by number of the task

    def events(self) -> Generator[Event, None, None]:
        """Tune all shapes and yield what happens.

        Closing the iterator, or an exception in it as of Ctrl-C, ends the processes.
        """
        try:
            for device in self._devices:
                self._begin(device)
            while self._workers and (self._handout or any(w.task for w in self._workers.values())):
                worker, answer = self._heard.get()
                if answer is None:
                    yield from self._ended(worker)
                else:
                    yield from self._answered(worker, answer)
                yield from self._hand_out()
            for task in self._handout.take_all():
                yield Failed(task, SoftgenError(f"{task}: no GPU is left to tune it on"))
        finally:
            for worker in self._workers.values():
                worker.end()

    def _begin(self, device: int) -> None:
        self._workers[device] = _Worker(device, self._heard)

    def _hand_out(self) -> Iterator[Event]:
        for worker in self._workers.values():
            if worker.ready and worker.task is None:
                task = self._handout.take(worker.name, others=len(self._workers) > 1)
                if task is not None:
                    worker.give(task, self._budget)
                    yield Began(worker.name, task)

    def _answered(self, worker: _Worker, answer: Answer) -> Iterator[Event]:
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
            self._ends[worker.device] = 0
            if "entry" in answer:
                yield Finished(worker.name, task, entry_from_json(answer["entry"]))
            else:
                kind: type[SoftgenError] = getattr(errors, answer["kind"], SoftgenError)
                yield Failed(task, kind(f"{task}, on {worker.name}: {answer['error']}"))

    def _ended(self, worker: _Worker) -> Iterator[Event]:
        """Replace a process that has ended, and give its shape to another once."""
        worker.end()
        del self._workers[worker.device]
        self._ends[worker.device] += 1
        how, task = worker.how_ended(), worker.task
        yield Said(worker.name, f"its process ended{f' at {task}' if task else ''} ({how})")
        if task is not None:
            ends = self._ended_at.setdefault(task.number, [])
            ends.append(f"{worker.name} ({how})")
            if not self._handout.give_back(task, worker.name):
                told = f"{task}: the process that tuned it ended on {' and on '.join(ends)}"
                yield Failed(task, SoftgenError(told))
        if not worker.ready or self._ends[worker.device] >= MOST_ENDS:
            yield Said(worker.name, "nothing more is tuned on it")
        elif self._handout:
            self._begin(worker.device)
