"""The store of tuned choices: whole or not at all, never an error, never somebody else's."""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from softgen.disk import folders
from softgen.errors import InvalidValueError
from softgen.problems.problem import Problem, rows_bucket
from softgen.source.render import render
from softgen.strategies.online import Online
from softgen.strategies.safe import Safe
from softgen.strategies.variants import Variant
from softgen.strategies.warp import Warp
from softgen.tuning import cache
from softgen.tuning.entry import SCHEMA, Entry, Key, Timing, entry_from_json
from tests.helpers.entries import ENVIRONMENT, H200, finish, go, make_entry, names, start

ENTRY = make_entry()
GOOD = ENTRY.to_json()


@pytest.fixture(autouse=True)
def forget(own_cache: Path) -> Iterator[None]:
    """Start and end with nothing in memory and no warning given."""
    cache._memory.clear()
    cache._warn_once.cache_clear()
    yield
    cache._memory.clear()
    cache._warn_once.cache_clear()


@pytest.fixture
def tuned(own_cache: Path) -> Path:
    """Return the folder of the entries, which does not exist yet."""
    return own_cache / "tuned"


def put(text: str | bytes, entry: Entry = ENTRY) -> Path:
    """Write `text` where `entry` would be."""
    folder = cache.tuned_directory()
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / entry.key.file_name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# Round trips


def test_what_is_stored_is_loaded(tuned: Path) -> None:
    path = cache.store(ENTRY)
    assert path == tuned / ENTRY.key.file_name
    assert cache._memory == {}
    assert cache.load(ENTRY.key, H200) == ENTRY
    assert cache.entries() == [ENTRY]


