"""Built programs on disk: whole or not there, and nothing but softgen's own is deleted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from softgen.devices.emulator import build
from softgen.devices.emulator.compiler import Compiler
from softgen.devices.emulator.folder import MAX_BYTES, keep_small, program_folder
from softgen.devices.emulator.program import Program
from softgen.disk import owned
from softgen.source.render import Source
from softgen.tuning import cache
from tests.helpers.emulator_helpers import input_of, source_of
from tests.helpers.kept_builds import put_host

ROOT = Path(__file__).parents[3]
SOURCE = source_of("safe", 8)
OLD = "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache folder in which the program of SOURCE was built."""
    folder = tmp_path_factory.mktemp("built")
    put_host(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTGEN_CACHE_DIR", str(folder))
        build([SOURCE])
    return folder


@pytest.fixture
def folder(built: Path, own_cache: Path) -> Path:
    """Return this test's own copy of it."""
    shutil.copytree(built / "emulator", own_cache / "emulator")
    return own_cache / "emulator"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that every compiled unit is added to from now on."""
    from softgen.devices.emulator import program

    found = []
    real = program._compile

    def note(compiler: Compiler, text: str, place: Path, stem: str) -> Path:
        found.append(stem)
        return real(compiler, text, place, stem)

    monkeypatch.setattr(program, "_compile", note)
    return found


def computes(program: Program, source: Source = SOURCE) -> bool:
    x = input_of(source, 2)
    wanted = np.exp(x - x.max(axis=1, keepdims=True))
    wanted /= wanted.sum(axis=1, keepdims=True)
    return bool(np.allclose(program.run(source, x), wanted))


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def put(folder: Path, name: str, data: bytes = b"old", age: float = 0) -> Path:
    path = folder / name
    path.write_bytes(data)
    os.utime(path, (time.time() - age,) * 2)
    return path


def leave(folder: Path, name: str, age: float) -> Path:
    """Leave a folder as a compile does that is killed."""
    path = folder / name
    path.mkdir()
    (path / "unit.cpp").write_text("int main() {}")
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_a_whole_program_is_not_built_again(folder: Path, compiled: list[str]) -> None:
    assert computes(build([SOURCE]))
    assert compiled == []


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def change(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def become_a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("damage", [truncate, empty, change, become_a_fifo])
def test_a_damaged_program_is_built_again(
    damage: Callable[[Path], None], folder: Path, compiled: list[str]
) -> None:
    path = only(folder, "unit-*")
    damage(path)
    program = build([SOURCE])
    assert len(compiled) == 1
    assert computes(program)
    build([SOURCE])
    assert len(compiled) == 1


def test_a_damaged_object_is_built_again(folder: Path) -> None:
    truncate(only(folder, "host-*.o"))
    other = source_of("safe", 16)
    assert computes(build([other]), other)


@pytest.mark.parametrize("name", ["tmpabcd_123", "build-abcd_123"])
def test_what_a_killed_compile_left_goes_after_an_hour(name: str, folder: Path) -> None:
    old, young = leave(folder, name, 3700), leave(folder, f"{name[:-3]}456", 60)
    program = only(folder, "unit-*")
    keep_small(folder)
    assert not old.exists()
    assert young.exists()
    keep_small(folder, limit=0)  # as when the folder is full: everything but that
    assert young.exists()
    assert not program.exists()


def test_the_oldest_programs_go_first_and_nothing_of_others(folder: Path) -> None:
    mine = put(folder, "notes.txt", b"x" * 3000, age=9999)
    strange = put(folder, "unit-tests", b"x" * 3000, age=9999)
    shutil.copytree(folder.parent / "emulator", folder / "sub")
    older = put(folder, f"unit-{OLD}", b"x" * 1000, age=2000)
    old = put(folder, f"host-{OLD}.o", b"x" * 1000, age=1000)
    total = sum(path.stat().st_size for path in owned.files("emulator", folder))
    keep_small(folder, limit=total - 1)
    assert not older.exists()
    assert old.exists()
    keep_small(folder, limit=0)
    assert not old.exists()
    assert mine.exists()
    assert strange.exists()
    assert (folder / "sub").is_dir()
    assert MAX_BYTES > 2**20


def test_programs_are_not_kept_among_files_of_others(own_cache: Path) -> None:
    folder = own_cache / "emulator"
    folder.mkdir(mode=0o700)
    mine = put(folder, "game.rom", age=9999)
    assert program_folder() != folder
    assert owned.mark("emulator", program_folder())  # it is kept small too
    keep_small(folder, limit=0)
    assert mine.exists()


def test_clear_deletes_the_programs_and_what_killed_compiles_left(
    folder: Path, built: Path
) -> None:
    leave(folder, "build-abcd_123", 3700)
    mine = put(folder, "notes.txt")
    assert cache.clear().deleted["emulator"] == 2
    assert sorted(folder.iterdir()) == sorted([mine, folder / owned.MARKER])
    shutil.copy2(only(built / "emulator", "host-*"), folder)  # which takes seconds to build
    assert computes(build([SOURCE]))


@pytest.mark.usefixtures("host_built")
def test_a_killed_compile_stops_no_later_one(own_cache: Path, tmp_path: Path) -> None:
    """A process that is killed in the middle, by a compiler that kills its parent."""
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && exec c++ --version\nkill -9 $PPID\n')
    compiler.chmod(0o700)
    program = (
        "from softgen.devices.emulator import build\n"
        "from tests.cpu.devices.test_emulator_folder import SOURCE\n"
        "build([SOURCE])\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "CXX": str(compiler)},
        capture_output=True,
    )
    assert killed.returncode == -9
    folder = own_cache / "emulator"
    (left,) = (path for path in folder.iterdir() if path.is_dir())
    os.utime(left, (0, 0))
    assert computes(build([SOURCE]))
    assert not left.exists()
