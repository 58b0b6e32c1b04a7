"""Compilers and emulators as processes that end with the work that they are for."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from typing import Any


class Stopped(Exception):
    """A process is not begun, or was killed, because nobody waits for it any more."""


class Crew:
    """Threads whose processes can be killed together; `join` is called in each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[Any]] = set()
        self._stopped = False

    def join(self) -> None:
        """Make the processes that this thread begins this crew's."""
        _of_thread.crew = self

    def stop(self) -> None:
        """Kill what runs, and let nothing begin."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _kill(process)

    @contextlib.contextmanager
    def begun(
        self, command: Sequence[Any], options: dict[str, Any]
    ) -> Iterator[subprocess.Popen[Any]]:
        """Begin a process, which is the crew's until the context ends."""
        with self._lock:
            if self._stopped:
                raise Stopped
            process = subprocess.Popen(command, start_new_session=True, **options)
            self._running.add(process)
        try:
            yield process
        finally:
            with self._lock:
                self._running.discard(process)
        if self._stopped:
            raise Stopped


_of_thread = threading.local()


def run(command: Sequence[Any], input: bytes | None = None, **options: Any) -> Any:
    """Run `command` to its end as subprocess.run does, with its output captured.

    A process has a session of its own: a compiler's are several, and all of them are killed if it
    is not waited for. Raises Stopped if the thread's crew was stopped.
    """
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options["stdin"] = subprocess.DEVNULL if input is None else subprocess.PIPE
    crew = getattr(_of_thread, "crew", None) or Crew()
    with crew.begun(command, options) as process:
        try:
            out, err = process.communicate(input)
        finally:
            if process.returncode is None:
                _kill(process)
                process.wait()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _kill(process: subprocess.Popen[Any]) -> None:
    """Kill a process that is not waited for yet, and those that it has begun."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
