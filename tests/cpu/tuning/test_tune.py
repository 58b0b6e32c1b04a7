"""How the tuner chooses; the timing itself needs a GPU."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from softgen.problems.arch import arch_named
from softgen.problems.problem import Problem
from softgen.source.render import Source
from softgen.strategies.variants import best_guess
from softgen.tuning import cache
from softgen.tuning import tune as tuner
from softgen.tuning.cost import worth_timing
from softgen.tuning.entry import Timing
from softgen.tuning.measure import Buffers
from softgen.tuning.tune import LEAST_FINALISTS, MOST_FINALISTS, NOISE, _finalists, choose_finalist

ROUNDS = 8
H200 = arch_named("sm_90")


def timed(**microseconds: float) -> dict[str, Timing]:
    return {name: Timing(name, time, time, time) for name, time in microseconds.items()}


def steady(**microseconds: float) -> dict[str, list[list[float]]]:
    return {name: [[time] * 5] * ROUNDS for name, time in microseconds.items()}


def test_the_finals_are_for_the_fastest_and_the_best_guess() -> None:
    screened = timed(guess=9.0, b=3.0, c=1.0, d=2.0, e=1.5, f=2.5)
    assert _finalists(screened) == ["guess", "c", "d", "e", "f"]
    assert len(_finalists(screened)) == LEAST_FINALISTS + 1


def test_all_within_the_noise_of_a_short_look_come_to_the_finals() -> None:
    screened = timed(**{f"v{i}": 1.0 + i / 200 for i in range(6)}, slow=1.06)
    assert _finalists(screened) == [f"v{i}" for i in range(6)]
    many = timed(**{f"v{i}": 1.0 for i in range(20)})
    assert len(_finalists(many)) == MOST_FINALISTS


def test_the_earlier_guess_wins_unless_it_is_beaten_by_more_than_the_noise() -> None:
    assert choose_finalist(steady(guess=1.0 + NOISE * 0.9, b=1.0)) == "guess"
    assert choose_finalist(steady(guess=1.0 + NOISE * 1.1, b=1.0)) == "b"
    assert choose_finalist(steady(guess=2.0, b=1.0 + NOISE * 0.5, c=1.0)) == "b"
    assert choose_finalist(steady(guess=2.0, b=1.0 + NOISE * 2, c=1.0)) == "c"


def test_a_step_of_the_clocks_half_way_does_not_move_the_choice() -> None:
    """Each median of all times would be one of before or of after the step, by chance."""
    fast = [[1.0] * 5] * 4 + [[1.1] * 5] * 4
    slow = [[1.03] * 5] * 4 + [[1.133] * 5] * 4
    assert choose_finalist({"guess": slow, "b": fast}) == "b"


def test_two_tunings_choose_kernels_that_are_equally_fast() -> None:
    """Noise of 1% a sample and of 2% a round, which all finalists of the round share."""
    true = {f"v{i}": 1.0 + 0.004 * i for i in range(MOST_FINALISTS)}
    chosen = set()
    for seed in range(200):
        draw = random.Random(seed)
        shared = [draw.gauss(1.0, 0.02) for _ in range(ROUNDS)]
        order = list(true)
        chosen.add(
            choose_finalist(
                {n: [[true[n] * s * draw.gauss(1, 0.01) for _ in range(9)] for s in shared]
                 for n in order}
            )
        )  # fmt: skip
    times = [true[name] for name in chosen]
    assert max(times) / min(times) <= 1.02


# tune() as a whole, on a GPU that is a list of times


class FakeStopwatch:
    """Says that a kernel takes 100 us, or what `FASTER` says of its strategy."""

    def __init__(self, buffers: Any) -> None:
        pass

    def warm_up(self, kernel: Any) -> None:
        pass

    def samples(self, kernel: Any, seconds: float, least: int = 5) -> list[float]:
        return [FASTER.get(kernel.variant.strategy.label, 100.0)] * least


class FakeGate:
    def __init__(self, problem: Problem, buffers: Any) -> None:
        pass

    def objection(self, kernel: Any) -> str | None:
        return "wrong" if kernel.variant.strategy.label == WRONG else None


FASTER = {
    "block_p4_c16_g64_b64_m1_pdl2": 50.0,
    "block_p4_c16_g64_b64_m1_pdl1": 45.0,
    "block_p4_c8_g128_b128_m1_pdl2": 40.0,
}
WRONG = "block_p4_c8_g128_b128_m1_pdl2"
SPILLS = "warp_p4_c32_g32_r1_b256_pdl2"


def fake_compile(sources: Iterable[Source]) -> Iterator[Any]:
    for source in sources:
        label = source.variant.strategy.label
        yield SimpleNamespace(variant=source.variant, local_bytes=8 * (label == SPILLS))


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimpleNamespace(getDevice=lambda: 0)
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=device))
    monkeypatch.setattr(tuner, "require_device", lambda: cupy)
    monkeypatch.setattr(tuner, "arch_of", lambda device: H200)
    monkeypatch.setattr(tuner, "environment", lambda device: {"device": H200.device})
    monkeypatch.setattr(Buffers, "allocate", lambda problem, rows: SimpleNamespace(rows=rows))
    monkeypatch.setattr(tuner, "primary_context", contextlib.nullcontext)
    monkeypatch.setattr(tuner, "Gate", FakeGate)
    monkeypatch.setattr(tuner, "Stopwatch", FakeStopwatch)
    monkeypatch.setattr(tuner, "compile_many", fake_compile)


@pytest.mark.usefixtures("fake_gpu")
def test_a_tuning_times_what_may_win_and_stores_the_fastest_that_is_right() -> None:
    problem, steps = Problem.of("softmax", "float32", 1024), list[tuner.Progress]()
    entry = tuner.tune(problem, 4000, progress=steps.append)
    assert (entry.key.rows, entry.rows) == (4096, 4000)
    worth = worth_timing(problem, 4000, H200)
    assert {step.total for step in steps} == {len(worth)}
    assert steps[-1].done == len(worth)
    triggering = {t.variant for t in entry.timings} - {variant.name for variant in worth}
    assert len(triggering) == 2 * tuner.MOST_TRIGGERING
    assert all(name.endswith(("_pdl1", "_pdl3")) for name in triggering)
    assert len(entry.timings) == len(worth) - 2 + len(triggering)
    assert {name.removeprefix("softmax_f32_1024_") for name, _ in entry.failures} == {WRONG, SPILLS}
    assert entry.winner.strategy.label == "block_p4_c16_g64_b64_m1_pdl1"
    assert entry.timings[0].variant == entry.winner.name
    assert cache.load(entry.key, H200) == entry


@pytest.mark.usefixtures("fake_gpu")
def test_without_budget_left_the_best_guess_is_still_timed() -> None:
    problem = Problem.of("softmax", "float32", 1024)
    entry = tuner.tune(problem, 4096, budget=1e-9)
    assert [t.variant for t in entry.timings] == [entry.winner.name]
    assert entry.winner == best_guess(problem, 4096, H200)


@pytest.mark.usefixtures("fake_gpu")
def test_times_are_those_of_all_rows_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fourth of the rows took 100 us."""
    monkeypatch.setattr(Buffers, "allocate", lambda problem, rows: SimpleNamespace(rows=rows // 4))
    entry = tuner.tune(Problem.of("softmax", "float32", 1024), 4096, budget=1e-9)
    assert entry.timings == (Timing(entry.winner.name, 400.0, 400.0, 400.0),)
    assert (entry.key.rows, entry.rows) == (4096, 4096)


def test_times_grow_with_the_rows() -> None:
    assert Timing("a", 10.0, 9.0, 11.0).times(3) == Timing("a", 30.0, 27.0, 33.0)
