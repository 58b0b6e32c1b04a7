"""Which variant a call uses, and that it is tuned for once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from softgen.errors import InvalidValueError, NoRoomError, VerificationError
from softgen.problems.arch import Arch
from softgen.problems.problem import Problem
from softgen.strategies import winners
from softgen.strategies.safe import Safe
from softgen.strategies.variants import Variant, best_guess
from softgen.switches import is_on
from softgen.tuning import cache, policy, table
from softgen.tuning.entry import Entry, Key
from softgen.tuning.policy import (
    MODES,
    batch_invariant_default,
    choose,
    debugging,
    tune_budget,
    tune_mode,
)
from tests.helpers.entries import H200, T4, WINNER, FakeTuner, fake_arch, fake_environment

THOUSAND = Problem.of("softmax", "float32", 1000)


# Options and environment variables


def test_the_mode_is_the_argument_then_the_environments_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert MODES == ("on", "cached", "off", "force")
    assert tune_mode(None) == "on"
    for mode in MODES:
        assert tune_mode(mode) == mode
        monkeypatch.setenv("SOFTGEN_TUNE", mode)
        assert tune_mode(None) == mode
        assert tune_mode("off") == "off"
    monkeypatch.setenv("SOFTGEN_TUNE", "")
    assert tune_mode(None) == "on"
    monkeypatch.setenv("SOFTGEN_TUNE", "never")
    assert tune_mode("cached") == "cached"


@pytest.mark.parametrize("bad", ["ON", "true", "1", "maybe", " on"])
def test_other_modes_say_where_they_come_from(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidValueError) as caught:
        tune_mode(bad)
    assert str(caught.value) == f"tune must be one of on, cached, off, force; got {bad!r}"
    monkeypatch.setenv("SOFTGEN_TUNE", bad)
    with pytest.raises(InvalidValueError) as caught:
        tune_mode(None)
    assert str(caught.value) == (
        f"the environment variable SOFTGEN_TUNE must be one of on, cached, off, force; got {bad!r}"
    )


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize(("text", "on"), [("1", True), ("0", False), ("", None), (None, None)])
def test_what_is_on_is_what_a_variable_says_and_the_default_where_it_says_nothing(
    text: str | None, on: bool | None, default: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOFTGEN_SWITCH", raising=False)
    if text is not None:
        monkeypatch.setenv("SOFTGEN_SWITCH", text)
    assert is_on("SOFTGEN_SWITCH", default=default) is (default if on is None else on)


def test_an_empty_argument_is_no_mode() -> None:
    with pytest.raises(InvalidValueError, match=r"tune must be one of on, .*; got ''"):
        tune_mode("")


@pytest.mark.parametrize(("text", "seconds"), [("", 2), ("0.5", 0.5), ("30", 30), ("1e3", 1000)])
def test_the_budget(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tune_budget() == 2
    monkeypatch.setenv("SOFTGEN_TUNE_BUDGET", text)
    assert tune_budget() == seconds


@pytest.mark.parametrize("bad", ["0", "-1", "nan", "inf", "-inf", "2s", "two", "1e400"])
def test_other_budgets(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTGEN_TUNE_BUDGET", bad)
    with pytest.raises(
        InvalidValueError, match=f"SOFTGEN_TUNE_BUDGET must be seconds above 0, got '{bad}'"
    ):
        tune_budget()


def test_batch_invariance(monkeypatch: pytest.MonkeyPatch) -> None:
    assert batch_invariant_default() is False
    for text, wanted in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv("SOFTGEN_BATCH_INVARIANT", text)
        assert batch_invariant_default() is wanted
    for bad in ("true", "yes", "2", " 1"):
        monkeypatch.setenv("SOFTGEN_BATCH_INVARIANT", bad)
        with pytest.raises(
            InvalidValueError, match=f"SOFTGEN_BATCH_INVARIANT must be 0 or 1, got '{bad}'"
        ):
            batch_invariant_default()


def test_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    assert debugging() is False
    monkeypatch.setenv("SOFTGEN_DEBUG", "1")
    assert debugging() is True
    monkeypatch.setenv("SOFTGEN_DEBUG", "yes")
    with pytest.raises(InvalidValueError, match="SOFTGEN_DEBUG must be 0 or 1, got 'yes'"):
        debugging()


# choose, with a tuner that only counts


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch, own_cache: Path, tmp_path: Path) -> Iterator[FakeTuner]:
    fake = FakeTuner()
    monkeypatch.setattr(winners, "DIRECTORY", tmp_path)  # no table, unless a test ships one
    winners._winners.cache_clear()
    monkeypatch.setattr("softgen.tuning.tune.tune", fake)
    monkeypatch.setattr(policy, "environment", fake_environment)
    monkeypatch.setattr(policy, "arch_of", fake_arch)
    policy._locks.clear()
    cache._memory.clear()
    cache._warn_once.cache_clear()
    yield fake
    policy._locks.clear()
    cache._memory.clear()
    winners._winners.cache_clear()


def variant_for(problem: Problem, rows: int, device: int, mode: str) -> Variant:
    return choose(problem, rows, device, mode).variant


def stored(rows: int = 4096, device: int = 0, strategy: Safe | None = None) -> None:
    """Put a choice into the cache."""
    key = Key.of(THOUSAND, rows, fake_environment(device))
    cache.store(Entry(key, Variant(THOUSAND, strategy or Safe(1024)), ()))


def test_on_tunes_once_and_then_knows(
    tuner: FakeTuner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SOFTGEN_TUNE_BUDGET", "7")
    with caplog.at_level(logging.INFO, "softgen"):
        assert [variant_for(THOUSAND, rows, 0, "on") for rows in (4000, 4096, 2049)] == [WINNER] * 3
    assert tuner.calls == [(THOUSAND, 4000, 7.0)]
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    message = record.getMessage()
    assert message.startswith("tuned softmax_f32_1000 for 4000 rows in 0.")
    assert message.endswith(" s: safe_b512 (1 candidates timed)")


def test_a_choice_says_where_it_is_from(tuner: FakeTuner, tmp_path: Path) -> None:
    assert choose(THOUSAND, 4096, 0, "off").origin == "best guess"
    assert choose(THOUSAND, 4096, 0, "cached").origin == "best guess"
    assert choose(THOUSAND, 64, 0, "on").origin == "tuned, 1 candidates timed"
    assert choose(THOUSAND, 64, 0, "on").origin == "from the cache"
    assert choose(THOUSAND, 64, 0, "force").origin == "tuned, 1 candidates timed"
    ship(tmp_path, Safe(128))
    winners._winners.cache_clear()
    assert choose(THOUSAND, 4096, 0, "on").origin == "shipped"


def test_on_tunes_again_for_other_rows_problems_and_devices(tuner: FakeTuner) -> None:
    for problem, rows, device in (
        (THOUSAND, 4096, 0),
        (THOUSAND, 4097, 0),
        (Problem.of("softmax", "float32", 1000, alignment=1), 4096, 0),
        (Problem.of("log_softmax", "float32", 1000), 4096, 0),
        (THOUSAND, 4096, 1),
    ):
        before = len(tuner.calls)
        choose(problem, rows, device, "on")
        assert len(tuner.calls) == before + 1


def test_cached_never_tunes(tuner: FakeTuner) -> None:
    guess = best_guess(THOUSAND, 4096, H200)
    assert variant_for(THOUSAND, 4096, 0, "cached") == guess != WINNER
    stored()
    assert variant_for(THOUSAND, 4096, 0, "cached").strategy == Safe(1024)
    assert variant_for(THOUSAND, 8, 0, "cached") == best_guess(THOUSAND, 8, H200)
    assert tuner.calls == []


def ship(folder: Path, strategy: Safe) -> None:
    """Write a table for the H200 with one winner, for 4096 rows."""
    key = Key.of(THOUSAND, 4096, {"device": H200.device})
    text = table.text_of([Entry(key, Variant(THOUSAND, strategy), ())])
    (folder / "nvidia_h200.json").write_text(text)


@pytest.mark.parametrize("mode", ["on", "cached"])
def test_a_shipped_winner_is_taken_where_the_cache_has_none(
    mode: str, tuner: FakeTuner, tmp_path: Path, own_cache: Path
) -> None:
    ship(tmp_path, Safe(128))
    assert variant_for(THOUSAND, 4000, 0, mode).strategy == Safe(128)
    assert tuner.calls == []
    assert not (own_cache / "tuned").exists()  # a later softgen may ship a better one
    stored()
    assert variant_for(THOUSAND, 4000, 0, mode).strategy == Safe(1024)


def test_force_and_off_do_not_ask_the_table(tuner: FakeTuner, tmp_path: Path) -> None:
    ship(tmp_path, Safe(128))
    assert variant_for(THOUSAND, 4096, 0, "off") == best_guess(THOUSAND, 4096, H200)
    assert variant_for(THOUSAND, 4096, 0, "force") == WINNER
    assert variant_for(THOUSAND, 4096, 0, "on") == WINNER
    assert len(tuner.calls) == 1


def test_a_call_needs_no_memory_to_be_tuned_in(
    tuner: FakeTuner, caplog: pytest.LogCaptureFixture
) -> None:
    tuner.failure = NoRoomError("one row needs 12 bytes")
    found = choose(THOUSAND, 4096, 0, "on")
    assert found.variant == best_guess(THOUSAND, 4096, H200)
    assert found.origin == "best guess"
    assert caplog.messages == ["not tuned, the first guess is taken: one row needs 12 bytes"]
    with pytest.raises(NoRoomError):
        choose(THOUSAND, 4096, 0, "force")


def test_other_rows_and_devices_than_the_tables_are_tuned_for(
    tuner: FakeTuner, tmp_path: Path
) -> None:
    ship(tmp_path, Safe(128))
    assert variant_for(THOUSAND, 64, 0, "on") == WINNER
    assert variant_for(THOUSAND, 4096, 1, "on") == WINNER
    assert len(tuner.calls) == 2


def test_without_its_own_the_nearest_table_has_the_first_guess(
    tuner: FakeTuner, tmp_path: Path
) -> None:
    """It spares no tuning."""
    ship(tmp_path, Safe(128))
    for device, rows in ((1, 1024), (0, 8192)):  # 40 SMs of a T4, and other rows
        near = choose(THOUSAND, rows, device, "cached")
        assert near.variant.strategy == Safe(128)
        assert near.origin == "from the table of NVIDIA H200, 132 SMs, tuned for 4096 x 1000"
        guess = best_guess(THOUSAND, rows, fake_arch(device))
        assert variant_for(THOUSAND, rows, device, "off") == guess
        assert variant_for(THOUSAND, rows, device, "on") == WINNER
    tuner.failure = NoRoomError("one row needs 12 bytes")
    assert variant_for(THOUSAND, 2048, 0, "on").strategy == Safe(128)
    assert len(tuner.calls) == 3


def test_a_shipped_winner_that_is_illegal_is_tuned_over(tuner: FakeTuner, tmp_path: Path) -> None:
    ship(tmp_path, Safe(33))
    assert variant_for(THOUSAND, 4096, 0, "cached") == best_guess(THOUSAND, 4096, H200)
    assert variant_for(THOUSAND, 4096, 0, "on") == WINNER


def test_off_never_looks(tuner: FakeTuner, monkeypatch: pytest.MonkeyPatch) -> None:
    stored()

    def look(*arguments: object) -> None:
        raise AssertionError("off must not read the cache")

    monkeypatch.setattr(cache, "load", look)
    monkeypatch.setattr(winners, "winner", look)
    monkeypatch.setattr(policy, "environment", look)
    assert variant_for(THOUSAND, 4096, 0, "off") == best_guess(THOUSAND, 4096, H200)
    assert tuner.calls == []


def test_force_tunes_every_time(tuner: FakeTuner) -> None:
    stored()
    assert variant_for(THOUSAND, 4096, 0, "force") == WINNER
    tuner.winner = Variant(THOUSAND, Safe(128))
    assert variant_for(THOUSAND, 4096, 0, "force").strategy == Safe(128)
    assert len(tuner.calls) == 2
    assert variant_for(THOUSAND, 4096, 0, "on").strategy == Safe(128)
    assert len(tuner.calls) == 2


@pytest.mark.parametrize("mode", ["off", "cached"])
def test_a_guess_is_made_for_the_bucket_of_rows(
    mode: str, tuner: FakeTuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows of a bucket share one kernel, so all must be guessed alike."""
    asked: list[tuple[int, Arch]] = []

    def note(problem: Problem, rows: int, arch: Arch) -> Variant:
        asked.append((rows, arch))
        return WINNER

    monkeypatch.setattr(policy, "best_guess", note)
    for rows in (1, 2, 3, 1000, 1024):
        variant_for(THOUSAND, rows, 1, mode)
    assert asked == [(1, T4), (2, T4), (4, T4), (1024, T4), (1024, T4)]


