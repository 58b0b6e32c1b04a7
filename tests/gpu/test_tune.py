"""The tuner on the GPU: quick, stable, and not asked where a winner is shipped."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import softgen
from softgen.call.kernels import _kernels
from softgen.devices.gpu.compile import compile_source
from softgen.devices.gpu.device import arch_of, environment
from softgen.problems.dtypes import DType
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies import winners
from softgen.strategies.variants import Variant, candidates
from softgen.tuning import cache, table
from softgen.tuning.cost import worth_timing
from softgen.tuning.entry import Entry, Key
from softgen.tuning.measure import Buffers, Stopwatch
from softgen.tuning.tune import Progress, tune
from tests.helpers.device_reference import device_normal

pytestmark = pytest.mark.gpu


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let an empty folder be that of the shipped tables, and no kernel be loaded."""
    monkeypatch.setattr(winners, "DIRECTORY", tmp_path)
    winners._winners.cache_clear()
    _kernels.clear()
    yield tmp_path
    winners._winners.cache_clear()
    _kernels.clear()


def test_a_shipped_winner_is_not_tuned_for(
    tables: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(*arguments: Any, **options: Any) -> Entry:
        raise AssertionError("a winner is shipped, and it was tuned all the same")

    problem = Problem.of("softmax", "float32", 1000)
    arch = arch_of(0)
    winner = list(candidates(problem, 128, arch))[3]  # no best guess
    made = Entry(Key.of(problem, 128, environment(0)), winner, ())
    winners.path_of(arch.device).write_text(table.text_of([made]))
    monkeypatch.setattr("softgen.tuning.tune.tune", timed)
    for rows in (65, 128):
        softgen.softmax(device_normal(rows, 1000, DType.FLOAT32))
    softgen.log_softmax(device_normal(100, 1000, DType.FLOAT32))
    assert {kernel.variant.strategy for kernel in _kernels.values()} == {winner.strategy}
    assert cache.entries() == []


def test_a_shape_is_tuned_within_five_seconds() -> None:
    problem, steps = Problem.of("softmax", "bfloat16", 32000), list[Progress]()
    start = time.perf_counter()
    tune(problem, 8192, progress=steps.append)
    assert time.perf_counter() - start <= 5
    assert steps[-1].total == len(worth_timing(problem, 8192, arch_of(0)))
    assert 8 <= steps[-1].done <= steps[-1].total


def side_by_side(a: Variant, b: Variant, rows: int) -> float:
    """Return how much slower the slower of two variants is, timed in turns."""
    stopwatch = Stopwatch(Buffers.allocate(a.problem, rows))
    kernels = [compile_source(render(variant)) for variant in (a, b)]
    stopwatch.warm_up(kernels[0])
    ratios = []
    for _ in range(15):
        first, second = (statistics.median(stopwatch.samples(k, 0.005)) for k in kernels)
        ratios.append(first / second)
    ratio = statistics.median(ratios)
    return max(ratio, 1 / ratio)


@pytest.mark.parametrize(
    ("dtype", "rows", "cols"),
    [("float32", 4096, 1024), ("bfloat16", 8, 128256), ("bfloat16", 8192, 32000)],
)
def test_two_tunings_choose_kernels_that_are_equally_fast(dtype: str, rows: int, cols: int) -> None:
    problem = Problem.of("softmax", dtype, cols)
    entries = [tune(problem, rows) for _ in range(2)]
    ratio = side_by_side(entries[0].winner, entries[1].winner, rows)
    found = [[(t.variant, t.microseconds) for t in entry.timings[:8]] for entry in entries]
    assert ratio <= 1.02, (entries[0].winner.name, entries[1].winner.name, found)


def test_the_time_is_that_of_all_rows_where_fewer_are_timed() -> None:
    problem = Problem.of("softmax", "bfloat16", 8192)
    rows = 1 << 18  # 4.3 GB a buffer: the tuner takes less
    entry = tune(problem, rows, budget=0.5)
    terabytes_per_second = rows * problem.bytes_per_row / entry.timings[0].microseconds / 1e6
    assert 0.5 < terabytes_per_second < 9
