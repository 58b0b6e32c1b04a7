"""A worker that is a process of this machine, for one of its GPUs: `worker.py` on its other side.

Processes, and no threads: NVRTC's compilations, Python and CuPy's launches of one GPU wait for no
other, and a process that dies takes one shape with it.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading

from softgen.tuning.fleet import Heard, Worker
from softgen.tuning.handout import Task

WORKER = "softgen.tuning.worker"  # the module whose `main` a process runs
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