@pytest.mark.parametrize("code", ["0123456789abcdef", "", None, "absent"])
def test_a_choice_whose_text_has_changed_is_a_miss_and_replaced(
    code: str | None, tuned: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changed: dict[str, Any] = {**GOOD, "code": code}
    if code == "absent":  # as an earlier version wrote it
        del changed["code"]
    path = put(json.dumps(changed))
    assert cache.load(ENTRY.key, H200) is None
    (listed,) = cache.entries()
    assert not listed.is_current
    assert caplog.records == []
    assert cache.store(ENTRY) == path
    assert cache.load(ENTRY.key, H200) == ENTRY
    assert len(names(tuned)) == 1


def test_an_entry_says_how_many_rows_were_timed_and_an_older_one_those_of_its_key() -> None:
    entry = replace(ENTRY, rows=2500)
    cache.store(entry)
    assert cache.load(ENTRY.key, H200) == entry
    put(json.dumps(without("rows")))
    loaded = cache.load(ENTRY.key, H200)
    assert loaded is not None
    assert loaded.rows == 4096


def test_what_was_exported_stays_of_the_text_that_was_timed(tmp_path: Path) -> None:
    put(json.dumps({**GOOD, "code": "0123456789abcdef"}))
    cache.export_file(tmp_path / "choices.json")
    cache.clear()
    assert cache.import_file(tmp_path / "choices.json") == 1
    assert cache.load(ENTRY.key, H200) is None


@pytest.mark.parametrize(
    "variant",
    [
        Variant(
            Problem.of("log_softmax", "bfloat16", 1024, out_dtype="float32"),
            Warp(8, 32, 32, 1, False, 128),
        ),
        Variant(Problem.of("softmax", "float16", 1000), Warp(8, 32, 32, 1, True, 128)),
        Variant(Problem.of("softmax", "float64", 2**33, alignment=1), Online(2, 4, 256)),
    ],
)
def test_every_part_of_an_entry_comes_back(variant: Variant) -> None:
    entry = Entry(Key.of(variant.problem, 5, ENVIRONMENT), variant, ())
    cache.store(entry)
    loaded = cache.load(entry.key, H200)
    assert loaded == entry
    assert loaded is not None
    assert repr(loaded) == repr(entry)  # True is not 1 there


def test_the_file_is_readable_json(tuned: Path) -> None:
    path = cache.store(ENTRY)
    assert path is not None
    data = json.loads(path.read_text())
    assert data == {
        "schema": SCHEMA,
        "key": {
            "problem": {
                "function": "softmax",
                "dtype": "float32",
                "out_dtype": "float32",
                "cols": 1000,
                "alignment": 4,
                "fixed_order": False,
            },
            "rows": 4096,
            "environment": ENVIRONMENT,
        },
        "winner": {"strategy": "safe", "parameters": {"block_size": 256, "pdl": 0}},
        "timings": [
            {
                "variant": "softmax_f32_1000_safe_b256",
                "microseconds": 10.5,
                "p10": 10.25,
                "p90": 11.0,
            },
            {"variant": "another", "microseconds": 12.0, "p10": 11.5, "p90": 13.0},
        ],
        "failures": {"a_third": "spills: 8 bytes of local memory a thread"},
        "code": render(ENTRY.winner).code_sha256,
        "rows": 4096,
    }
    assert names(tuned) == [path.name]


def test_a_later_choice_replaces_the_earlier() -> None:
    cache.store(ENTRY)
    cache.store(make_entry(block_size=512))
    loaded = cache.load(ENTRY.key, H200)
    assert loaded is not None
    assert loaded.winner.strategy == Safe(512)
    assert len(cache.entries()) == 1


def test_file_names_are_readable_and_tell_all_keys_apart() -> None:
    name = ENTRY.key.file_name
    assert name.startswith("softmax_f32_1000_rows4096_")
    assert name.endswith(".json")
    problem = ENTRY.key.problem
    keys = [ENTRY.key, Key.of(problem, 4097, ENVIRONMENT)]
    keys += [Key.of(replace(problem, alignment=1), 4096, ENVIRONMENT)]
    keys += [Key.of(replace(problem, cols=1004), 4096, ENVIRONMENT)]
    keys += [Key.of(problem, 4096, {**ENVIRONMENT, part: "another"}) for part in ENVIRONMENT]
    names = {key.file_name for key in keys}
    assert len(names) == len(keys) == 10
    assert all(len(name) < 200 and "/" not in name for name in names)
    shuffled = dict(reversed(ENVIRONMENT.items()))
    assert Key.of(problem, 4000, shuffled).file_name == name


@given(st.integers(1, 2**62))
def test_row_buckets_are_the_next_power_of_two(rows: int) -> None:
    bucket = rows_bucket(rows)
    assert bucket & (bucket - 1) == 0
    assert bucket // 2 < rows <= bucket


def test_rows_share_a_choice_up_to_the_next_power_of_two() -> None:
    cache.store(ENTRY)
    problem = ENTRY.key.problem
    assert cache.load(Key.of(problem, 2049, ENVIRONMENT), H200) == ENTRY
    assert cache.load(Key.of(problem, 2048, ENVIRONMENT), H200) is None
    assert cache.load(Key.of(problem, 4097, ENVIRONMENT), H200) is None


def test_nothing_stored_is_a_silent_miss(caplog: pytest.LogCaptureFixture, tuned: Path) -> None:
    assert cache.load(ENTRY.key, H200) is None
    cache.store(make_entry(cols=7))
    assert cache.load(ENTRY.key, H200) is None
    assert caplog.records == []


# Whole or not at all


@pytest.mark.parametrize("where", ["fsync", "replace"])
@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_crash_leaves_the_old_text_and_no_litter(
    where: str, failure: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.json"
    cache.write_atomic(path, "old")

    def fail(*arguments: object) -> None:
        raise failure

    monkeypatch.setattr(os, where, fail)
    with pytest.raises(type(failure)):
        cache.write_atomic(path, "new" * 10_000)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    monkeypatch.undo()
    cache.write_atomic(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_text_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []
    fsync, rename = os.fsync, os.replace

    def note_fsync(handle: int) -> None:
        events.append(("fsync", os.fstat(handle).st_size))
        fsync(handle)

    def note_replace(source: str, target: Path) -> None:
        assert Path(source).parent == target.parent, "a rename works only within a file system"
        events.append(("replace", Path(source).stat().st_size))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    cache.write_atomic(tmp_path / "file.json", "12345")
    assert events == [("fsync", 5), ("replace", 5)]


def test_half_written_files_of_others_are_no_entries(tuned: Path) -> None:
    cache.store(ENTRY)
    (tuned / f".{ENTRY.key.file_name}.abc.tmp").write_text("{")
    assert cache.entries() == [ENTRY]


@pytest.mark.parametrize(("seconds", "kept"), [(60, True), (3500, True), (3700, False)])
def test_what_a_killed_process_left_behind_goes_after_an_hour(
    seconds: int, kept: bool, tuned: Path
) -> None:
    cache.store(ENTRY)
    litter = tuned / f".{ENTRY.key.file_name}.abc.tmp"
    litter.write_text("{")
    then = time.time() - seconds
    os.utime(litter, (then, then))
    cache.store(make_entry(cols=7))
    assert litter.exists() is kept
    assert len(cache.entries()) == 2


def test_litter_that_cannot_be_deleted_is_no_obstacle(tuned: Path) -> None:
    (tuned / ".folder.tmp").mkdir(parents=True)
    tuned.chmod(0o700)
    os.utime(tuned / ".folder.tmp", (0, 0))
    assert cache.store(ENTRY) is not None


# Entries that cannot be used


def changed(**parts: Any) -> dict[str, Any]:
    return {**GOOD, **parts}


def without(part: str) -> dict[str, Any]:
    return {name: value for name, value in GOOD.items() if name != part}


def won_by(strategy: Any, **parameters: Any) -> dict[str, Any]:
    return changed(winner={"strategy": strategy, "parameters": parameters})


def timed(**parts: Any) -> dict[str, Any]:
    return changed(timings=[{**GOOD["timings"][0], **parts}])


def on(**parts: Any) -> dict[str, Any]:
    return {**GOOD["key"], "environment": {**ENVIRONMENT, **parts}}


def for_rows(rows: Any) -> dict[str, Any]:
    return {**GOOD["key"], "rows": rows}


def ordered(fixed_order: Any) -> dict[str, Any]:
    return {**GOOD["key"], "problem": {**GOOD["key"]["problem"], "fixed_order": fixed_order}}


TEXT = json.dumps(GOOD)
OTHER_KEY = {**GOOD["key"], "rows": 8192}
OTHER_DEVICE = {**GOOD["key"], "environment": {**ENVIRONMENT, "device": "NVIDIA H100"}}
WIDER = {**GOOD["key"], "problem": {**GOOD["key"]["problem"], "cols": 2**41}}

DAMAGED: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "Expecting value"),
    "truncated": (TEXT[: len(TEXT) // 2], "line 1"),
    "no JSON": ("schema: 1", "Expecting value"),
    "binary": (b"\x80\x04\x95\xff", "utf-8"),
    "null": ("null", "not an entry"),
    "list": ("[1, 2]", "not an entry"),
    "deep": ("[" * 100_000, "recursion"),
    "another program's": ('{"name": "x", "version": 3}', "'schema'"),
    "newer": (json.dumps(changed(schema=SCHEMA + 1)), "schema 3, this softgen reads 2"),
    "older": (json.dumps(changed(schema=SCHEMA - 1)), "schema 1, this softgen reads 2"),
    "other rows": (json.dumps(changed(key=OTHER_KEY)), "it is for another key"),
    "other device": (json.dumps(changed(key=OTHER_DEVICE)), "it is for another key"),
    "too wide": (json.dumps(changed(key=WIDER)), "cols must be from 1"),
    "no winner": (json.dumps(without("winner")), "'winner'"),
    "no timings": (json.dumps(without("timings")), "'timings'"),
    "zero timing": (json.dumps(timed(microseconds=0)), "microseconds must be a positive number"),
    "negative timing": (json.dumps(timed(p10=-1.0)), "p10 must be a positive number, got -1.0"),
    "endless timing": (json.dumps(timed(p90=math.inf)), "p90 must be a positive number, got inf"),
    "no timing": (json.dumps(timed(microseconds=math.nan)), "must be a positive number, got nan"),
    "true timing": (json.dumps(timed(microseconds=True)), "must be a positive number, got True"),
    "text timing": (json.dumps(timed(microseconds="3")), "must be a positive number, got '3'"),
    "nameless timing": (json.dumps(timed(variant=5)), "variant must be a name, got 5"),
    "odd timing": (json.dumps(changed(timings=[{"variant": "x"}])), "microseconds"),
    "removed strategy": (json.dumps(won_by("vanished", b=1)), "unknown strategy 'vanished'"),
    "no strategy": (json.dumps(won_by(["safe"], block_size=256)), "not an entry"),
    "illegal": (json.dumps(won_by("safe", block_size=33)), "block_size must be a multiple of 32"),
    "zero": (json.dumps(won_by("safe", block_size=0)), "block_size must be a multiple of 32"),
    "fractional": (json.dumps(won_by("safe", block_size=256.0)), "block_size must be int"),
    "text": (json.dumps(won_by("safe", block_size="256")), "block_size must be int"),
    "unknown knob": (json.dumps(won_by("safe", block_size=256, splits=2)), "splits"),
    "missing knob": (json.dumps(won_by("online", block_size=256)), "pack_size"),
    "a lesson": (json.dumps(won_by("serial", block_size=256)), "serial is never tuned"),
    "listed device": (json.dumps(changed(key=on(device=["x"]))), "device must be a text"),
    "no rows": (json.dumps(changed(key=for_rows(0))), "rows of a key must be at least 1, got 0"),
    "half a row": (json.dumps(changed(key=for_rows(0.5))), "rows of a key must be an int, got 0.5"),
    "rows beyond floats": (json.dumps(changed(key=for_rows(10**400))), "rows of a key must fit"),
    "listed order": (json.dumps(changed(key=ordered([]))), "fixed_order must be true or false"),
    "order of a text": (json.dumps(changed(key=ordered("no"))), "fixed_order must be true or"),
    "negative rows": (json.dumps(changed(rows=-1)), "rows must be a number up to 4096, got -1"),
    "rows of another key": (json.dumps(changed(rows=4097)), "rows must be a number up to 4096"),
    "text rows": (json.dumps(changed(rows="8")), "rows must be a number up to 4096, got '8'"),
    "half a pair": (json.dumps(changed(key=on(device="\udc80"))), "device must be a text"),
    "code of a number": (json.dumps(changed(code=5)), "code must be a text, got 5"),
    "half a code": (json.dumps(changed(code="\udc80")), "code must be a text"),
    "half a failure": (json.dumps(changed(failures={"x": "\udc80"})), "a failure must be a text"),
}


@pytest.mark.parametrize("name", list(DAMAGED))
def test_a_damaged_entry_is_a_miss_with_one_warning(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    text, reason = DAMAGED[name]
    path = put(text)
    assert cache.load(ENTRY.key, H200) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.name == "softgen"
    assert str(path) in record.getMessage()
    assert reason in record.getMessage()
    # And it does not stand in the way of a good one.
    assert cache.store(ENTRY) == path
    assert cache.load(ENTRY.key, H200) == ENTRY


@pytest.mark.parametrize("rows", ["Infinity", "-Infinity", "1e400"])
def test_endless_rows_are_a_miss(rows: str, caplog: pytest.LogCaptureFixture) -> None:
    put(TEXT.replace('"rows": 4096', f'"rows": {rows}'))
    assert cache.load(ENTRY.key, H200) is None
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("strategy", "parameters"),
    [
        ("online", {"pack_size": True, "unroll": 1, "block_size": 128}),
        ("online", {"pack_size": 4, "unroll": True, "block_size": 128}),
        (
            "warp",
            {
                "pack_size": 4,
                "cols_per_thread": 32,
                "thread_group_width": 32,
                "rows_per_access": 1,
                "padding": 1,
                "block_size": 128,
            },
        ),
    ],
)
def test_a_knob_of_another_type_is_a_miss(strategy: str, parameters: dict[str, Any]) -> None:
    put(json.dumps(won_by(strategy, **parameters)))
    assert cache.load(ENTRY.key, H200) is None


def test_an_entry_that_this_device_cannot_run_is_a_miss(caplog: pytest.LogCaptureFixture) -> None:
    problem = Problem.of("softmax", "float16", 4096)
    entry = Entry(Key.of(problem, 8, ENVIRONMENT), Variant(problem, Online(8, 4, 1024)), ())
    cache.store(entry)
    assert cache.load(entry.key, H200) == entry
    small = replace(H200, registers_per_multiprocessor=32768)
    assert cache.load(entry.key, small) is None
    assert "a thread would hold 32 registers" in caplog.text


def test_a_fifo_in_place_of_an_entry_is_a_miss(
    tuned: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tuned.mkdir(mode=0o700)
    os.mkfifo(tuned / ENTRY.key.file_name)
    assert cache.load(ENTRY.key, H200) is None
    assert cache.entries() == []
    assert len(caplog.records) == 2
    assert "not a regular file" in caplog.text
    assert cache.store(ENTRY) == tuned / ENTRY.key.file_name
    assert cache.load(ENTRY.key, H200) == ENTRY


def test_a_link_in_place_of_an_entry_is_a_miss(tuned: Path, tmp_path: Path) -> None:
    (tmp_path / "else.json").write_text(TEXT)
    tuned.mkdir(mode=0o700)
    (tuned / ENTRY.key.file_name).symlink_to(tmp_path / "else.json")
    assert cache.load(ENTRY.key, H200) is None
    cache.store(make_entry(block_size=512))
    assert (tmp_path / "else.json").read_text() == TEXT


def test_an_unreadable_file_is_a_miss(caplog: pytest.LogCaptureFixture, tuned: Path) -> None:
    (tuned / ENTRY.key.file_name).mkdir(parents=True, mode=0o700)
    tuned.chmod(0o700)
    assert cache.load(ENTRY.key, H200) is None
    assert len(caplog.records) == 1
    assert ENTRY.key.file_name in caplog.text


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path to every value inside `value`."""
    yield path
    parts: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, list):
        parts = list(enumerate(value))
    for name, part in parts:
        yield from places(part, (*path, name))


def replaced(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    if not path:
        return new
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@settings(deadline=None, max_examples=400)
@given(st.sampled_from(list(places(GOOD))), json_values)
@example(("schema",), 1.0)
@example(("key",), [])
@example(("key", "environment"), [["device", "x"]])
@example(("key", "rows"), "4096")
@example(("key", "rows"), float("nan"))
@example(("key", "rows"), float("inf"))
@example(("winner", "parameters"), None)
@example(("failures",), [])
def test_a_value_of_another_type_is_never_an_error(path: tuple[str | int, ...], value: Any) -> None:
    put(json.dumps(replaced(GOOD, path, value)))
    loaded = cache.load(ENTRY.key, H200)
    assert loaded is None or (loaded.key, loaded.winner.problem) == (ENTRY.key, ENTRY.key.problem)
    assert loaded is None or loaded.winner.strategy.is_legal(ENTRY.key.problem, H200)
    assert len(cache.entries()) <= 1


@settings(deadline=None, max_examples=200)
@given(json_values)
def test_other_json_is_no_entry(value: Any) -> None:
    with pytest.raises(InvalidValueError):
        entry_from_json(value)


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=60))
def test_bytes_are_never_an_error(content: bytes) -> None:
    put(content)
    assert cache.load(ENTRY.key, H200) is None
    assert cache.entries() == []


# Folders that cannot be used


def only_warning(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    return str(record.getMessage())


def remembers_without_a_file(tuned: Path) -> None:
    """Store and load twice; nothing may reach the folder."""
    before = sorted(tuned.iterdir()) if tuned.is_dir() else None
    for entry in (ENTRY, make_entry(cols=7)):
        assert cache.store(entry) is None
        assert cache.load(entry.key, H200) == entry
    assert (sorted(tuned.iterdir()) if tuned.is_dir() else None) == before


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o720, 0o1777])
def test_a_folder_that_others_can_write_to_is_not_used(
    mode: int, tuned: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(TEXT)
    tuned.chmod(mode)
    assert cache.load(ENTRY.key, H200) is None
    assert cache.entries() == []
    remembers_without_a_file(tuned)
    message = only_warning(caplog)
    assert f"the cache folder {tuned} is not used: others can write to it" in message
    assert "SOFTGEN_CACHE_DIR" in message


def test_a_folder_of_another_user_is_not_used(
    tuned: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(TEXT)
    monkeypatch.setattr(os, "getuid", lambda: tuned.stat().st_uid + 1)
    assert cache.load(ENTRY.key, H200) is None
    remembers_without_a_file(tuned)
    assert f"{tuned} is not used: it belongs to another user" in only_warning(caplog)


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o750])
def test_a_folder_that_others_can_only_read_is_fine(
    mode: int, tuned: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(TEXT)
    tuned.chmod(mode)
    assert cache.load(ENTRY.key, H200) == ENTRY
    assert caplog.records == []


def test_a_file_in_place_of_the_folder(tuned: Path, caplog: pytest.LogCaptureFixture) -> None:
    tuned.write_text("mine")
    assert cache.load(ENTRY.key, H200) is None
    assert caplog.records == []
    remembers_without_a_file(tuned)
    assert str(tuned) in only_warning(caplog)
    assert tuned.read_text() == "mine"


def fail_with(error: OSError) -> Callable[..., Any]:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("module", "name", "error"),
    [
        (tempfile, "mkstemp", OSError(30, "Read-only file system")),
        (tempfile, "mkstemp", PermissionError(13, "Permission denied")),
        (os, "fsync", OSError(28, "No space left on device")),
        (os, "replace", OSError(122, "Disk quota exceeded")),
        (os, "mkdir", PermissionError(13, "Permission denied")),
    ],
)
def test_a_folder_that_cannot_be_written(
    module: Any,
    name: str,
    error: OSError,
    tuned: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if name != "mkdir":
        tuned.mkdir(mode=0o700)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, fail_with(error))
        remembers_without_a_file(tuned)
    message = only_warning(caplog)
    assert str(tuned) in message
    assert str(error.strerror) in message
    assert "memory" in message
    # Once the folder can be written, the file counts again.
    assert cache.store(make_entry(block_size=512)) == tuned / ENTRY.key.file_name
    loaded = cache.load(ENTRY.key, H200)
    assert loaded is not None
    assert loaded.winner.strategy == Safe(512)


def test_a_folder_that_may_not_be_looked_at(
    tuned: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(TEXT)
    monkeypatch.setattr(Path, "stat", fail_with(PermissionError(13, "Permission denied")))
    assert cache.load(ENTRY.key, H200) is None
    assert cache.store(ENTRY) is None
    assert cache.load(ENTRY.key, H200) == ENTRY
    assert "Permission denied" in only_warning(caplog)


def test_a_folder_deleted_in_between(tuned: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = cache.store(ENTRY)
    assert path is not None
    shutil.rmtree(tuned)
    assert cache.load(ENTRY.key, H200) is None
    assert cache.entries() == []
    assert cache.clear().deleted["tuned"] == 0
    assert cache.store(ENTRY) == path
    assert cache.load(ENTRY.key, H200) == ENTRY
    assert caplog.records == []


# Where it is


def test_the_folder_is_the_explicit_one_then_xdgs_then_homes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", str(tmp_path / "own"))
    assert folders.directory() == tmp_path / "own"
    assert cache.tuned_directory() == tmp_path / "own" / "tuned"
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", "~/mine")
    assert folders.directory() == tmp_path / "home" / "mine"
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", "")
    assert folders.directory() == tmp_path / "xdg" / "softgen"
    monkeypatch.delenv("SOFTGEN_CACHE_DIR")
    assert folders.directory() == tmp_path / "xdg" / "softgen"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert folders.directory() == tmp_path / "home" / ".cache" / "softgen"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert folders.directory() == tmp_path / "home" / ".cache" / "softgen"


def test_a_relative_folder_is_below_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", "here")
    assert folders.directory() == tmp_path / "here"


@pytest.mark.parametrize(
    "explicit",
    [
        None,
        "~nobody-of-this-name/cache",
    ],
)
def test_a_user_without_a_home_works_in_memory(
    explicit: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As in a container that runs under a made-up user number."""
    import pwd

    def unknown(user: object) -> pwd.struct_passwd:
        raise KeyError(f"no such user: {user}")

    monkeypatch.chdir(tmp_path)
    for name in ("SOFTGEN_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    if explicit is not None:
        monkeypatch.setenv("SOFTGEN_CACHE_DIR", explicit)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(pwd, "getpwnam", unknown)
    assert cache.store(ENTRY) is None
    assert cache.load(ENTRY.key, H200) == ENTRY
    assert list(tmp_path.iterdir()) == []
    assert "memory" in only_warning(caplog)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Let new files and folders have every permission that they ask for."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_entries_and_their_folder_are_ours_alone(tuned: Path) -> None:
    path = cache.store(ENTRY)
    assert path is not None
    assert mode_of(tuned) == 0o700
    assert mode_of(path) == 0o600


@pytest.mark.usefixtures("open_umask")
def test_the_folder_above_is_ours_alone_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", str(tmp_path / "new"))
    cache.store(ENTRY)
    assert mode_of(tmp_path / "new") == 0o700


# clear, export, import


def test_clear_takes_all_entries_and_nothing_else(tuned: Path) -> None:
    for cols in (7, 8, 9):
        cache.store(make_entry(cols))
    put("damaged")
    (tuned / "notes.txt").write_text("mine")
    cache._memory[tuned / "x.json"] = ENTRY
    assert cache.clear().deleted["tuned"] == 4
    assert cache.entries() == []
    assert cache._memory == {}
    assert names(tuned) == ["notes.txt"]


def test_a_folder_in_place_of_an_entry_does_not_stop_clear(tuned: Path) -> None:
    for cols in (7, 8, 9):
        cache.store(make_entry(cols))
    for name in ("x.json", "a.json", make_entry(10).key.file_name):
        (tuned / name).mkdir()
    assert cache.clear() == cache.Cleared(
        {"tuned": 3, "texts": 0, "code": 0, "emulator": 0, "sources": 0}, left={}
    )
    assert names(tuned) == sorted(["x.json", "a.json", make_entry(10).key.file_name])


def test_an_exported_file_brings_everything_back(tmp_path: Path) -> None:
    stored = [make_entry(cols) for cols in (7, 8, 1000)]
    for entry in stored:
        cache.store(entry)
    file = tmp_path / "export.json"
    assert cache.export_file(file) == 3
    assert cache.clear().deleted["tuned"] == 3
    assert cache.import_file(file) == 3
    assert [cache.load(entry.key, H200) for entry in stored] == stored


def test_damaged_entries_are_not_exported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.store(make_entry(7))
    path = put("{")
    assert cache.export_file(tmp_path / "export.json") == 1
    assert str(path) in only_warning(caplog)
    assert cache.import_file(tmp_path / "export.json") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot read .* as JSON"),
        ("{", "cannot read .* as JSON"),
        ("{}", "is not a list of cache entries"),
        (TEXT, "is not a list of cache entries"),
        ('"text"', "is not a list of cache entries"),
        (f"[{TEXT}, 5]", "not an entry.*nothing was imported"),
        (f"[{TEXT}, {TEXT[:-1]}, \"more\": 1}}, null]", "nothing was imported"),
        (f"[{TEXT}, {json.dumps(won_by('vanished'))}]", "vanished.*nothing was imported"),
    ],
)  # fmt: skip
def test_garbage_imports_nothing(text: str, message: str, tmp_path: Path, tuned: Path) -> None:
    file = tmp_path / "import.json"
    file.write_text(text)
    with pytest.raises(InvalidValueError, match=message) as caught:
        cache.import_file(file)
    assert str(file) in str(caught.value)
    assert cache.entries() == []
    assert not tuned.exists()


def test_exporting_into_a_missing_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"x\.json is in a folder that does not exist"):
        cache.export_file(tmp_path / "no" / "x.json")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_or_binary_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"cannot read .*nowhere: there is no such file"):
        cache.import_file(tmp_path / "nowhere")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidValueError, match=r"cannot read .*binary as JSON"):
        cache.import_file(tmp_path / "binary")
    with pytest.raises(InvalidValueError, match=r"is a folder; `softgen cache merge .*` takes"):
        cache.import_file(tmp_path)


