"""Which kernel the direct exchange launches: processes time together, and choose the same."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

from softgen.distributed import direct, tuned
from softgen.problems.arch import arch_named
from softgen.problems.problem import Problem
from softgen.problems.shards import SHARDS
from softgen.strategies.variants import candidates
from softgen.tuning import cache
from tests.cpu.distributed.hosts import ROWS, here, shards_of

WIDTHS = (40, 37)
Times = Callable[[int, int], float]  # of a process, and the number of a candidate


class Replay:
    """A call that takes what a test says.

    Its first run launches it, where it has results.
    """

    def __init__(self, x: Any, run: Callable[[Any], Any], times: dict[str, float]) -> None:
        self._x, self._run, self._times, self._us = x, run, times, 0.0
        self.results: tuple[Any, ...] = ()

    def microseconds(self) -> float:
        if not self._us:
            name = self._run.__name__
            if name in ("direct", "gather"):
                self.results = (self._run(self._x),)
            self._us = self._times[here.host.launched[here.rank][-1] if name == "direct" else name]
        return self._us


def floats(place: int, size: int) -> Any:
    """Return float32 at an address."""
    return np.frombuffer(ctypes.string_at(place, 4 * size), "f4")


def names(width: int) -> list[str]:
    """Return the kernels that are timed for a shard."""
    problem = Problem.of("softmax", "float32", width, layout=SHARDS)
    found = [tuned.guess(problem, ROWS, 0)]
    for variant in candidates(problem, ROWS, arch_named("sm_90")):
        found.append(tuned._triggering(variant))
    return [variant.name for variant in dict.fromkeys(found)][: tuned.MOST_CANDIDATES]


@pytest.fixture
def timed(every: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what has two processes call softmax, where times are as a test says.

    It takes a function of (rank, number of the candidate), and what an all-gather, a copy and
    sending take. A candidate whose time is 0 cannot be captured, one of -1 is wrong. It returns
    which kernels each process launched at last, and how many clocks were made.
    """
    monkeypatch.setenv("SOFTGEN_TUNE", "on")
    monkeypatch.setenv("SOFTGEN_TUNE_BUDGET", "600")  # the emulator compiles for seconds
    monkeypatch.setattr(tuned, "MOST_CANDIDATES", 3)
    monkeypatch.setattr("torch.distributed.get_backend_config", lambda group: "cuda:nccl")
    exact, shards = shards_of(WIDTHS, torch.float32)

    def run(times: Times, gather: float = 90.0, clone: float = 100.0, send: float = 1.0) -> Any:
        clocks: list[int] = []
        of_names = [{n: times(r, i) for i, n in enumerate(names(w))} for r, w in enumerate(WIDTHS)]

        class Clock:
            def __init__(self, x: Any) -> None:
                self.x = x
                clocks.append(here.rank)

            def replay(self, run: Callable[[Any], Any]) -> Replay:
                mine = {**of_names[here.rank], "gather": gather, "clone": clone, "send": send}
                *_, kernel = here.exchange._kernels.values()
                if run.__name__ == "direct" and not mine[kernel.variant.name]:
                    raise RuntimeError("out of memory")
                return Replay(self.x, run, mine)

        def differing(got: int, wanted: int, size: int, operand: Any, kernel: Any) -> int:
            if of_names[here.rank][kernel.variant.name] < 0:
                return 1
            a, b = (floats(place, size) for place in (got, wanted))
            return int((~np.isclose(a, b, 4e-6, 1e-30, equal_nan=True)).sum())

        monkeypatch.setattr(tuned, "Clock", Clock)
        monkeypatch.setattr(tuned, "differing", differing)

        def body(exchange: Any, rank: int) -> Any:
            here.exchange = exchange
            exchange.softmax(shards[rank], torch.float32)
            before = len(here.host.launched[rank])
            y = exchange.softmax(shards[rank], torch.float32)
            return y, here.host.launched[rank][before:]

        found, _ = every(2, body)
        y = torch.cat([each for each, _ in found], -1).double()
        right = torch.softmax(exact, -1)
        torch.testing.assert_close(y, right, rtol=3e-6, atol=3e-6, equal_nan=True)
        return [launched for _, launched in found], len(clocks)

    return run


def of_candidate(number: int) -> list[list[str]]:
    """Return what two processes launch that chose a candidate."""
    return [[names(width)[number]] for width in WIDTHS]


