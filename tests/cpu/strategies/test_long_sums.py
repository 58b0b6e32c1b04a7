"""Rows whose sum a thread takes in many small steps: what rounding takes away must come back."""

from __future__ import annotations

import numpy as np
import pytest

from softgen.devices.emulator import run
from softgen.source.render import Source, render
from softgen.spec.problem import Problem
from softgen.strategies.base import Strategy
from softgen.strategies.lessons.serial import Serial
from softgen.strategies.online import Online
from softgen.strategies.safe import Safe
from softgen.strategies.shared import PLAIN, Shared
from softgen.strategies.variants import Variant
from tests.helpers.emulator_helpers import broken, share_programs
from tests.helpers.single import reference

THREADS = 64
SETTINGS: list[tuple[Strategy, int]] = [
    (Online(1, 1, THREADS), 1),
    (Online(4, 2, THREADS), 8),
    (Safe(THREADS), 1),
    (Serial(32), 1),
    (Shared(4, THREADS, PLAIN, 1, 0), 4),
]


@pytest.fixture(autouse=True)
def programs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    share_programs(tmp_path_factory, monkeypatch)


def error(source: Source, step: int) -> float:
    """Return the worst relative error where each further step is below half a unit of the sum."""
    cols = source.variant.problem.cols
    x = np.full((2, cols), np.log(0.95 * 2.0**-24 * 0.5), np.float32)
    x[:, : THREADS * step] = 0
    y = run(source, x).astype(np.float64)
    wanted = reference(source.variant.problem.function, x.astype(np.float64))
    return float(np.max(np.abs(y - wanted) / wanted))


@pytest.mark.parametrize(("strategy", "step"), SETTINGS, ids=lambda s: str(s))
def test_terms_below_the_last_place_of_a_sum_count(strategy: Strategy, step: int) -> None:
    source = render(Variant(Problem.of("softmax", "float32", 50_000), strategy))
    assert error(source, step) < 4e-7
    without = broken(source, "lost += (before - sum) + term;", "")
    assert error(without, step) > 2e-6
