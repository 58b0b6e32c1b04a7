"""The cost model: what it leaves out cannot win, and what is left takes seconds to time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from softgen.bench.suites import SUITES
from softgen.problems.arch import KNOWN, arch_named
from softgen.problems.dtypes import DType
from softgen.problems.layouts import Columns
from softgen.problems.problem import Problem
from softgen.strategies.base import Strategy
from softgen.strategies.block import Block
from softgen.strategies.online import Online
from softgen.strategies.registry import all_strategies
from softgen.strategies.variants import Variant, best_guess, candidates, parse_name
from softgen.strategies.warp import Warp
from softgen.tuning import cost as model
from softgen.tuning.cost import MOST, cost, elements_held, worth_timing

H200 = arch_named("sm_90")
RESULTS = Path(__file__).parents[3] / "docs" / "results"
WINNER = re.compile(r"\| (\w+) \| (\d+) x (\d+) \| [\d.]+ \| `(\w+)` \|")


def measured() -> list[tuple[Problem, int, Strategy]]:
    """Return the winners of the tables in docs/results/, all candidates having been timed."""
    found = []
    for page in sorted(RESULTS.glob("*.md")):
        function = "logsumexp" if page.stem == "logsumexp" else "softmax"
        for dtype, rows, cols, label in WINNER.findall(page.read_text()):
            problem = Problem.of(function, dtype, int(cols))
            variant = parse_name(f"{problem.label}_{label}")
            found.append((problem, int(rows), variant.strategy))
    return found


def nearest(setting: Strategy, found: list[Variant]) -> Strategy:
    """Return the setting of `found` that differs from `setting` in the fewest knobs."""
    same = [v.strategy for v in found if type(v.strategy) is type(setting)]
    return min(same, key=lambda s: sum(s.knobs[k] != v for k, v in setting.knobs.items()))


def test_among_settings_that_cost_alike_the_better_guesses_are_timed() -> None:
    """What won there was the third guess, and the 100th by a cost within 1% of the least."""
    problem = Problem.of("softmax", "bfloat16", 64, layout=Columns(21 * 512 * 512))
    rows = problem.layout.step
    found = list(candidates(problem, rows, H200))
    assert sum(cost(each, rows, H200) < 1.1 for each in found) > 2 * MOST
    assert worth_timing(problem, rows, H200)[:20] == found[:20]


def test_the_table_of_winners_is_read() -> None:
    assert len(measured()) >= 15


@pytest.mark.parametrize(
    ("problem", "rows", "setting"),
    [pytest.param(*each, id=f"{each[1]}x{each[0].label}") for each in measured()],
)
def test_what_won_on_an_h200_is_timed(problem: Problem, rows: int, setting: Strategy) -> None:
    """Where a strategy's knobs have moved since, the setting that is nearest to the winner is."""
    everything = list(candidates(problem, rows, H200))
    kept = {variant.strategy for variant in worth_timing(problem, rows, H200)}
    assert nearest(setting, everything) in kept


@pytest.mark.parametrize("suite", SUITES)
def test_a_tuning_times_some_dozens_at_most(suite: str) -> None:
    for shape in SUITES[suite].shapes():
        problem = Problem.of("softmax", shape.dtype, shape.cols)
        kept = worth_timing(problem, shape.rows, H200)
        assert 8 <= len(kept) <= MOST, shape.label


@pytest.mark.parametrize("arch", KNOWN)
@pytest.mark.parametrize("dtype", DType)
def test_the_best_guesses_are_always_among_them(arch: str, dtype: DType) -> None:
    """Numbers of rows take turns, so that each width meets all of them on each architecture."""
    known, start = KNOWN[arch], list(KNOWN).index(arch) + list(DType).index(dtype)
    for turn, cols in enumerate((1, 3, 100, 1024, 12671, 50257, 300_000, 2**23), start):
        problem, rows = Problem.of("softmax", dtype, cols), (1, 300, 2**16)[turn % 3]
        kept, everything = (
            worth_timing(problem, rows, known),
            list(candidates(problem, rows, known)),
        )
        assert kept[0] == best_guess(problem, rows, known)
        assert [v for v in everything if v in set(kept)] == kept  # their order is kept too
        kinds = list(dict.fromkeys(type(v.strategy) for v in everything))
        for kind in kinds[: model.LEAST_STRATEGIES]:
            assert next(v for v in everything if type(v.strategy) is kind) in kept


def test_strategies_that_cannot_win_are_left_out() -> None:
    def names(rows: int, cols: int) -> set[str]:
        problem = Problem.of("softmax", "float32", cols)
        return {variant.strategy.name for variant in worth_timing(problem, rows, H200)}

    assert not names(4096, 256) & {"cluster", "split", "cooperative", "safe"}
    assert not names(4096, 12672) & {"cooperative", "safe"}
    assert not names(128, 4194304) & {"block", "warp", "safe"}
    assert {"cooperative", "split", "online"} <= names(128, 4194304)


def test_too_few_bytes_in_flight_cost_in_proportion() -> None:
    """2048 threads of one float each have 8 KB on their way, of the 25 that an SM needs."""
    problem, rows = Problem.of("softmax", "float32", 32), 2**20
    one = Variant(problem, Warp(1, 1, 32, 1, False, 128))
    four = Variant(problem, Warp(4, 4, 8, 1, False, 128))
    assert cost(four, rows, H200) == pytest.approx(Warp.estimate(problem, rows, H200), rel=0.01)
    assert cost(one, rows, H200) / cost(four, rows, H200) == pytest.approx(25 / 8, rel=0.01)


def test_so_few_rows_that_all_is_on_its_way_starve_nothing() -> None:
    problem = Problem.of("softmax", "float32", 32)
    one = Variant(problem, Warp(1, 1, 32, 1, False, 128))
    assert cost(one, 16, H200) == Warp.estimate(problem, 16, H200)


def test_threads_without_a_pack_cost() -> None:
    problem = Problem.of("softmax", "float32", 1040)
    tight, loose = Block(4, 20, 64, 64, 1), Block(4, 32, 64, 64, 1)
    costs = [cost(Variant(problem, setting), 2**20, H200) for setting in (tight, loose)]
    assert costs[1] > 1.2 * costs[0]


def test_a_last_wave_of_few_blocks_costs_a_little() -> None:
    problem = Problem.of("softmax", "float32", 8192)
    setting = Variant(problem, Block(4, 32, 256, 256, 4))
    full, over, many = (cost(setting, 132 * blocks, H200) for blocks in (4, 5, 4001))
    assert full < many < over < 1.3 * full


def test_what_a_thread_holds_is_read_from_the_shared_knobs() -> None:
    assert elements_held(Warp(4, 32, 32, 2, True, 128)) == 64
    assert elements_held(Block(4, 28, 512, 512, 2)) == 28
    assert elements_held(Online(4, 2, 256)) == 8
    for kind in all_strategies():
        for problem in (Problem.of("softmax", "float32", cols) for cols in (4096, 2**20)):
            if kind.computes(problem):
                for setting in kind.candidates(problem, 4096, H200):
                    assert elements_held(setting) >= 1
