"""A cache folder that another version of softgen left: used where it fits, and made again else."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from softgen.devices.emulator import build
from softgen.devices.gpu import machine_code
from softgen.disk import folders, owned
from softgen.problems.arch import arch_named
from softgen.source import store
from softgen.source.render import render
from softgen.strategies.variants import parse_name
from softgen.tuning import cache
from softgen.tuning.entry import SCHEMA
from tests.cpu.devices.test_emulator_folder import SOURCE, computes
from tests.cpu.tuning.test_cache import ENTRY, GOOD
from tests.helpers.entries import H200
from tests.helpers.kept_builds import put_host

VARIANT = parse_name("softmax_f32_1000_safe_b256")
SM_90 = arch_named("sm_90")
OLD_STATE = "f" * 16
# By kind, a file of a form that this version does not give.
UNKNOWN = {
    "tuned": "index.sqlite",
    "texts": "softmax_f32_1000_safe_b256.zst",
    "code": "softmax_f32_1000.fatbin",
    "emulator": "pool-0123",
    "sources": "softmax.cuh",
}


@pytest.fixture(params=["earlier", "later"])
def left(request: pytest.FixtureRequest, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache folder in which an earlier or a later version was at work."""
    cache._memory.clear()
    cache._warn_once.cache_clear()
    later = request.param == "later"
    with monkeypatch.context() as patch:
        patch.setattr(store, "state", lambda: OLD_STATE)
        store.source_of(VARIANT)
    machine_code.keep(render(VARIANT), SM_90, (14, 0) if later else (11, 0), b"of another NVRTC")
    schema = SCHEMA + 1 if later else SCHEMA - 1
    (folders.made("tuned") / ENTRY.key.file_name).write_text(json.dumps({**GOOD, "schema": schema}))
    for stem in ("unit", "host"):
        suffix = ".o" if stem == "host" else ""
        name = f"{stem}-{'0' * 32}-{'0' * 32}{suffix}"
        (folders.made("emulator") / name).write_bytes(b"\x7fELF of another version")
    folders.made("sources")
    if later:
        for kind, name in UNKNOWN.items():
            (own_cache / kind / name).write_bytes(b"what this version does not know")
        (own_cache / "plans").mkdir()
        (own_cache / "plans" / "plan.bin").write_bytes(b"likewise")
    else:  # which marked nothing
        for kind in owned.KINDS:
            (own_cache / kind / owned.MARKER).unlink()
    put_host(own_cache)
    return own_cache


def test_nothing_of_it_is_taken_for_todays(left: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert cache.load(ENTRY.key, H200) is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert f"this softgen reads {SCHEMA}" in caplog.text
    assert machine_code.kept(render(VARIANT), SM_90, (13, 0)) is None
    assert store.source_of(VARIANT) == render(VARIANT)
    assert computes(build([SOURCE]))


def test_what_is_made_anew_is_kept(left: Path) -> None:
    assert cache.store(ENTRY) is not None
    assert cache.load(ENTRY.key, H200) == ENTRY
    machine_code.keep(render(VARIANT), SM_90, (13, 0), b"todays")
    assert machine_code.kept(render(VARIANT), SM_90, (13, 0)) == b"todays"
    store.source_of(VARIANT)
    assert (left / "texts" / f"{VARIANT.name}-{store.state()}.txt").exists()


def test_clearing_it_leaves_what_this_version_does_not_know(left: Path) -> None:
    unknown = [left / "plans" / "plan.bin", *(left / kind / n for kind, n in UNKNOWN.items())]
    before = {path: path.read_bytes() for path in unknown if path.exists()}
    cleared = cache.clear()
    assert cleared.deleted["tuned"] == cleared.deleted["texts"] == cleared.deleted["code"] == 1
    assert {path: path.read_bytes() for path in before} == before
    for kind in owned.KINDS:
        there = {path.name for path in (left / kind).iterdir()} - {owned.MARKER}
        assert there <= {UNKNOWN[kind]}


def test_two_versions_in_turn_lose_no_choice(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of the other one go, which costs each the time to emit them again."""
    cache.store(ENTRY)
    for _ in range(2):
        for state in (OLD_STATE, "e" * 16):
            monkeypatch.setattr(store, "state", lambda state=state: state)
            assert store.source_of(VARIANT) == render(VARIANT)
            (text,) = (own_cache / "texts").glob("*.txt")
            assert text.name == f"{VARIANT.name}-{state}.txt"
            assert cache.load(ENTRY.key, H200) == ENTRY
    shutil.rmtree(own_cache / "texts")
    assert cache.load(ENTRY.key, H200) == ENTRY