def test_an_endless_nest_imports_nothing(tmp_path: Path) -> None:
    (tmp_path / "deep").write_text("[" * 100_000)
    with pytest.raises(InvalidValueError):
        cache.import_file(tmp_path / "deep")


def test_an_entry_that_goes_from_memory_while_it_is_looked_up(
    tuned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fleeting(dict[Path, Entry]):
        """Another thread takes out what was found."""

        def __contains__(self, path: object) -> bool:
            self.clear()
            return True

    monkeypatch.setattr(cache, "_memory", Fleeting({tuned / ENTRY.key.file_name: ENTRY}))
    assert cache.load(ENTRY.key, H200) == ENTRY


# Many processes at once

WRITER = """
import sys
from softgen.tuning import cache
from tests.helpers.entries import make_entry

first, count, step = map(int, sys.argv[1:])
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    entry = make_entry(cols=first + number * step, block_size=32 * (1 + (first + number) % 32))
    assert cache.store(entry) is not None
"""


def test_processes_that_store_different_keys_lose_none(tuned: Path) -> None:
    processes = [start(1 + 1000 * number, 25, 1, program=WRITER) for number in range(4)]
    go(processes)
    finish(processes)
    wanted = {1 + 1000 * number + i for number in range(4) for i in range(25)}
    assert {entry.key.problem.cols for entry in cache.entries()} == wanted
    assert len(names(tuned)) == 100


def test_a_key_that_processes_fight_over_is_whole_at_any_time(
    tuned: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.store(ENTRY)
    processes = [start(1000, 50, 0, program=WRITER) for _ in range(3)]
    go(processes)
    reads = 0
    while any(process.poll() is None for process in processes) or reads < 100:
        assert cache.load(ENTRY.key, H200) is not None
        reads += 1
    finish(processes)
    assert caplog.records == []
    assert names(tuned) == [ENTRY.key.file_name]


def test_entries_are_listed_by_file_name() -> None:
    for cols, rows in itertools.product((9, 10, 800), (1, 64)):
        cache.store(make_entry(cols, rows))
    names = [entry.key.file_name for entry in cache.entries()]
    assert len(names) == 6
    assert names == sorted(names)


def test_a_timing_is_the_median_and_the_deciles_of_its_samples() -> None:
    assert Timing.of("a", [2.5]) == Timing("a", 2.5, 2.5, 2.5)
    assert Timing.of("a", [1.0, 5.0, 3.0, 2.0, 4.0]) == Timing("a", 3.0, 1.4, 4.6)
