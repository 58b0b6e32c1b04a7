"""What tests keep from run to run is what they would build."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from softgen.devices.emulator import build, program
from softgen.devices.gpu.compile import compile_offline
from softgen.problems.arch import arch_named
from tests.helpers import kept_builds
from tests.helpers.emulator_helpers import broken, run_rows, source_of

SOURCE, ARCH = source_of("safe", 40), arch_named("sm_90")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a store that has the emulator's own side alone, which takes 5 seconds to build."""
    kept_builds.put_host(tmp_path / "cache")
    (tmp_path / "cache").rename(tmp_path / "kept")
    monkeypatch.setenv("SOFTGEN_BUILD_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def test_a_program_is_built_once(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build([SOURCE]).path
    (kept,) = (store / "emulator").glob("unit-*")
    assert kept.samefile(first)
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", str(store.parent / "other"))
    monkeypatch.setattr("softgen.devices.emulator.compiler.Compiler.build", None)
    again = build([SOURCE]).path
    assert again.samefile(kept)
    assert again.parent != first.parent
    assert run_rows(SOURCE, 2).shape == (2, 40)


def test_a_damaged_program_is_built_anew(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build([SOURCE])
    (kept,) = (store / "emulator").glob("unit-*")
    kept.unlink()
    kept.write_bytes(b"\x7fELF")
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", str(store.parent / "other"))
    assert build([SOURCE]).path.stat().st_size > 1000
    assert run_rows(SOURCE, 2).shape == (2, 40)


def test_a_damaged_program_of_a_test_is_replaced(store: Path) -> None:
    path = build([SOURCE]).path
    path.unlink()  # in the store it stays
    path.write_bytes(b"\x7fELF")
    assert build([SOURCE]).path == path
    assert run_rows(SOURCE, 2).shape == (2, 40)


def test_what_processes_of_a_test_built_is_kept_for_it(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (store.parent / name for name in ("first", "second", "third"))
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", str(first))
    monkeypatch.setattr(program, "_compile", getattr(program._compile, "args")[0])  # noqa: B009
    built = build([SOURCE]).path
    kept_builds.keep_programs_of(first, "a test", since=0)
    kept_builds.put_programs(second, "a test")
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", str(second))
    monkeypatch.setattr("softgen.devices.emulator.compiler.Compiler.build", None)
    assert build([SOURCE]).path.samefile(built)
    kept_builds.keep_programs_of(second, "a test", since=time.time() + 9)  # not used any more
    kept_builds.put_programs(third, "a test")
    assert not [*third.rglob("unit-*")]


def counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows with each compile."""
    found: list[str] = []

    def compiled(source: Any, arch: Any) -> Any:
        found.append(source.name)
        return compile_offline(source, arch)

    monkeypatch.setattr(kept_builds, "compile_offline", compiled)
    return found


def test_machine_code_is_kept_by_text_and_architecture(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = counting(monkeypatch)
    made = kept_builds.machine_code_of(SOURCE, ARCH)
    assert kept_builds.machine_code_of(SOURCE, ARCH) == made
    (kept,) = (store / "code").iterdir()
    assert compiled == [SOURCE.name]
    kept_builds.machine_code_of(SOURCE, arch_named("sm_80"))
    kept_builds.machine_code_of(broken(SOURCE, "row_y[col]", "row_y[0 + col]"), ARCH)
    assert len(compiled) == 3
    whole = kept.read_text()
    for damaged in ("{}", "", whole[:-9], whole.replace('"registers"', '"register"')):
        kept.write_text(damaged)
        again = kept_builds.machine_code_of(SOURCE, ARCH)
        assert again._replace(log="") == made._replace(log="")  # the log has the time it took
    assert len(compiled) == 7


def test_what_was_not_used_for_longest_goes(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build([SOURCE])
    kept_builds.machine_code_of(SOURCE, ARCH)
    monkeypatch.setattr(kept_builds, "MOST_FILES", dict.fromkeys(kept_builds.MOST_FILES, 0))
    monkeypatch.setattr(kept_builds, "MAX_BYTES", 0)
    kept_builds.keep_small()
    assert not [path for path in store.rglob("*") if path.is_file() and path.suffix != ".TAG"]
