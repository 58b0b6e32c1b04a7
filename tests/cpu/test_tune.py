"""How the tuner chooses among what it timed; the timing itself needs a GPU."""

from __future__ import annotations

import random

from softgen.entry import Timing
from softgen.tune import LEAST_FINALISTS, MOST_FINALISTS, NOISE, _finalists, choose_finalist

ROUNDS = 8


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
    assert choose_finalist(steady(guess=2.0, b=1.005, c=1.0)) == "b"
    assert choose_finalist(steady(guess=2.0, b=1.02, c=1.0)) == "c"


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
