"""sample against float64: every strategy draws the same, as often as it should, on the emulator.

`python -m tests.cpu.verify.test_sample 1000000` counts so many draws, and prints chi-squared.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from softgen.devices.emulator import Job
from softgen.problems.arch import arch_named
from softgen.problems.dtypes import DType
from softgen.problems.exact import hooked
from softgen.problems.functions.sample import CAPACITIES, Sample
from softgen.problems.hooks.draw import noise
from softgen.problems.layouts import Rows
from softgen.problems.numerics import Storage, decode, encode, other_inputs
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.base import Feature
from softgen.strategies.registry import all_strategies
from softgen.strategies.safe import Safe
from softgen.strategies.variants import Variant, candidates
from tests.helpers.emulator_helpers import results_of, right_of, wrong_of

OF_PARTS = [kind for kind in all_strategies() if Feature.PARTS in kind.takes]
STRATEGIES = [kind.name for kind in OF_PARTS if Rows in kind.layouts]
ROWS = 7
CASES, BATCHES = 14, 2
# Rows for one lane up to those for a cluster, aligned and not.
WIDTHS = (1, 7, 33, 256, 1001, 4100, 20000)


def rows_of(problem: Problem, number: int) -> Storage:
    """Return rows with ties, constant ones, and ones of which some elements are infinite or NaN."""
    random, cols = np.random.default_rng(number), problem.cols
    x = random.normal(size=(ROWS, cols)) * random.choice([0.1, 3, 20])
    x[1] = np.round(x[1])
    x[2] = 0
    x[3, random.integers(cols, size=cols // 2)] = -np.inf
    x[4, random.integers(cols)] = [np.nan, np.inf, -np.inf, -0.0][random.integers(4)]
    x[5] = [-np.inf, 2.0**15, -65504.0][random.integers(3)]
    return encode(x, problem.dtype)


def sources_of(problem: Problem, number: int) -> list[Source]:
    """Return the best guess of each strategy, and another setting of each."""
    arch = arch_named("sm_90")
    found: list[Variant] = []
    for strategy in STRATEGIES:
        some = list(candidates(problem, ROWS, arch, strategy))
        found += dict.fromkeys((some[0], some[number % len(some)])) if some else ()
    return [render(variant) for variant in found]


def numbers(temperature: float, seed: int, offset: int, dtype: str = "float32") -> Any:
    """Return what a kernel takes beside x."""
    return np.array(temperature, dtype), np.array(seed), np.array(offset)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_strategy_draws_the_same(batch: int) -> None:
    jobs = []
    for number in range(batch, CASES, BATCHES):
        random = np.random.default_rng(number)
        dtype = list(DType)[number % 3 if number % 4 else 3]
        cols = WIDTHS[number % len(WIDTHS)]
        function = Sample(False, *(bool(random.integers(2)) for _ in range(2)))
        problem = Problem.of(function, dtype, cols, alignment=1 if number % 5 == 0 else None)
        x = rows_of(problem, number)
        others = other_inputs(x, problem)
        jobs += [Job(source, x, others) for source in sources_of(problem, number)]
    drawn: dict[str, set[bytes]] = {}
    for job, results in right_of(jobs):
        drawn.setdefault(job.problem.label, set()).add(results[1].tobytes())
    assert {job.source.variant.strategy.name for job in jobs} == {*STRATEGIES}
    assert [label for label, found in drawn.items() if len(found) > 1] == []


@pytest.mark.parametrize("temperature", [0.0, 0.01, 1.0, 50.0])
def test_what_is_passed_over_is_no_sample(temperature: float) -> None:
    """An element that a few bits of its noise rule out would not have had the largest key."""
    jobs = []
    for dtype, scale in (("float32", 1.0), ("float32", 1e6), ("float32", 1e-3), ("float64", 3.0)):
        problem = Problem.of("sample", dtype, 700)
        x = rows_of(problem, 0)
        x[:3] = np.round(np.random.default_rng(1).normal(size=(3, 700)) * 8) / 8 * scale
        given = numbers(temperature, 11, 5, dtype)
        for source in sources_of(problem, 0)[::2]:
            body = r"(bool may_win\(.*?\) const) \{.*?\n  \}"
            without, count = re.subn(body, r"\1 { return true; }", source.text, flags=re.S)
            assert count == 1
            jobs += [Job(each, x, given) for each in (source, replace(source, text=without))]
    found = results_of(jobs)
    for bound, all_considered in zip(found[::2], found[1::2], strict=True):
        np.testing.assert_array_equal(bound[1], all_considered[1])
        np.testing.assert_array_equal(bound[0], all_considered[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_largest_of_elements_near_the_end_of_the_type_is_drawn(dtype: str) -> None:
    """Times log2(e) they are infinite."""
    problem = Problem.of("sample", dtype, 700)
    x = rows_of(problem, 0)
    x[:] = encode(np.linspace(1.0e38, 3.3e38, 700), problem.dtype)
    x[1::2] = x[1::2, ::-1]
    x[2] = encode(np.linspace(-3.3e38, -1.0e38, 700), problem.dtype)
    values = decode(x, problem.dtype)
    given = numbers(0.0, 11, 5)
    for _, ids in results_of([Job(source, x, given) for source in sources_of(problem, 0)]):
        np.testing.assert_array_equal(values[np.arange(ROWS), ids], values.max(axis=1))


def test_lanes_that_tell_each_other_what_they_draw_draw_the_same() -> None:
    problem = Problem.of("sample", "bfloat16", 4096)  # of which all lanes have whole packs
    x = rows_of(problem, 1)
    given = other_inputs(x, problem)
    sources = sources_of(problem, 0)
    told = [source for source in sources if "= __activemask()" in source.text]
    together = [
        replace(each, text=each.text.replace("= __activemask()", "= 0xffffffff")) for each in told
    ]
    assert {each.variant.strategy.name for each in told} >= {"block", "cluster", "online"}
    first, *others = (
        results[1] for results in results_of([Job(s, x, given) for s in together + sources])
    )
    for ids in others:
        np.testing.assert_array_equal(ids, first)


def test_a_row_with_a_seed_draws_the_same_in_any_batch() -> None:
    problem = Problem.of(Sample(seeds=True), "bfloat16", 1000)
    x = rows_of(problem, 3)
    warm, seeds, offset = other_inputs(x, problem)
    source = sources_of(problem, 0)[0]
    orders = [np.arange(ROWS), np.arange(ROWS)[::-1], np.array([4]), np.array([2, 2, 5])]
    jobs = [Job(source, x[order], (warm, seeds[order], offset)) for order in orders]
    whole, *others = (results[1] for results in results_of(jobs))
    for order, ids in zip(orders[1:], others, strict=True):
        np.testing.assert_array_equal(ids, whole[order])


@pytest.mark.parametrize("batch", range(3))
def test_filters_keep_the_largest(batch: int) -> None:
    """For ties, constant rows and rows of -inf too, of numbers and of arrays of one a row."""
    jobs = []
    for number in range(batch, 24, 3):
        random, cols = np.random.default_rng(number), WIDTHS[number % 6]
        fitting = [each for each in (0, *CAPACITIES) if each <= cols]
        k = fitting[number % len(fitting)]
        function = Sample(not k, number % 3 > 0, bool(random.integers(2)), k)
        problem = Problem.of(function, list(DType)[number % 4], cols)
        x = rows_of(problem, number)
        warm, seed, offset, top_k, top_p, min_p = other_inputs(x, problem)
        turn = number % ROWS
        if function.rows:  # filters go with other rows each time
            warm = np.where(warm == 0, 1, warm).astype(warm.dtype) if number % 4 else warm
            top_k, top_p = np.roll(top_k, turn), np.roll(top_p, 2 * turn)
            min_p = np.roll(min_p, turn // 2)
        others = (warm, seed, offset, top_k, top_p, min_p)
        jobs += [Job(source, x, others) for source in sources_of(problem, number)]
    assert wrong_of(jobs) == []


@pytest.mark.parametrize(("dtype", "cols"), [("bfloat16", 256), ("float32", 4096)])
def test_the_largest_are_chosen_first_or_one_after_another(dtype: str, cols: int) -> None:
    """Kernels that choose top_k first draw what those draw that read a row again and again."""
    first, others = (Problem.of(f, dtype, cols) for f in (Sample(k=32), Sample(True)))
    x = rows_of(others, 1)
    drawn = []
    for top_k, top_p, min_p in ((32, 1, 0), (20, 0.9, 0), (5, 1, 0.0625), (1, 0, 1), (32, 0.5, 0)):
        filters = (np.array(top_k), np.array(top_p, "f4"), np.array(min_p, "f4"))
        sources = [*sources_of(others, 0), *sources_of(first, 0)]
        kinds = {source.variant.strategy.name for source in sources} - {"online"}
        assert kinds == {"safe", "block", "warp" if cols == 256 else "cluster"}
        found = results_of([Job(each, x, (*numbers(0.9, 3, 4), *filters)) for each in sources])
        for results in found[1:]:
            np.testing.assert_array_equal(results[1], found[0][1])
            np.testing.assert_allclose(results[0], found[0][0], rtol=1e-5, atol=1e-6)
        drawn.append(found[0][1].tobytes())
    assert len({*drawn}) > 2


def test_any_top_k_below_0_is_none() -> None:
    problem = Problem.of(Sample(True, True), "float32", 33)
    x = np.zeros((20, 33), np.float32)
    ones = np.ones(20, np.float32)
    source = render(Variant(problem, Safe(32)))
    jobs = [
        Job(source, x, (ones, *numbers(1, 7, 0)[1:], np.full(20, k), ones, 0 * ones))
        for k in (0, -1, 1 - 2**32, -(2**63))  # of which an int would be 1 and 0
    ]
    every, *others = (results[1] for results in results_of(jobs))
    assert len({*every.tolist()}) > 5
    for ids in others:
        np.testing.assert_array_equal(ids, every)


def test_what_filters_keep_is_drawn_as_often_as_it_should() -> None:
    rows, cols = 2000, 30
    problem = Problem.of(Sample(True), "float32", cols)
    x = np.random.default_rng(0).normal(size=cols).astype(np.float32)
    p = np.exp(x.astype(np.float64))
    order = np.argsort(-x)
    filters = (np.array(12), np.array(0.8, "f4"), np.array(0.2, "f4"))
    left = [id for id in order[:12] if p[id] >= 0.2 * p.max()]
    before = np.cumsum(p[left]) - p[left]
    kept = [id for id, mass in zip(left, before, strict=True) if mass < 0.8 * p[left].sum()]
    assert 2 < len(kept) < len(left) == 12
    variant = Variant(problem, Safe(32))
    given = (*numbers(1, 1, 0), *filters)
    ((log_probs, ids),) = results_of(
        [Job(render(variant), np.broadcast_to(x, (rows, cols)).copy(), given)]
    )
    assert {*ids.tolist()} == {*kept}
    statistic, bound = chi_squared(
        np.searchsorted(np.sort(kept), ids), p[np.sort(kept)] / p[kept].sum()
    )
    assert statistic < bound
    np.testing.assert_allclose(log_probs, np.log(p / p.sum())[ids], rtol=1e-5)


def test_of_columns_that_are_as_good_either_is_right_whatever_filters_leave_out() -> None:
    """A column that is left out may have the largest noise of all."""
    cols, filters = 30, (np.array(2), np.array(1.0), np.array(0.0))
    given = numbers(1.0, 3, 5, "float64")
    drawn = noise(1, cols, given[1], int(given[2]))[0]
    order = np.argsort(drawn)  # a key is z less what is drawn
    noisy, one, other = order[0], order[-2], order[-1]
    z = np.full((1, cols), -1000.0)
    z[0, [one, other]] = drawn[[one, other]]  # their keys are 0
    z[0, noisy] = (drawn[noisy] + drawn[one]) / 2
    function = Sample(filtered=True)
    keys = (z - drawn)[0]
    assert z[0, noisy] < z[0, [one, other]].min()
    assert keys[noisy] > 0.1
    exact = function.reference(z, *given, *filters)
    assert exact[1][0] in (one, other)
    for column in (one, other, noisy):
        log_probs, ids = function.settled(
            exact, (exact[0], np.array([column])), z, *given, *filters
        )
        right = column if column != noisy else exact[1][0]
        assert ids.tolist() == [right]
        np.testing.assert_allclose(log_probs, z[0, right] - np.log(np.exp(z).sum()), rtol=1e-13)


def chi_squared(ids: Any, p: Any) -> tuple[float, float]:
    """Return the statistic, and what one in a million is above."""
    from statistics import NormalDist

    counts = np.bincount(ids, minlength=len(p))
    wanted = p * len(ids)
    assert wanted.min() > 2
    free = len(p) - 1
    z = NormalDist().inv_cdf(1 - 1e-6)
    bound = free * (1 - 2 / (9 * free) + z * np.sqrt(2 / (9 * free))) ** 3  # Wilson and Hilferty
    return float(((counts - wanted) ** 2 / wanted).sum()), float(bound)


@pytest.mark.parametrize(("strategy", "cols"), [("warp", 40), ("online", 100)])
def test_columns_are_drawn_as_often_as_they_should(strategy: str, cols: int) -> None:
    rows, temperature = 8000, 0.8
    problem = Problem.of("sample", "float32", cols)
    x = np.random.default_rng(0).normal(size=cols).astype(np.float32)
    z = x / np.float64(temperature)
    p = np.exp(z) / np.exp(z).sum()
    variant = next(iter(candidates(problem, rows, arch_named("sm_90"), strategy)))
    given = numbers(temperature, 1, 0)
    ((_, ids),) = results_of([Job(render(variant), np.broadcast_to(x, (rows, cols)).copy(), given)])
    statistic, bound = chi_squared(ids, p)
    assert statistic < bound
    assert chi_squared(ids, np.roll(p, 1))[0] > bound
    alike, wanted = (ids[1:] == ids[:-1]).mean(), (p**2).sum()  # rows side by side know of nothing
    assert abs(alike - wanted) < 6 * np.sqrt(wanted / rows)


def test_noise_is_that_of_the_row_the_column_and_the_offset() -> None:
    problem = Problem.of("sample", "float32", 97)
    x = np.zeros((3000, 97), np.float32)
    source = sources_of(problem, 0)[0]
    draws = [(1, 0), (1, 1), (2, 0), (1 + 2**32, 0), (1, 2**32), (-1, -1)]
    jobs = [Job(source, x, numbers(1, s, o)) for s, o in draws]
    found = [results[1] for results in results_of(jobs)]
    for i, some in enumerate(found):
        for others in found[:i]:
            assert 5 < (some == others).sum() < 80  # about 1 in 97
    exact = hooked(problem, [x, *numbers(1, 1, 0)])
    np.testing.assert_array_equal(found[0], problem.function.reference(*exact)[1])


# What draws on request, a row each: without filters, and with all of them.
DRAWN = (
    *(("sample", "warp"), ("sample", "block"), ("sample", "online"), ("sample", "safe")),
    *(("sample_filtered", "safe"), ("sample_k32", "warp"), ("sample_k32", "block")),
)
AT_ONCE = 2_000  # rows of a launch


def main(draws: int) -> None:
    """Print chi-squared of so many draws, as many by each of DRAWN."""
    cols, temperature, each = 100, 0.8, -(-draws // len(DRAWN))
    x = np.random.default_rng(0).normal(size=cols).astype(np.float32)
    p = np.exp(x / np.float64(temperature))
    top_k, top_p, min_p = 24, 0.8, 0.05
    left = [id for id in np.argsort(-x)[:top_k] if p[id] >= min_p * p.max()]
    before = np.cumsum(p[left]) - p[left]
    kept = np.sort([id for id, m in zip(left, before, strict=True) if m < top_p * p[left].sum()])
    filters = np.array(top_k), np.array(top_p, "f4"), np.array(min_p, "f4")
    wrong = 0
    for seed, (function, strategy) in enumerate(DRAWN):
        problem = Problem.of(function, "float32", cols)
        variant = Variant(problem, Safe(32))  # fewer threads are emulated sooner
        if strategy != "safe":
            variant = next(iter(candidates(problem, each, arch_named("sm_90"), strategy)))
        source, some = render(variant), kept if len(problem.inputs) > 4 else np.arange(cols)
        counts = np.zeros(cols, np.int64)
        for offset, first in enumerate(range(0, each, AT_ONCE)):
            rows = np.broadcast_to(x, (min(AT_ONCE, each - first), cols)).copy()
            given = (*numbers(temperature, seed, offset), *filters[: len(problem.inputs) - 4])
            ((_, ids),) = results_of([Job(source, rows, given)])
            counts += np.bincount(ids, minlength=cols)
        drawn = np.repeat(np.arange(len(some)), counts[some])
        statistic, bound = chi_squared(drawn, p[some] / p[some].sum())
        others = counts.sum() - len(drawn)  # which filters leave out
        wrong += statistic >= bound or others > 0
        print(
            f"{variant.name}: {len(drawn)} draws of {len(some)} columns, {others} others, "
            f"chi-squared {statistic:.1f}, bound {bound:.1f}",
            flush=True,
        )
    sys.exit(int(wrong > 0))


if __name__ == "__main__":
    main(int(sys.argv[1]))
