"""A worker that is a process of this machine, for one of its GPUs, and what runs in it.

Processes, and no threads: NVRTC's compilations, Python and CuPy's launches of one GPU wait for no
other, and a process that dies takes one shape with it.

A request is a line of JSON, {"problem": ..., "rows": ..., "budget": ...}. Answers are
{"ready": true} once, {"step": ...} after each candidate, and {"entry": ...} or
{"error": message, "kind": class}. An error that is no SoftgenError ends the process: after some
errors of CUDA nothing works in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from softgen.errors import SoftgenError
from softgen.tuning import tune
from softgen.tuning.entry import problem_from_json
from softgen.tuning.fleet import Heard, Worker
from softgen.tuning.work_queue import Task

WORKER = __name__  # the module whose `main` a process runs
ENDING_SECONDS = 20.0  # that a process which is killed gets to end: CUDA gives its memory back


class Process(Worker):
    """A process that tunes on GPU number `slot`. It stores what it has finished itself."""

    def __init__(self, slot: int, heard: Heard) -> None:
        super().__init__(slot, f"GPU {slot}")
        self._heard = heard
        self._last_words = ""
        # It imports what is imported here, and no module of a user's current folder instead.
        path = [*map(str, sys.path)]
        code = f"import sys; sys.path[:] = {path!r}; from {WORKER} import main; main({slot})"
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
        """Send the shape; a process that has ended meanwhile says so by itself."""
        request = {"problem": task.problem.as_json, "rows": task.rows, "budget": budget}
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def how_ended(self) -> str:
        """Return the exit code or the signal, with the last that it said."""
        code = self._process.returncode
        how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        return f"{how}: {self._last_words}" if self._last_words else how

    def end(self) -> bool:
        """Kill the process, and wait a little until it has ended."""
        self._process.kill()
        self._answered.join(ENDING_SECONDS)
        if self._answered.is_alive():
            return False
        with contextlib.suppress(OSError):  # a request that it did not read
            self._process.__exit__(None, None, None)
        return True


def main(device: int) -> None:
    """Tune what comes on stdin on GPU `device`, until stdin ends."""
    answer = _answers()
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    use(device)
    answer({"ready": True})
    while True:
        answer(answer_of(**requests.get(), progress=lambda step: answer({"step": asdict(step)})))


def use(device: int) -> None:
    """Make GPU `device` this thread's, and load CUDA there."""
    from softgen.devices.gpu.device import require_device

    cuda = require_device().cuda
    cuda.Device(device).use()
    cuda.runtime.free(0)


def _answers() -> Callable[[dict[str, Any]], None]:
    """Return what writes an answer on stdout, where nothing else is written from now on."""
    stdout = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(fields: dict[str, Any]) -> None:
        stdout.write(json.dumps(fields) + "\n")
        stdout.flush()

    return answer


def _listen(requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Pass requests on, and end the process with stdin: nobody waits for it any more."""
    for line in sys.stdin:
        requests.put(json.loads(line))
    os._exit(0)


def answer_of(
    problem: dict[str, Any],
    rows: int,
    budget: float | None,
    progress: Callable[[tune.Progress], None] | None = None,
) -> dict[str, Any]:
    """Tune a shape, store the choice, and return what is to be answered: an entry or an error.

    Args:
        problem: `Problem.as_json`.
        rows: how many.
        budget: seconds; None for no limit.
        progress: called after each candidate.
    """
    try:
        entry = tune.tune(problem_from_json(problem), rows, budget=budget, progress=progress)
    except SoftgenError as error:
        return {"error": str(error), "kind": type(error).__name__}
    return {"entry": entry.to_json()}
