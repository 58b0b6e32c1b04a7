"""Rows whose sum a thread takes in many small steps: what rounding takes away must come back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from softgen.devices.emulator import build
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.base import Strategy
from softgen.strategies.lessons.serial import Serial
from softgen.strategies.online import Online
from softgen.strategies.safe import Safe
from softgen.strategies.shared import PLAIN, Shared
from softgen.strategies.variants import Variant
from tests.helpers.emulator_helpers import broken
from tests.helpers.single import reference

THREADS = 64
SETTINGS: list[tuple[Strategy, int]] = [
    (Online(1, 1, THREADS), 1),
    (Online(4, 2, THREADS), 8),
    (Safe(THREADS), 1),
    (Serial(32), 1),
    (Shared(4, THREADS, PLAIN, 1, 0), 4),
]


def errors(sources: Sequence[Source], step: int) -> list[float]:
    """Return the worst relative error where each further step is below half a unit of the sum."""
    problem = sources[0].variant.problem
    x = np.full((2, problem.cols), np.log(0.95 * 2.0**-24 * 0.5), np.float32)
    x[:, : THREADS * step] = 0
    wanted = reference(problem.function, x.astype(np.float64))
    program = build(sources)
    found = [program.run(source, x).astype(np.float64) for source in sources]
    return [float(np.max(np.abs(y - wanted) / wanted)) for y in found]


MISTAKES = (
    ("lost += (before - sum) + term;", ""),
    ("lost += (before", "lost = (before"),
    ("lost += (before", "lost -= (before"),
    ("(before - sum) + term", "(before + sum) + term"),
    ("return sum + lost;", "return sum;"),
    ("return sum + lost;", "return sum - lost;"),
)


@pytest.mark.parametrize(("strategy", "step"), SETTINGS, ids=lambda s: str(s))
def test_terms_below_the_last_place_of_a_sum_count(strategy: Strategy, step: int) -> None:
    source = render(Variant(Problem.of("softmax", "float32", 50_000), strategy))
    wrong = [broken(source, *mistake) for mistake in MISTAKES]
    right, *others = errors([source, *wrong], step)
    assert right < 4e-7
    assert min(others) > 2e-6, dict(zip(MISTAKES, others, strict=True))
