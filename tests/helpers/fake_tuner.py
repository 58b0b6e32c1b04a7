"""A tuner that needs no GPU, in this process or in workers, and goes wrong where it is asked to."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import softgen
from softgen.errors import VerificationError
from softgen.problems.arch import arch_named
from softgen.problems.problem import Problem
from softgen.strategies.variants import candidates
from softgen.tuning import cache, process, tune
from softgen.tuning.cluster import Tuner, gpu_name
from softgen.tuning.entry import Entry, Key, Timing
from softgen.tuning.tune import Progress

# What happens at these widths.
INTERRUPTING_COLS = 4097  # Ctrl-C
KILLING_ONCE_COLS = 5000  # SIGKILL, unless the shape was begun before
KILLING_COLS = 6000  # SIGKILL
WRONG_COLS = 7000  # a VerificationError
CRASHING_COLS = 7001  # another error, as one of CUDA
WAITING_COLS = 8000  # it takes a minute
HANGING_ONCE_COLS = 8500  # the process stops, unless the shape was begun before
HANGING_COLS = 8600  # it stops
PRINTING_COLS = 8700  # Python and a library of C print on stdout
MEETING_COLS = 9000  # it is done a moment after another device has begun

BROKEN_DEVICE = 9  # cannot be used
HANGING_DEVICE = 10  # never gets as far as that

# A file that gets a line for each shape that is begun, and for a device that cannot be used.
LOG = "FAKE_TUNER_LOG"

_device = 0


_code = ""  # of the entries; that of the winner's text where it is empty


def fake_tune(
    problem: Problem,
    rows: int,
    *,
    budget: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Entry:
    """Report two candidates, store the second."""
    begun = [each.cols for each in log()]
    _write(problem.cols)
    if problem.cols == INTERRUPTING_COLS:
        raise KeyboardInterrupt
    if problem.cols == KILLING_COLS or (
        problem.cols == KILLING_ONCE_COLS and KILLING_ONCE_COLS not in begun
    ):
        os.kill(os.getpid(), signal.SIGKILL)
    if problem.cols == HANGING_COLS or (
        problem.cols == HANGING_ONCE_COLS and HANGING_ONCE_COLS not in begun
    ):
        os.kill(os.getpid(), signal.SIGSTOP)
    if problem.cols == WRONG_COLS:
        raise VerificationError("no candidate works")
    if problem.cols == CRASHING_COLS:
        raise RuntimeError("an illegal memory access was encountered")
    if problem.cols == PRINTING_COLS:
        print("printed by Python", flush=True)
        os.write(1, b"printed by C\n")
    if problem.cols == WAITING_COLS:
        time.sleep(60)
    if problem.cols == MEETING_COLS:
        until(lambda: len({each.device for each in log()}) > 1)
        time.sleep(0.5)
    found = list(candidates(problem, rows, arch_named("sm_90"), "online"))[:2]
    for done, variant in enumerate(found, 1):
        if progress is not None:
            progress(Progress(done, 2, variant.name, variant.name, 100.0 * done))
    timings = tuple(Timing(v.name, t, t, t) for v, t in zip(found[::-1], (2.0, 3.0), strict=True))
    key = Key.of(problem, rows, {"device": "a test"})
    entry = Entry(key, found[1], timings, code=_code)
    cache.store(entry)
    return entry


class Begun(NamedTuple):
    """A line of the log."""

    device: int
    cols: int
    pid: int


def log() -> list[Begun]:
    """Return what was begun."""
    path = os.environ.get(LOG)
    if path is None or not Path(path).exists():
        return []
    return [Begun(*map(int, line.split())) for line in Path(path).read_text().splitlines()]


def _write(cols: int) -> None:
    if path := os.environ.get(LOG):
        with open(path, "a") as file:
            file.write(f"{_device} {cols} {os.getpid()}\n")


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def use(device: int) -> None:
    """Take a device that is none."""
    global _device
    _device = device
    if device == BROKEN_DEVICE:
        _write(0)
        raise RuntimeError("the device is not there")
    if device == HANGING_DEVICE:
        _write(0)
        os.kill(os.getpid(), signal.SIGSTOP)


def main(device: int) -> None:
    """Run a worker with this tuner; `softgen.tuning.process` names it in tests."""
    global _code
    _code = "of a fake tuner"  # to render a text takes about as long as a worker may hang in tests
    tune.tune = fake_tune
    process.use = use
    process.main(device)


class FakeTuner(Tuner):
    """An actor of Ray with this tuner."""

    def begin(self) -> dict[str, str]:
        """Take a GPU that is none."""
        tune.tune = fake_tune
        return {"name": gpu_name(), "version": softgen.__version__}
