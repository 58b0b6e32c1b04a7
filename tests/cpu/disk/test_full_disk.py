"""A disk that is full: calls go on, old files stay whole, and what comes later is kept again.

By a file system of 256 KiB, where one may be mounted in a namespace of its own, and by a limit of
the size of a file, which the system holds in the middle of a write.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from softgen.devices.emulator.folder import program_folder
from softgen.devices.gpu import machine_code
from softgen.disk import outputs, owned
from softgen.problems.arch import arch_named
from softgen.source.drift import check
from softgen.source.emit import write
from softgen.source.render import render
from softgen.source.store import source_of
from softgen.strategies.variants import parse_name
from softgen.tuning import cache
from tests.cpu.source.test_emit import ONLINE, SAFE
from tests.cpu.tuning.test_cache import ENTRY
from tests.helpers.cli_helpers import ROOT
from tests.helpers.entries import H200, make_entry

NVRTC = (13, 0)
FULL = r"No space left|File too large"
LIMIT = 400  # bytes: the marker of a folder is smaller, and all else that softgen writes larger
MOUNT = ("unshare", "--user", "--map-root-user", "--mount")


class Disk:
    """A folder whose disk can be filled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        """Let nothing be written from now on."""

    def empty(self) -> None:
        """Let everything be written again."""


class Small(Disk):
    """A file system that is filled to the last byte."""

    def fill(self) -> None:
        with contextlib.suppress(OSError), (self.folder / "filler").open("wb", 0) as file:
            while True:
                file.write(bytes(4096))

    def empty(self) -> None:
        (self.folder / "filler").unlink()


class Limited(Disk):
    """A process whose files have to be small."""

    def fill(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, resource.RLIM_INFINITY))

    def empty(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)


DISKS = {kind.__name__: kind for kind in (Small, Limited)}


class Heard(logging.Handler):
    """Collects what softgen says."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []
        logging.getLogger("softgen").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if each.name != owned.MARKER)


def choices(disk: Disk) -> None:
    """Tuned choices are kept in memory, with one warning, and the old file stays whole."""
    heard, path = Heard(), cache.store(ENTRY)
    assert path is not None
    old, other = path.read_bytes(), make_entry(cols=7)
    disk.fill()
    for entry in (make_entry(block_size=512), other):
        assert cache.store(entry) is None
        assert cache.load(entry.key, H200) == entry
    assert path.read_bytes() == old
    assert names(path.parent) == [path.name]
    (message,) = heard.messages
    assert "cannot be written" in message
    assert "going on in memory" in message
    disk.empty()
    assert cache.store(other) is not None
    assert len(cache.entries()) == 2


def texts_and_code(disk: Disk) -> None:
    """Texts are emitted and machine code is compiled each time; neither is kept in part."""
    variant, arch = parse_name("softmax_f32_1000_safe_b256"), arch_named("sm_90")
    folder = Path(os.environ["SOFTGEN_CACHE_DIR"])
    disk.fill()
    for _ in range(2):
        source = source_of(variant)
        assert source == render(variant)
        machine_code.keep(source, arch, NVRTC, bytes(5000))
        assert machine_code.kept(source, arch, NVRTC) is None
    for kind in ("texts", "code"):
        assert not (folder / kind).exists() or names(folder / kind) == []
    disk.empty()
    assert source_of(variant) == render(variant)
    machine_code.keep(source, arch, NVRTC, b"code")
    assert machine_code.kept(source, arch, NVRTC) == b"code"
    assert len(names(folder / "texts")) == len(names(folder / "code")) == 1


def files_of_users(disk: Disk) -> None:
    """What is written to a path that a user named, or emitted, is an error; old files stay."""
    table, kernels = disk.folder / "table.csv", disk.folder / "kernels"
    outputs.write(table, b"old")
    write(kernels, [SAFE])
    disk.fill()
    with pytest.raises(OSError, match=FULL) as caught:
        outputs.write(table, bytes(5000))
    assert caught.value.filename == str(table)
    with pytest.raises(OSError, match=FULL):
        write(kernels, [SAFE, ONLINE])
    assert table.read_bytes() == b"old"
    assert (kernels / f"{SAFE.name}.cu").read_text() == SAFE.text
    assert not (kernels / f"{ONLINE.name}.cu").exists()
    disk.empty()
    write(kernels, [SAFE, ONLINE])
    assert check(kernels, [SAFE, ONLINE]) == []
    assert names(kernels) == sorted(["manifest.json", f"{SAFE.name}.cu", f"{ONLINE.name}.cu"])


def programs(disk: Disk) -> None:
    """The emulator's programs are built in a temporary folder."""
    if isinstance(disk, Small):
        folder = program_folder()
        assert disk.folder not in folder.parents
        assert owned.is_marked(folder)


BODIES: dict[str, Callable[[Disk], None]] = {
    each.__name__: each for each in (choices, texts_and_code, files_of_users, programs)
}


def run(kind: str, folder: str) -> None:
    """Try all of it; `test_what_is_written_on_a_full_disk` starts this in a process of its own."""
    for name, body in BODIES.items():
        place = Path(folder) / name
        (place / "cache").mkdir(parents=True, mode=0o700)
        os.environ["SOFTGEN_CACHE_DIR"] = str(place / "cache")
        body(DISKS[kind](place))
        print(name, flush=True)


def commands(kind: str, folder: Path) -> list[str]:
    """Return the command line that runs it; a file system is mounted for it and gone with it."""
    program = "import sys; from tests.cpu.disk.test_full_disk import run; run(*sys.argv[1:])"
    command = [sys.executable, "-W", "error", "-c", program, kind, str(folder)]
    if kind != "Small":
        return command
    mount = 'mount -t tmpfs -o size=256k,mode=700 none "$1" && shift && exec "$@"'
    return [*MOUNT, "sh", "-c", mount, "sh", str(folder), *command]


@pytest.mark.parametrize("kind", DISKS)
def test_what_is_written_on_a_full_disk(kind: str, tmp_path: Path) -> None:
    if kind == "Small":
        mount = ["sh", "-c", 'mount -t tmpfs none "$1"', "sh", str(tmp_path)]
        if (
            shutil.which("unshare") is None
            or subprocess.run([*MOUNT, *mount], check=False).returncode
        ):
            pytest.skip("no file system may be mounted here")
    done = subprocess.run(
        commands(kind, tmp_path), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [*BODIES]


def test_a_program_is_built_where_there_is_room(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert program_folder() == own_cache / "emulator"
    usage = shutil.disk_usage(own_cache)._replace(free=2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert program_folder() != own_cache / "emulator"
