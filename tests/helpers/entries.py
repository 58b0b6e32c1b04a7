"""Entries of made-up devices, a tuner that only counts, and processes that begin at once.

Those processes import this module, and so neither pytest nor Hypothesis.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from softgen.disk import owned
from softgen.problems.arch import Arch, arch_named
from softgen.problems.problem import Problem
from softgen.strategies.safe import Safe
from softgen.strategies.variants import Variant
from softgen.tuning import cache
from softgen.tuning.entry import Entry, Key, Timing

ROOT = Path(__file__).parents[2]
H200 = arch_named("sm_90")
T4 = arch_named("sm_75")
ENVIRONMENT: dict[str, str | int] = {
    "device": "NVIDIA H200",
    "arch": "sm_90",
    "multiprocessors": 132,
    "nvrtc": "13.0",
    "driver": 13,
    "sources": "0123456789abcdef",
}
WINNER = Variant(Problem.of("softmax", "float32", 1000), Safe(512))


def make_entry(cols: int = 1000, rows: int = 4096, block_size: int = 256) -> Entry:
    problem = Problem.of("softmax", "float32", cols)
    winner = Variant(problem, Safe(block_size))
    return Entry(
        Key.of(problem, rows, ENVIRONMENT),
        winner,
        (Timing(winner.name, 10.5, 10.25, 11.0), Timing("another", 12.0, 11.5, 13.0)),
        (("a_third", "spills: 8 bytes of local memory a thread"),),
    )


class FakeTuner:
    """Stands for softgen.tuning.tune.tune: stores `winner` as the real one does."""

    def __init__(self) -> None:
        self.calls: list[tuple[Problem, int, float | None]] = []
        self.winner = WINNER
        self.failure: Exception | None = None
        self.counting = threading.Lock()
        self.running = 0
        self.most_at_once = 0
        self.hold: threading.Event | None = None
        self.release_at = 0  # as many at once set `hold`, if above 0

    def __call__(self, problem: Problem, rows: int, *, budget: float | None = None) -> Entry:
        with self.counting:
            self.calls.append((problem, rows, budget))
            self.running += 1
            self.most_at_once = max(self.most_at_once, self.running)
        if self.hold is not None:
            if self.running == self.release_at:
                self.hold.set()
            came = self.hold.wait(timeout=10)
            self.hold.set()  # where they never come, only the first waits in vain
            assert came
        with self.counting:
            self.running -= 1
        if self.failure is not None:
            raise self.failure
        entry = Entry(
            Key.of(problem, rows, fake_environment(0)),
            Variant(problem, self.winner.strategy),
            (Timing(self.winner.name, 3.0, 2.0, 4.0),),
        )
        cache.store(entry)
        return entry


def fake_environment(device: int) -> dict[str, str | int]:
    return {"device": "fake", "number": device}


def fake_arch(device: int) -> Arch:
    return (H200, T4)[device]


def names(folder: Path) -> list[str]:
    """Return what lies in a folder beside the marker of softgen's own."""
    return sorted(path.name for path in folder.iterdir() if path.name != owned.MARKER)


def start(*arguments: int, program: str) -> subprocess.Popen[str]:
    """Start a program that says "ready" and then waits for a line."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def go(processes: list[subprocess.Popen[str]]) -> None:
    """Let all begin at once, when the last is ready."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()


def finish(processes: list[subprocess.Popen[str]]) -> list[str]:
    """Wait until all have succeeded; return what each has printed since."""
    printed = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return printed