def test_the_slowest_process_counts(timed: Any) -> None:
    """The second candidate is the fastest of the first process alone, and of the mean."""
    launched, clocks = timed(lambda rank, i: ((10, 1, 8), (9, 12, 8.5))[rank][i])
    assert launched == of_candidate(2)
    assert clocks == 2
    stored = {entry.key.problem.cols: entry for entry in cache.entries()}
    assert stored.keys() == set(WIDTHS)
    for width, entry in stored.items():
        assert dict(entry.key.environment)["shards"] == 2
        assert entry.winner.name == names(width)[2]
        assert [t.microseconds for t in entry.timings] == [8.5, 10, 12]
        assert entry.rows == ROWS


def test_what_is_stored_is_not_timed_again(timed: Any) -> None:
    timed(lambda rank, i: (3.0, 2.0, 1.0)[i])
    launched, clocks = timed(lambda rank, i: (1.0, 2.0, 3.0)[i])
    assert launched == of_candidate(2)
    assert clocks == 0


def test_where_one_has_nothing_stored_all_time(timed: Any) -> None:
    """As where another process had other columns before."""
    timed(lambda rank, i: (3.0, 2.0, 1.0)[i])
    (lost,) = [e for e in cache.entries() if e.key.problem.cols == WIDTHS[1]]
    (cache.tuned_directory() / lost.key.file_name).unlink()
    launched, clocks = timed(lambda rank, i: (1.0, 2.0, 3.0)[i])
    assert launched == of_candidate(0)
    assert clocks == 2


@pytest.mark.parametrize("fault", [0, -1], ids=["no memory", "wrong results"])
@pytest.mark.parametrize("where", [0, 1])
def test_what_fails_for_one_is_taken_by_none(fault: float, where: int, timed: Any) -> None:
    launched, _ = timed(lambda rank, i: fault if (rank, i) == (where, 1) else (9.0, 1.0, 8.0)[i])
    assert launched == of_candidate(2)


def test_where_nothing_can_be_timed_the_guess_stays(timed: Any) -> None:
    launched, _ = timed(lambda rank, i: 0)
    assert launched == of_candidate(0)
    assert cache.entries() == []


def test_equals_leave_the_first_guess(timed: Any) -> None:
    assert timed(lambda rank, i: (1.004, 1.0, 1.0)[i])[0] == of_candidate(0)


@pytest.mark.parametrize("mode", ["off", "cached"])
def test_where_one_must_not_time_nobody_does(
    mode: str, timed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned, "tune_mode", lambda _: mode if here.rank else "on")
    launched, clocks = timed(lambda rank, i: (3.0, 2.0, 1.0)[i])
    assert launched == of_candidate(0)
    assert clocks == 0


def test_a_budget_that_is_spent_leaves_what_was_timed(
    timed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTGEN_TUNE_BUDGET", "1e-9")
    assert timed(lambda rank, i: (3.0, 2.0, 1.0)[i])[0] == of_candidate(0)
    assert [len(entry.timings) for entry in cache.entries()] == [1, 1]


class Gathering:
    """An all-gather that knows what comes out."""

    def __init__(self, group: Any) -> None:
        """Take a group."""

    def softmax(self, x: Any, dtype: Any, log: bool) -> Any:
        exact, _ = shards_of(WIDTHS, torch.float32)
        return torch.softmax(exact, -1).split(WIDTHS, -1)[here.rank].float()


def test_the_all_gather_where_it_is_faster(timed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is launched then, and the next processes gather without a timing."""
    monkeypatch.setattr(direct, "Collective", Gathering)

    def times(rank: int, i: int) -> float:
        return (9.0, 8.0, 7.0)[i]

    assert timed(times, gather=6.5, clone=0.1) == ([[], []], 2)
    assert [[t.microseconds for t in e.timings] for e in cache.entries()] == [[6.5, 7, 8, 9]] * 2
    assert timed(times) == ([[], []], 0)


@pytest.mark.parametrize(("gather", "clone", "send"), [(7.5, 1, 5), (6.5, 4, 1.1), (6.5, 1, 5.6)])
def test_the_all_gather_where_it_is_slower(
    gather: float, clone: float, send: float, timed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not timed where three passes over the shard, of which a copy is two, take longer.

    With what is sent.
    """
    monkeypatch.setattr(direct, "Collective", Gathering)
    launched, _ = timed(lambda rank, i: (9.0, 8.0, 7.0)[i], gather, clone, send)
    assert launched == of_candidate(2)
    timed_names = [t.variant for t in cache.entries()[0].timings]
    assert (tuned.GATHERED in timed_names) == (gather > 7)
