"""Every setting of a strategy, and those around one."""

from __future__ import annotations

import pytest

from softgen.bench.knobs import around, every_variant
from softgen.problems.arch import arch_named
from softgen.problems.dtypes import DType
from softgen.problems.layouts import Columns
from softgen.problems.problem import Problem
from softgen.strategies.lessons.ladder import LADDER, step
from softgen.strategies.registry import all_strategies
from softgen.strategies.variants import candidates

ARCH = arch_named("sm_90")
WIDE = Problem.of("softmax", "float32", 32768)


def labels(strategy: str, problem: Problem = WIDE, rows: int = 128) -> list[str]:
    return [each.strategy.label for each in every_variant(strategy, problem, rows, ARCH)]


def test_a_search_has_every_unroll_and_block_that_is_legal() -> None:
    found = labels("online")
    blocks = (32, 64, 128, 256, 512, 1024)
    assert {f"online_p4_u{u}_b{b}" for u in range(1, 9) for b in blocks[:-1]} <= set(found)
    # 24 elements a thread are the most that fit beside 1024 threads.
    assert {label for label in found if label.startswith("online_p4") and "b1024" in label} == {
        f"online_p4_u{u}_b1024" for u in range(1, 7)
    }
    assert len(found) == len(set(found)) == 3 * 8 * 6 - 2
    assert all(
        each.strategy.is_legal(WIDE, ARCH) for each in every_variant("online", WIDE, 8, ARCH)
    )


def test_lessons_are_searched_too() -> None:
    found = labels("threepass")
    assert "threepass_p4_u8_co_sh_b512" in found
    assert "threepass_p1_u1_b256" in found
    assert not any("_co" not in label and "_p1_u1_" not in label for label in found)
    assert labels("safe") == [f"safe_b{2**i}" for i in range(5, 11)]


def test_threads_without_a_row_are_not_searched() -> None:
    assert labels("serial", rows=128) == ["serial_b32", "serial_b64", "serial_b128"]
    assert labels("serial", rows=1) == ["serial_b32"]


@pytest.mark.parametrize("strategy", ["warp", "block", "cluster", "cooperative"])
def test_of_other_strategies_every_candidate_is_timed(strategy: str) -> None:
    problem = Problem.of("softmax", "bfloat16", 2048)
    assert every_variant(strategy, problem, 64, ARCH) == list(
        candidates(problem, 64, ARCH, strategy)
    )


def test_every_strategy_has_a_grid() -> None:
    problems = [Problem.of("softmax", "float32", cols) for cols in (1024, 131072)]
    columns = ((1024, 4), (50257, 16), (4096, 77))
    problems += [Problem.of("softmax", "float32", n, layout=Columns(inner)) for n, inner in columns]
    for kind in all_strategies():
        assert any(every_variant(kind.name, each, 4096, ARCH) for each in problems), kind.name


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("name", LADDER)
def test_a_step_is_among_the_settings_around_it(name: str, dtype: DType) -> None:
    for cols in (1024, 131072):
        problem = Problem.of("softmax", dtype, cols)
        own = step(name, problem)
        found = around(own, problem, 128, ARCH)
        assert own in found
        assert len(found) == len(set(found)) >= 3
        for each in found:
            kept = each.knobs.keys() - {"unroll", "block_size"}
            assert {knob: each.knobs[knob] for knob in kept} == {k: own.knobs[k] for k in kept}
            if name not in ("unrolled", "online_rescale"):
                assert each.knobs.get("unroll", 1) == 1
    assert ("u8" in str([each.label for each in found])) is (name in ("unrolled", "online_rescale"))
