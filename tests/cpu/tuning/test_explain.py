"""What a choice was made from: the table, the knobs, and why the winner won."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from softgen.problems.arch import Arch, arch_named
from softgen.problems.problem import Problem
from softgen.problems.roofline import Peaks
from softgen.strategies.safe import Safe
from softgen.strategies.variants import Variant, candidates, parse_name
from softgen.tuning import explain as explaining
from softgen.tuning.cost import cost, worth_timing
from softgen.tuning.entry import Entry, Key, Timing
from softgen.tuning.explain import candidate_table, explain, peaks_of
from softgen.tuning.reason import reason

H200 = arch_named("sm_90")
WIDE = Problem.of("softmax", "float32", 12672)
ROWS = 4000
WORTH = worth_timing(WIDE, ROWS, H200)
GUESS = WORTH[0]


def entry_of(winner: Variant, times: dict[str, float], **failures: str) -> Entry:
    """Return an entry whose timings are fastest first, as the tuner's."""
    timings = [
        Timing(name, t, t * 0.99, t * 1.01) for name, t in sorted(times.items(), key=lambda e: e[1])
    ]
    key = Key.of(winner.problem, ROWS, {"device": H200.device})
    return Entry(key, winner, tuple(timings), tuple(failures.items()), rows=ROWS)


def all_timed() -> Entry:
    """The first candidate takes 107 us, the others go down from 130 and up again."""
    times = {variant.name: 110.0 + abs(10 - i) * 2 for i, variant in enumerate(WORTH)}
    times[GUESS.name] = 107.0
    times[WORTH[5].name] = 101.0
    return entry_of(WORTH[5], times)


def test_without_a_tuning_the_table_is_what_the_model_lets_through() -> None:
    table = candidate_table(WIDE, ROWS, H200)
    assert {c.variant for c in table} == set(WORTH)
    assert [c.expected for c in table] == sorted(cost(v, ROWS, H200) for v in WORTH)
    assert not any(c.timing or c.failure for c in table)


def test_what_was_timed_comes_first_fastest_first() -> None:
    names = [variant.name for variant in WORTH]
    times = {names[3]: 120.0, names[1]: 100.0, names[2]: 110.0}
    table = candidate_table(WIDE, ROWS, H200, entry_of(WORTH[1], times, **{names[4]: "spills"}))
    assert [c.variant.name for c in table[:3]] == [names[1], names[2], names[3]]
    assert [c.microseconds for c in table[:3]] == [100.0, 110.0, 120.0]
    rest = [c.expected for c in table[3:]]
    assert rest == sorted(rest)
    assert {c.variant.name: c.failure for c in table if c.failure} == {names[4]: "spills"}


def test_a_timing_of_an_earlier_version_is_kept_if_its_name_still_means_something() -> None:
    passed_by = Variant(WIDE, Safe(1024))
    assert passed_by not in WORTH
    table = candidate_table(
        WIDE, ROWS, H200, entry_of(GUESS, {passed_by.name: 300.0, "of_a_strategy_that_left": 1.0})
    )
    assert [c.variant for c in table if c.timing] == [passed_by]
    assert len(table) == len(WORTH) + 1


def test_knobs_have_the_best_time_at_each_value() -> None:
    entry = all_timed()
    found = explain(WIDE, ROWS, H200, entry.winner, entry)
    (block_size,) = (knob for knob in found.knobs if knob.name == "block_size")
    strategy = entry.winner.strategy
    assert block_size.value == strategy.knobs["block_size"]
    wanted: dict[int | bool, list[float]] = {}
    for timing in entry.timings:
        other = parse_name(timing.variant).strategy
        if type(other) is type(strategy):
            wanted.setdefault(other.knobs["block_size"], []).append(timing.microseconds)
    assert len(wanted) > 1
    timed = {value: time for value, time in block_size.best.items() if time is not None}
    assert timed == {value: min(times) for value, times in wanted.items()}
    every = {
        variant.strategy.knobs["block_size"]
        for variant in candidates(WIDE, ROWS, H200, strategy.name)
    }
    assert list(block_size.best) == sorted(every)  # those that nobody timed as well
    assert {knob.name for knob in found.knobs} == set(strategy.knobs)


def test_what_was_timed_beside_the_candidates_counts_too() -> None:
    """The tuner lets its fastest go on with pdl=2, which is no candidate."""
    beside = Variant(WIDE, dataclasses.replace(WORTH[5].strategy, pdl=2))
    times = {timing.variant: timing.microseconds for timing in all_timed().timings}
    entry = entry_of(beside, times | {beside.name: 99.0})
    found = explain(WIDE, ROWS, H200, beside, entry)
    (pdl,) = (knob for knob in found.knobs if knob.name == "pdl")
    assert (pdl.value, pdl.best) == (2, {1: 101.0, 2: 99.0})
    assert found.table[0].variant == beside
    assert sum(each.legal for each in found.strategies) == found.legal
    (row,) = (each for each in found.strategies if each.name == beside.strategy.name)
    assert row.best == found.table[0]


