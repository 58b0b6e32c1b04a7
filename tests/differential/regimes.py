"""Rows of all kinds, drawn: a kind a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.differential.storage import LARGEST, SMALLEST_NORMAL

Rows = npt.NDArray[np.float64]
Random = np.random.Generator
Kind = Callable[[Random, int, str], Any]


def _normal(sigma: float) -> Kind:
    return lambda random, cols, dtype: random.standard_normal(cols) * sigma


def _confident(random: Random, cols: int, dtype: str) -> Any:
    x = random.standard_normal(cols) * float(random.choice([0.01, 1, 5]))
    x[random.integers(cols)] = random.uniform(3, 100)
    return x


def _all_but_one(random: Random, cols: int, dtype: str) -> Any:
    x = np.full(cols, -np.inf)
    x[random.integers(cols)] = random.standard_normal() * 30
    return x


def _two(random: Random, cols: int, dtype: str) -> Any:
    x = random.standard_normal(cols)
    x[random.integers(cols, size=2)] = random.uniform(2, 40)
    return x


def _equal(random: Random, cols: int, dtype: str) -> Any:
    return np.full(cols, random.choice([0.0, -0.0, 0.75, -3.3, 1000.0]))


def _spread(random: Random, cols: int, dtype: str) -> Any:
    return random.uniform(-1, 1, cols) * LARGEST[dtype] * 10.0 ** random.integers(-6, 1)


def _largest(sign: float) -> Kind:
    def make(random: Random, cols: int, dtype: str) -> Any:
        x = np.full(cols, sign * LARGEST[dtype])
        if random.random() < 0.5:
            x[random.random(cols) < 0.4] = random.choice([-np.inf, 0.0, -sign * LARGEST[dtype]])
        return x

    return make


def _some_hidden(random: Random, cols: int, dtype: str) -> Any:
    x = random.standard_normal(cols) * 4
    x[random.random(cols) < random.random()] = -np.inf
    return x


def _hidden_end(random: Random, cols: int, dtype: str) -> Any:
    x, cut = random.standard_normal(cols) * 4, random.integers(cols + 1)
    x[cut:] = -np.inf
    return x[::-1] if random.random() < 0.5 else x


def _with(*values: float) -> Kind:
    def make(random: Random, cols: int, dtype: str) -> Any:
        x = random.standard_normal(cols) * 4
        for value in values:
            x[random.integers(cols)] = value
        return x

    return make


def _subnormal(random: Random, cols: int, dtype: str) -> Any:
    x = random.uniform(-1, 1, cols) * SMALLEST_NORMAL[dtype]
    return -np.abs(x) if random.random() < 0.5 else x


def _far(random: Random, cols: int, dtype: str) -> Any:
    far = random.choice([1e3, 3e4, 1.3 * 2.0**21, 8e7]) * random.choice([-1, 1])
    x = random.standard_normal(cols) * 10 + far
    return np.clip(x, -LARGEST[dtype], LARGEST[dtype])


def _ramp(random: Random, cols: int, dtype: str) -> Any:
    x = np.linspace(0, random.choice([1.0, 12.0, 80.0]), cols)
    return x if random.random() < 0.5 else x[::-1]


def _around_zero(random: Random, cols: int, dtype: str) -> Any:
    x = -np.abs(random.standard_normal(cols) * 6)
    x[random.integers(cols)] = random.choice([0.0, -0.0, SMALLEST_NORMAL[dtype]])
    return x


def _whole(random: Random, cols: int, dtype: str) -> Any:
    return random.integers(-20, 20, cols).astype(float)


# By how often they are drawn.
KINDS: dict[str, tuple[int, Kind]] = {
    "normal": (4, _normal(1)),
    "narrow": (1, _normal(0.05)),
    "wide": (2, _normal(13)),
    "wider": (2, _normal(100)),
    "confident": (4, _confident),
    "all but one": (1, _all_but_one),
    "two": (1, _two),
    "equal": (1, _equal),
    "spread": (1, _spread),
    "largest": (1, _largest(1)),
    "lowest": (1, _largest(-1)),
    "some hidden": (2, _some_hidden),
    "hidden end": (1, _hidden_end),
    "hidden": (1, lambda random, cols, dtype: np.full(cols, -np.inf)),
    "NaN": (1, _with(np.nan)),
    "infinity": (1, _with(np.inf)),
    "NaN and infinity": (1, _with(np.nan, np.inf)),
    "subnormal": (1, _subnormal),
    "far": (2, _far),
    "ramp": (1, _ramp),
    "around zero": (1, _around_zero),
    "whole": (1, _whole),
}


def drawn(random: Random, rows: int, cols: int, dtype: str) -> Rows:
    """Return rows of drawn kinds; at times all of one kind."""
    names = [name for name, (count, _) in KINDS.items() for _ in range(count)]
    kinds = random.choice(names, size=rows)
    if random.random() < 0.15:
        kinds[:] = kinds[0]
    return np.stack([KINDS[name][1](random, cols, dtype) for name in kinds])
