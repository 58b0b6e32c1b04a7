"""A clock that is set back or ahead, and files that seem to be of the future or long past."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from softgen.devices.emulator.folder import keep_small
from softgen.disk import folders, owned
from softgen.source import store
from softgen.source.render import Source, render
from softgen.strategies.safe import Safe
from softgen.strategies.variants import Variant, parse_name
from softgen.tuning import cache
from tests.cpu.tuning.test_cache import ENTRY
from tests.cpu.tuning.test_merge import entry_with, put
from tests.helpers.entries import H200, make_entry

YEARS = 10 * 365 * 86400.0
VARIANT = parse_name("softmax_f32_1000_safe_b256")


@pytest.fixture(autouse=True)
def forget(own_cache: Path) -> None:
    cache._memory.clear()


@pytest.fixture(params=[-YEARS, -7200, 7200, YEARS], ids=["long ago", "back", "ahead", "far ahead"])
def set_clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what sets the clock: by two hours or ten years, back or ahead."""
    now = time.time
    return lambda: monkeypatch.setattr(time, "time", lambda: now() + request.param)


def age(folder: Path, seconds: float) -> None:
    """Let all files of a folder be so old; of the future where it is below 0."""
    then = time.time() - seconds
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


def test_what_was_kept_is_found_whatever_the_clock_says(
    set_clock: Callable[[], None], own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cache.store(ENTRY)
    store.source_of(VARIANT)
    set_clock()

    def emitted(variant: Variant) -> Source:
        raise AssertionError(f"{variant.name} was kept")

    with monkeypatch.context() as patch:
        patch.setattr(store, "render", emitted)
        assert cache.load(ENTRY.key, H200) == ENTRY
        assert store.source_of(VARIANT) == render(VARIANT)
    assert cache.store(make_entry(block_size=512)) == path
    found = cache.load(ENTRY.key, H200)
    assert found is not None
    assert found.winner.strategy == Safe(512)
    assert cache.clear().deleted == {
        **{"tuned": 1, "texts": 2, "code": 0},
        **{"emulator": 0, "sources": 0},
    }


@pytest.mark.parametrize("seconds", [-YEARS, -7200, YEARS])
def test_files_of_another_time_are_used_and_replaced(seconds: float, own_cache: Path) -> None:
    path = cache.store(ENTRY)
    store.source_of(VARIANT)
    age(own_cache, seconds)
    assert cache.load(ENTRY.key, H200) == ENTRY
    assert store.source_of(VARIANT) == render(VARIANT)
    assert cache.store(make_entry(block_size=512)) == path
    assert len(cache.entries()) == 1


@pytest.mark.parametrize("seconds", [-YEARS, -7200.0, 0.0])
def test_what_another_process_writes_is_not_deleted_while_the_clock_goes_back(
    seconds: float, own_cache: Path
) -> None:
    """Its file is of now, or of the future for a clock that was set back since."""
    folder = folders.made("tuned")
    unfinished = folder / f".{ENTRY.key.file_name}.abcd_123.tmp"
    unfinished.write_text("{")
    then = time.time() - seconds
    os.utime(unfinished, (then, then))
    owned.delete_stale("tuned", folder)
    cache.store(make_entry(7))
    assert unfinished.exists()


def test_a_file_that_a_clock_set_ahead_had_deleted_is_kept_in_memory(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """To another process, two hours ahead, the unfinished file seems to be of a killed one."""
    replace, now = os.replace, time.time

    def late(source: str, target: Path) -> None:
        if Path(target) == folder / ENTRY.key.file_name:
            monkeypatch.setattr(time, "time", lambda: now() + 7200)
            owned.delete_stale("tuned", folder)
        replace(source, target)

    folder = folders.made("tuned")
    monkeypatch.setattr(os, "replace", late)
    cache._warn_once.cache_clear()
    assert cache.store(ENTRY) is None
    assert cache.load(ENTRY.key, H200) == ENTRY
    assert "going on in memory" in caplog.text


def test_the_folder_of_programs_stays_small_where_all_are_of_the_future(own_cache: Path) -> None:
    folder = folders.made("emulator")
    for number in range(4):
        path = folder / f"unit-{number:032x}-{number:032x}"
        path.write_bytes(bytes(1000))
        then = time.time() + YEARS + number
        os.utime(path, (then, then))
    keep_small(folder, limit=2500)
    assert {int(path.name[5:37], 16) for path in owned.files("emulator", folder)} == {2, 3}


@pytest.mark.parametrize("seconds", [-YEARS, YEARS])
def test_of_two_choices_the_faster_is_taken_whatever_their_times(
    seconds: float, own_cache: Path, tmp_path: Path
) -> None:
    fast, slow = entry_with(5.0, 7, 128), entry_with(6.0, 7, 512)
    put(own_cache, fast, written=int(time.time() - seconds))
    assert cache.merge([put(tmp_path / "one", slow)]).kept == 1
    assert cache.entries() == [fast]