def test_strategies_are_counted_and_have_their_fastest() -> None:
    entry = all_timed()
    found = explain(WIDE, ROWS, H200, entry.winner, entry)
    assert found.guess == GUESS
    assert found.legal == sum(each.legal for each in found.strategies) == 74
    assert sum(each.considered for each in found.strategies) == len(WORTH)
    estimates = [each.expected for each in found.strategies]
    assert estimates == sorted(estimates)
    fastest = {each.name: each.best.microseconds for each in found.strategies if each.best}
    assert fastest[entry.winner.strategy.name] == 101.0
    assert fastest[GUESS.strategy.name] == 107.0
    left_out = next(each for each in found.strategies if each.name == "safe")
    assert (left_out.considered, left_out.best) == (0, None)


def test_the_guess_is_that_of_the_rows_that_were_timed() -> None:
    problem = Problem.of("softmax", "float32", 2048)
    few, many = (next(candidates(problem, rows, H200)) for rows in (257, 512))
    assert few != many  # of one bucket
    made = Entry(Key.of(problem, 257, {}), few, (Timing(few.name, 3.0, 3.0, 3.0),), rows=257)
    assert explain(problem, 512, H200, few, made).guess == few
    assert explain(problem, 257, H200, many).guess == many


# Why


def why(winner: Variant, **times: float) -> str:
    return reason(entry_of(winner, times), GUESS)


BLOCK, OTHER_BLOCK, *_ = (v for v in WORTH if v.strategy.name == "block" and v != GUESS)
CLUSTER = next(v for v in WORTH if v.strategy.name == "cluster" and v != GUESS)
WINNERS_LABEL, GUESS_LABEL = CLUSTER.strategy.label, GUESS.strategy.label
BLOCK_LABEL = BLOCK.strategy.label


def test_a_winner_is_compared_with_the_guess_and_with_the_next_strategy() -> None:
    assert GUESS.strategy.name == "block"
    said = why(CLUSTER, **{CLUSTER.name: 100.0, GUESS.name: 102.3, BLOCK.name: 101.0})
    assert said == (
        f"2.3% faster than the best guess, {GUESS_LABEL}; 1.0% faster than the best block, "
        f"{BLOCK_LABEL}"
    )


def test_a_guess_that_wins_is_compared_with_the_next() -> None:
    said = why(GUESS, **{GUESS.name: 100.0, BLOCK.name: 101.1, CLUSTER.name: 104.0})
    assert said == (
        f"the best guess; 1.1% faster than the next, {BLOCK_LABEL}; 4.0% faster than the best "
        f"cluster, {WINNERS_LABEL}"
    )


def test_of_equals_the_earlier_guess_wins() -> None:
    said = why(CLUSTER, **{CLUSTER.name: 100.0, BLOCK.name: 99.8, GUESS.name: 105.0})
    assert said == (
        f"within the noise of the fastest, {BLOCK_LABEL}, and guessed before it; 5.0% faster than "
        f"the best guess, {GUESS_LABEL}"
    )


def test_less_than_a_twentieth_of_a_percent_is_no_difference() -> None:
    said = why(GUESS, **{GUESS.name: 100.0, BLOCK.name: 100.04})
    assert said == f"the best guess; as fast as the next, {BLOCK_LABEL}"


def test_a_guess_without_a_time_is_said() -> None:
    said = why(BLOCK, **{BLOCK.name: 100.0, OTHER_BLOCK.name: 110.0})
    assert said == (
        f"10.0% faster than the next, {OTHER_BLOCK.strategy.label}; the best guess, {GUESS_LABEL}, "
        "was not timed"
    )


def test_what_an_entry_does_not_have_is_said() -> None:
    assert why(CLUSTER, **{BLOCK.name: 1.0}) == "the cache entry does not have its time"
    assert why(CLUSTER, **{CLUSTER.name: 1.0}) == "the only candidate that was timed"
    assert "the next, no_variant" in why(GUESS, **{GUESS.name: 1.0, "no_variant": 2.0})


# What the driver tells


def driver(monkeypatch: pytest.MonkeyPatch, **attributes: int) -> None:
    names = ("ClockRate", "GlobalMemoryBusWidth", "MemoryClockRate")
    runtime = SimpleNamespace(
        **{f"cudaDevAttr{name}": name for name in names},
        deviceGetAttribute=lambda name, device: attributes[name],
    )
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setattr(explaining, "require_device", lambda: cupy)


def test_the_peaks_of_an_h100(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its data sheet has 3350 GB/s."""
    driver(monkeypatch, ClockRate=1_980_000, GlobalMemoryBusWidth=5120, MemoryClockRate=2_619_000)
    peaks = peaks_of(0, H200)
    assert peaks is not None
    assert peaks.gigabytes_per_second == pytest.approx(3352.3, rel=1e-4)
    assert peaks.megahertz == 1980


def test_a_driver_that_does_not_tell_leaves_the_data_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, ClockRate=1_980_000, GlobalMemoryBusWidth=6144, MemoryClockRate=0)
    assert peaks_of(0, H200) == Peaks(4800, 1980)
    unknown = Arch((10, 3), 160, 2048, 227 * 1024, 1, "a GPU of tomorrow")
    assert peaks_of(0, unknown) is None