def test_a_stored_choice_must_be_legal_on_the_device(
    tuner: FakeTuner, caplog: pytest.LogCaptureFixture
) -> None:
    stored(strategy=Safe(33))
    assert variant_for(THOUSAND, 4096, 0, "cached") == best_guess(THOUSAND, 4096, H200)
    assert "block_size must be a multiple of 32" in caplog.text


def test_a_damaged_entry_is_tuned_over(tuner: FakeTuner, own_cache: Path) -> None:
    stored()
    (path,) = (own_cache / "tuned").glob("*.json")
    path.write_text("{")
    assert variant_for(THOUSAND, 4096, 0, "on") == WINNER
    assert variant_for(THOUSAND, 4096, 0, "on") == WINNER
    assert len(tuner.calls) == 1


def test_a_damaged_entry_is_warned_of_once(
    tuner: FakeTuner, own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored()
    (path,) = (own_cache / "tuned").glob("*.json")
    path.write_text("{")
    variant_for(THOUSAND, 4096, 0, "on")
    assert len([r for r in caplog.records if str(path) in r.getMessage()]) == 1


def test_a_tuning_that_fails_can_be_tried_again(tuner: FakeTuner) -> None:
    tuner.failure = VerificationError("no candidate works")
    for _ in range(2):
        with pytest.raises(VerificationError):
            variant_for(THOUSAND, 4096, 0, "on")
    tuner.failure = None
    assert variant_for(THOUSAND, 4096, 0, "on") == WINNER
    assert len(tuner.calls) == 3


def test_a_bad_budget_is_found_before_tuning(
    tuner: FakeTuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTGEN_TUNE_BUDGET", "soon")
    with pytest.raises(InvalidValueError, match="SOFTGEN_TUNE_BUDGET"):
        variant_for(THOUSAND, 4096, 0, "on")
    assert tuner.calls == []
    assert variant_for(THOUSAND, 4096, 0, "cached") == best_guess(THOUSAND, 4096, H200)


def wait_for_misses(monkeypatch: pytest.MonkeyPatch, threads: int) -> threading.Event:
    """Return an event that is set when so many threads have found nothing stored."""
    missed: set[int] = set()
    enough = threading.Event()
    load = cache.load

    def counting(key: Key, arch: Arch, **options: Any) -> Any:
        found = load(key, arch, **options)
        if found is None:
            missed.add(threading.get_ident())
            if len(missed) >= threads:
                enough.set()
        return found

    monkeypatch.setattr(cache, "load", counting)
    return enough


@pytest.mark.parametrize("in_memory", [False, True])
def test_threads_that_want_one_key_wait_for_one_tuning(
    in_memory: bool, tuner: FakeTuner, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    if in_memory:
        (own_cache / "tuned").write_text("in the way of the folder")
    tuner.hold = wait_for_misses(monkeypatch, 8)  # all of them, before the first tuning ends
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: variant_for(THOUSAND, 4096, 0, "on"), range(8)))
    assert answers == [WINNER] * 8
    assert tuner.most_at_once == 1
    assert len(tuner.calls) == 1


def test_a_thread_that_missed_before_a_tuning_ended_does_not_tune_again(
    tuner: FakeTuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread looks, another looks, tunes and is done, and only then the first goes on."""
    missed, done = threading.Event(), threading.Event()
    load, main = cache.load, threading.get_ident()

    def late(key: Key, arch: Arch, **options: Any) -> Any:
        found = load(key, arch, **options)
        if threading.get_ident() != main and not missed.is_set():
            missed.set()
            assert done.wait(timeout=10)
        return found

    monkeypatch.setattr(cache, "load", late)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(variant_for, THOUSAND, 4096, 0, "on")
        assert missed.wait(timeout=10)
        assert variant_for(THOUSAND, 4096, 0, "on") == WINNER
        done.set()
        assert slow.result(timeout=10) == WINNER
    assert len(tuner.calls) == 1


def test_threads_that_want_different_keys_do_not_wait(tuner: FakeTuner) -> None:
    tuner.hold, tuner.release_at = threading.Event(), 4
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: variant_for(THOUSAND, 1 << number, 0, "on"), range(4)))
    assert len(tuner.calls) == 4
    assert tuner.most_at_once == 4


def test_force_makes_threads_take_turns(tuner: FakeTuner) -> None:
    """Two tunings at once would disturb each other's times."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: variant_for(THOUSAND, 4096, 0, "force"), range(12)))
    assert len(tuner.calls) == 12
    assert tuner.most_at_once == 1
