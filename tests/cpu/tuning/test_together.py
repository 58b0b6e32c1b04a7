"""Eight processes of sixteen threads each that tune the same and other keys in one cache folder."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from softgen.problems.problem import Problem
from softgen.strategies import winners
from softgen.strategies.safe import Safe
from softgen.strategies.variants import Variant
from softgen.tuning import cache, policy, tune
from softgen.tuning.entry import Entry
from tests.helpers.entries import (
    H200,
    FakeTuner,
    fake_arch,
    fake_environment,
    finish,
    go,
    names,
    start,
)

PROCESSES, THREADS, ROWS = 8, 16, 4096
ALIKE = 4  # keys that every thread of every process wants
PROGRAM = "from tests.cpu.tuning.test_together import work; work()"


def wanted(process: int, thread: int) -> list[int]:
    """Return the widths of a thread: those that all want, and one of four of its process."""
    return [*range(1, ALIKE + 1), 100 + 10 * process + thread % 4]


class Heard(logging.Handler):
    """Fails where softgen warns of something."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


class Tuner(FakeTuner):
    """Takes a while, in which others want the same, and finds what no other process does."""

    def __call__(self, problem: Problem, rows: int, *, budget: float | None = None) -> Entry:
        time.sleep(0.01)
        return super().__call__(problem, rows, budget=budget)


def work() -> None:
    """Tune in one of the processes, whose number is its argument; say how often, by width."""
    process = int(sys.argv[1])
    tuner, heard = Tuner(), Heard()
    tuner.winner = Variant(tuner.winner.problem, Safe(32 * (1 + process)))
    logging.getLogger("softgen").addHandler(heard)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winners, "DIRECTORY", Path("none"))  # no table
        patch.setattr(tune, "tune", tuner)
        patch.setattr(policy, "environment", fake_environment)
        patch.setattr(policy, "arch_of", fake_arch)
        begin = threading.Barrier(THREADS)

        def choose(thread: int) -> None:
            begin.wait()
            for mode in ("on", "on", "force", "cached"):
                for cols in wanted(process, thread):
                    if mode == "force" and thread:  # one thread a process tunes again
                        continue
                    problem = Problem.of("softmax", "float32", cols)
                    found = policy.choose(problem, ROWS, 0, mode).variant
                    assert found.problem == problem
                    assert found.strategy.is_legal(problem, H200)

        print("ready", flush=True)
        sys.stdin.readline()
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(choose, range(THREADS)))
    assert heard.messages == []
    print(json.dumps(Counter(problem.cols for problem, _, _ in tuner.calls)))


def test_each_key_is_tuned_once_a_process_and_none_is_lost(own_cache: Path) -> None:
    processes = [start(number, program=PROGRAM) for number in range(PROCESSES)]
    go(processes)
    tuned = [{int(c): n for c, n in json.loads(each).items()} for each in finish(processes)]
    for number, counts in enumerate(tuned):
        own = {cols for thread in range(THREADS) for cols in wanted(number, thread)[ALIKE:]}
        forced = set(wanted(number, 0))
        assert set(counts) >= own | forced
        # Once, if no other process was quicker, and again by the thread that asks for it.
        assert all(counts[cols] <= 1 + (cols in forced) for cols in counts)
    keys = {cols for each in range(PROCESSES) for one in range(4) for cols in wanted(each, one)}
    cache._memory.clear()
    stored = {entry.key.problem.cols: entry for entry in cache.entries()}
    assert set(stored) == keys
    assert len(names(own_cache / "tuned")) == len(keys)  # nothing unfinished beside them
    for entry in stored.values():
        assert cache.load(entry.key, H200) == entry
