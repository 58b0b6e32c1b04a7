"""Rows that start anywhere and end where a thread's packs, or a row's slices, meet.

With an odd width, 32 float32 rows start at each place of a cache line once, so that each row ends
in another of the packs that may hold its last column.
"""

from __future__ import annotations

import numpy as np
import pytest

from softgen.devices.emulator import run
from softgen.errors import EmulationError
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.block import Block
from softgen.strategies.cluster import Cluster
from softgen.strategies.sliced import Sliced
from softgen.strategies.split import Split
from softgen.strategies.variants import Variant
from tests.helpers.single import reference

ROWS = 33

# The end lies in packs `cols // 4` to `(cols + 30) // 4` of a row.
ROUNDS_MEET = (Block(4, 40, 64, 64, 1), 64 * 9 * 4 - 3)
BLOCKS_MEET = (Cluster(4, 8, 32, 16, 1, False), 40 * 13 * 4 - 3)
CHUNKS_MEET = (Split(4, 8, 64, 1, False), 128 * 5 * 4 - 3)


def source_of(strategy: Sliced, cols: int) -> Source:
    return render(Variant(Problem.of("softmax", "float32", cols), strategy))


def error(source: Source) -> float:
    draw = np.random.default_rng(3).normal(0, 4, (ROWS, source.variant.problem.cols))
    x = draw.astype(np.float32)
    y = run(source, x).astype(np.float64)
    wanted = reference(source.variant.problem.function, x.astype(np.float64))
    return float(np.max(np.abs(y - wanted) / wanted))


@pytest.mark.parametrize(
    ("setting", "correct", "wrong"),
    [
        (ROUNDS_MEET, [0, 8, 9], [0, 8]),
        (BLOCKS_MEET, [0, 1], [0]),
        (CHUNKS_MEET, [0, 1], [0]),
    ],
    ids=["rounds", "blocks", "chunks"],
)
def test_a_row_ends_on_either_side(
    setting: tuple[Sliced, int],
    correct: list[int],
    wrong: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strategy, cols = setting
    problem = Problem.of("softmax", "float32", cols)
    assert strategy.line_packs(problem) == 8
    assert strategy.cut_packs(problem) == correct
    source = source_of(strategy, cols)
    assert error(source) < 2e-6
    monkeypatch.setattr(type(strategy), "cut_packs", lambda *_: wrong)
    render.cache_clear()
    mistaken = source_of(strategy, cols)
    render.cache_clear()
    assert mistaken.text != source.text
    with pytest.raises(EmulationError, match="never written"):
        error(mistaken)
