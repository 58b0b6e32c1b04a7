"""Merging what other machines have tuned: the better one stays, and nothing is half done."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from softgen.cli import group
from softgen.disk import files
from softgen.errors import InvalidValueError
from softgen.tuning import cache
from softgen.tuning.cache import Merged, merge
from softgen.tuning.entry import SCHEMA, Entry, Key, Timing
from tests.helpers.cli_helpers import document, ok, refused
from tests.helpers.entries import ENVIRONMENT, make_entry


def entry_with(microseconds: float, cols: int = 1000, block_size: int = 256) -> Entry:
    entry = make_entry(cols, block_size=block_size)
    timing = Timing(entry.winner.name, microseconds, microseconds, microseconds)
    return replace(entry, timings=(timing,))


def put(folder: Path, *entries: Entry, written: int = 1_000_000_000) -> Path:
    """Store entries in a cache folder, as of a time in seconds."""
    (folder / "tuned").mkdir(parents=True, exist_ok=True)
    for entry in entries:
        path = folder / "tuned" / entry.key.file_name
        path.write_text(json.dumps(entry.to_json()))
        os.utime(path, (written, written))
    return folder


def stored() -> dict[int, Entry]:
    return {entry.key.problem.cols: entry for entry in cache.entries()}


@pytest.fixture
def tuned(own_cache: Path) -> Path:
    return own_cache


def test_the_folders_of_two_machines_come_together(tmp_path: Path, tuned: Path) -> None:
    ours, one, other = entry_with(5.0, 7), entry_with(5.0, 8), entry_with(5.0, 9)
    put(tuned, ours)
    folders = [put(tmp_path / "one", one), put(tmp_path / "other", other, one)]
    assert merge(folders) == Merged(added=2, replaced=0, kept=0, skipped=0)
    assert stored() == {7: ours, 8: one, 9: other}
    assert merge(folders) == Merged(added=0, replaced=0, kept=2, skipped=0)


def test_the_faster_of_two_stays_whichever_is_newer(tmp_path: Path, tuned: Path) -> None:
    fast, slow = entry_with(5.0, 7, 128), entry_with(6.0, 7, 512)
    slower, faster = entry_with(6.0, 8, 128), entry_with(5.0, 8, 512)
    put(tuned, fast, slower, written=2_000_000_000)
    assert merge([put(tmp_path / "one", slow, faster)]) == Merged(0, 1, 1, 0)
    assert stored() == {7: fast, 8: faster}


def test_of_several_that_come_the_fastest_is_taken(tmp_path: Path) -> None:
    times = (6.0, 5.0, 7.0)
    folders = [put(tmp_path / str(t), entry_with(t, 7, int(32 * t))) for t in times]
    assert merge(folders) == Merged(1, 0, 0, 0)
    assert stored() == {7: entry_with(5.0, 7, 160)}


def test_an_equal_one_changes_nothing(tmp_path: Path, tuned: Path) -> None:
    put(tuned, entry_with(5.0, 7, 128))
    file = tuned / "tuned" / entry_with(5.0, 7).key.file_name
    before = file.stat().st_mtime_ns
    assert merge([put(tmp_path / "one", entry_with(5.0, 7, 256), written=2_000_000_000)]).kept == 1
    assert file.stat().st_mtime_ns == before


@pytest.mark.parametrize("newer", [True, False])
def test_times_of_other_rows_are_not_compared_and_the_newer_stays(
    newer: bool, tmp_path: Path, tuned: Path
) -> None:
    ours = replace(entry_with(5.0, 7), rows=4096)
    other = replace(entry_with(3.0 if not newer else 9.0, 7), rows=3000)
    assert ours.key == other.key
    put(tuned, ours, written=1_500_000_000)
    put(tmp_path / "one", other, written=2_000_000_000 if newer else 1_000_000_000)
    merge([tmp_path / "one"])
    assert stored() == {7: other if newer else ours}


def test_a_choice_of_todays_kernels_beats_one_of_others(tmp_path: Path, tuned: Path) -> None:
    stale, fresh = replace(entry_with(1.0, 7), code="another text"), entry_with(5.0, 7)
    put(tuned, stale, written=2_000_000_000)
    assert merge([put(tmp_path / "one", fresh)]).replaced == 1
    assert stored() == {7: fresh}
    assert merge([put(tmp_path / "two", stale, written=2_100_000_000)]).kept == 1
    assert stored() == {7: fresh}


def test_a_winner_without_a_time_counts_by_its_age(tmp_path: Path, tuned: Path) -> None:
    untimed = replace(entry_with(5.0, 7), timings=())
    put(tuned, untimed, written=2_000_000_000)
    assert merge([put(tmp_path / "one", entry_with(5.0, 7))]).kept == 1
    assert merge([put(tmp_path / "two", entry_with(5.0, 7), written=2_100_000_000)]).replaced == 1


def test_choices_of_another_device_stand_beside(tmp_path: Path, tuned: Path) -> None:
    ours = entry_with(5.0, 7)
    other = replace(ours, key=Key.of(ours.key.problem, 4096, ENVIRONMENT | {"device": "A10"}))
    put(tuned, ours)
    assert merge([put(tmp_path / "one", other)]) == Merged(1, 0, 0, 0)
    assert len(cache.entries()) == 2


def test_folders_of_entries_and_exported_files_are_taken_too(tmp_path: Path) -> None:
    merge([put(tmp_path / "one", entry_with(5.0, 7)) / "tuned"])
    file = tmp_path / "choices.json"
    file.write_text(json.dumps([entry_with(5.0, 8).to_json(), {"schema": SCHEMA}]))
    assert merge([file]) == Merged(1, 0, 0, 1)
    assert set(stored()) == {7, 8}


def test_damaged_and_older_entries_are_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = put(tmp_path / "one", entry_with(5.0, 7))
    (folder / "tuned" / "half.json").write_text('{"schema": 2, ')
    (folder / "tuned" / "old.json").write_text(json.dumps(make_entry(8).to_json() | {"schema": 1}))
    (folder / "tuned" / "link.json").symlink_to(folder / "tuned" / "half.json")
    (folder / "tuned" / "CACHEDIR.TAG").write_text("no entry")
    assert merge([folder]) == Merged(1, 0, 0, 3)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3
    assert str(folder / "tuned" / "half.json") in caplog.text


@pytest.mark.parametrize("exported", [True, False])
def test_a_later_schema_is_refused_before_anything_is_stored(
    exported: bool, tmp_path: Path
) -> None:
    fine = put(tmp_path / "fine", entry_with(5.0, 7))
    data = make_entry(8).to_json() | {"schema": SCHEMA + 1}
    path = put(tmp_path / "later", make_entry(8))
    if exported:
        path = tmp_path / "later.json"
        path.write_text(json.dumps([data]))
    else:
        (path / "tuned" / make_entry(8).key.file_name).write_text(json.dumps(data))
    with pytest.raises(InvalidValueError, match=r"later version .* nothing was merged"):
        merge([fine, path])
    assert cache.entries() == []


def test_other_paths_are_told_apart(tmp_path: Path, tuned: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidValueError, match="empty holds no tuned choices; name a cache"):
        merge([tmp_path / "empty"])
    with pytest.raises(InvalidValueError, match="nowhere does not exist; name a cache folder"):
        merge([tmp_path / "nowhere"])
    for name, text in (("README.md", "# softgen"), ("nothing", ""), ("object", "{}")):
        (tmp_path / name).write_text(text)
        told = rf"{name}.*; name a cache folder, as .*, or a file of `softgen cache export`$"
        with pytest.raises(InvalidValueError, match=told):
            merge([tmp_path / name])
    (tmp_path / "empty" / "tuned").mkdir()
    assert merge([tmp_path / "empty"]) == Merged(0, 0, 0, 0)


def test_a_folder_that_cannot_be_written_is_an_error(
    tmp_path: Path, tuned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Choices kept in memory would be gone with the command."""

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "_replace", full)
    (tuned / "tuned").mkdir(mode=0o700)
    (tuned / "tuned" / "CACHEDIR.TAG").write_bytes(b"# softgen made this folder")
    with pytest.raises(OSError, match="No space left"):
        merge([put(tmp_path / "one", entry_with(5.0, 7))])
    assert cache.entries() == []


def test_an_entry_of_ours_under_another_name_is_none(tmp_path: Path, tuned: Path) -> None:
    entry = entry_with(5.0, 7)
    put(tuned, entry)
    (tuned / "tuned" / entry.key.file_name).rename(tuned / "tuned" / "copy.json")
    assert merge([put(tmp_path / "one", entry)]).added == 1


def test_the_command_says_counts(tmp_path: Path, own_cache: Path) -> None:
    folder = put(tmp_path / "one", entry_with(5.0, 7))
    words = ("cache", "merge", folder, folder)
    assert document(ok(*words, "--json")) == {
        "folder": str(own_cache),
        **{"added": 1, "replaced": 0, "kept": 0, "skipped": 0},
    }
    told = f"0 added, 0 replaced by better ones, 1 kept, 0 skipped in {own_cache}"
    assert told in ok(*words).stderr
    assert "holds no tuned choices" in refused(group.USAGE, "cache", "merge", tmp_path)
