"""Verification has a kernel of every pair of values that functions and strategies declare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from softgen.problems.arch import arch_named
from softgen.problems.functions import all_functions
from softgen.problems.functions.base import Function
from softgen.problems.hooks.base import Hook
from softgen.problems.hooks.known import HOOKS
from softgen.problems.layouts import Columns
from softgen.strategies.bands import Bands
from softgen.strategies.registry import all_strategies
from softgen.strategies.spread import Spread
from softgen.strategies.variants import Variant
from softgen.verify import pairwise as module
from softgen.verify.pairs import LAYOUTS, Kind, Pair, Types, kinds, pairs_of
from softgen.verify.pairwise import MOST_HOOKS, WITHOUT, covering, declared_kinds, pairwise
from softgen.verify.ways import own_ways
from tests.helpers.chosen import best_guesses

ARCH = arch_named("sm_90")


def declared() -> set[Pair]:
    return {pair for kind in declared_kinds() for pair in kind.pairs}


def test_every_declared_pair_has_a_kernel_or_a_reason() -> None:
    found = {pair for variant in best_guesses() for pair in pairs_of(variant)}
    assert declared() - found == WITHOUT.keys()
    assert all(WITHOUT.values())


def test_what_is_covered_has_few_kernels_and_hooks() -> None:
    chosen, missing = covering(declared_kinds(), ARCH)
    assert missing == WITHOUT.keys()
    assert tuple(chosen) == pairwise()
    assert len(chosen) < 700
    assert max(len(variant.problem.hooks) for variant in chosen) <= MOST_HOOKS
    assert {*chosen} <= {*best_guesses()}


def test_every_function_strategy_hook_and_layout_declares_something() -> None:
    values = {value for pair in declared() for value in pair}
    names = {name: {value for factor, value in values if factor == name} for name, _ in values}
    assert names["strategy"] == {kind.name for kind in all_strategies()}
    assert names["function"] >= {each.name for each in all_functions() if not each.twin}
    assert names["hook"] == {hook.name for hook in HOOKS}
    layouts = {each for kind in all_strategies() for each in kind.layouts}
    assert names["layout"] == {each.__name__ for each in layouts}
    assert {type(layout) for layout in LAYOUTS} == layouts


def test_a_pair_that_no_kernel_has_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the candidates of a strategy leave out what it says that it takes."""
    some = [kind for kind in kinds([Function.of("softmax")]) if kind.strategy.name == "split"]
    assert covering(some, ARCH)[1] == set()
    kernels = module._kernels

    def but_causal(
        kind: Kind, types: Types, hooks: tuple[Hook, ...], *rest: Any
    ) -> Iterator[Variant]:
        return iter(()) if "causal" in map(str, hooks) else kernels(kind, types, hooks, *rest)

    monkeypatch.setattr(module, "_kernels", but_causal)
    missing = covering(some, ARCH)[1]
    assert missing
    assert all(("hook", "causal") in pair for pair in missing)


def test_every_way_of_columns_over_blocks_is_verified() -> None:
    """Who combines parts, what is loaded again, where columns are held, packs that are cut."""
    by_function: dict[tuple[type, str], set[tuple[bool, ...]]] = {}
    for variant in own_ways(ARCH):
        problem, strategy = variant.problem, variant.strategy
        assert isinstance(problem.layout, Columns)
        key = (type(strategy), problem.function.name)
        by_function.setdefault(key, set()).add(strategy.ways(problem))
    for function in ("softmax", "logsumexp"):
        assert by_function[Bands, function] == {
            (a, b) for a in (False, True) for b in (False, True)
        }
        relays, walks, shared, flat = zip(*by_function[Spread, function], strict=True)
        for way in (relays, walks, shared, flat):
            assert {*way} == {False, True}
        assert (True, True, False, False) in by_function[Spread, function]
    assert {*own_ways(ARCH)} <= {*best_guesses()}
    relayed = {
        variant.problem.layout.step % strategy.rows_of_a_block > 0  # the last tile is cut
        for variant in own_ways(ARCH)
        if isinstance(strategy := variant.strategy, Spread) and strategy.relays(variant.problem)
    }
    assert relayed == {False, True}
