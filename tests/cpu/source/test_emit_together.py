"""Emits into one folder at the same time, and one that is killed: no file is lost to the next."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from softgen.errors import InvalidValueError
from softgen.source import manifest
from softgen.source.emit import write
from softgen.source.manifest import MANIFEST, ONE_KERNEL
from softgen.source.render import Source
from tests.cpu.source.test_emit import ONLINE, ONLINE_FILE, SAFE, SAFE_FILE, files
from tests.helpers.cli_helpers import ROOT

# Between the reading of the manifest and its writing, others have all the time that they need.
SLOW = """
import sys, time
from softgen.source import manifest

read = manifest.read

def slowly(folder):
    found = read(folder)
    time.sleep(0.1)
    return found

manifest.read = slowly
from softgen.cli import app
app(prog_name="softgen")
"""

# Dies at a rename, as by kill -9: nothing that Python does at an end is done.
DYING = """
import dataclasses, os, signal, sys
from pathlib import Path
from softgen.source.emit import write
from tests.cpu.source.test_emit import ONLINE, SAFE

left = int(sys.argv[2])
rename = os.replace

def dying(source, target):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target)

os.replace = dying
write(Path(sys.argv[1]), [dataclasses.replace(each, text=each.text + "// 2\\n")
                          for each in (ONLINE, SAFE)])
"""


def version(number: int) -> list[Source]:
    """Return two sources as templates of that version would give them."""
    each = (ONLINE, SAFE)
    return [dataclasses.replace(one, text=f"{one.text}// {number}\n") for one in each]


def listed(folder: Path) -> list[str]:
    return sorted(json.loads((folder / MANIFEST).read_text())["files"])


def test_eight_at_once_are_all_listed(tmp_path: Path) -> None:
    """As of `make -j`: a manifest that each has read before the others wrote lost their entries."""
    folder = tmp_path / "kernels"
    command = [sys.executable, "-W", "error", "-c", SLOW, "emit", "--variant", "safe"]
    processes = [
        subprocess.Popen(
            [*command, "--cols", str(cols), "--out", str(folder)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for cols in range(8, 16)
    ]
    for process in processes:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    texts = sorted(path.name for path in folder.glob("*.cu"))
    assert len(texts) == 8
    assert listed(folder) == texts
    assert files(folder) == sorted([MANIFEST, *texts])


def run_dying(folder: Path, renames: int) -> None:
    """Emit version 2 into `folder` and be killed behind so many renames."""
    done = subprocess.run(
        [sys.executable, "-c", DYING, str(folder), str(renames)], cwd=ROOT, capture_output=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("before", [True, False], ids=["changed", "new"])
@pytest.mark.parametrize("renames", [0, 1, 2])
def test_what_a_killed_one_left_is_mended_by_the_next(
    renames: int, before: bool, tmp_path: Path
) -> None:
    """Its files are softgen's still where the templates have changed since, and its .tmp goes."""
    if before:
        write(tmp_path, version(1))
    run_dying(tmp_path, renames)
    assert [name for name in files(tmp_path) if name.endswith(".tmp")]
    write(tmp_path, version(3))
    assert files(tmp_path) == [SAFE_FILE, MANIFEST, ONLINE_FILE]
    assert listed(tmp_path) == [SAFE_FILE, ONLINE_FILE]
    for source in version(3):
        assert (tmp_path / f"{source.name}.cu").read_text() == source.text
    whole = (tmp_path / MANIFEST).read_bytes()
    write(tmp_path / "anew", version(3))
    assert (tmp_path / "anew" / MANIFEST).read_bytes() == whole


def test_what_a_killed_one_left_is_not_taken_for_an_edit_of_a_user(tmp_path: Path) -> None:
    write(tmp_path, version(1))
    run_dying(tmp_path, 2)
    (tmp_path / SAFE_FILE).write_text("// mine\n")
    with pytest.raises(InvalidValueError, match=f"{SAFE_FILE} was edited, or is not softgen's"):
        write(tmp_path, version(3))
    assert (tmp_path / SAFE_FILE).read_text() == "// mine\n"


def test_a_killed_run_of_a_set_deletes_its_stale_files_at_the_next(tmp_path: Path) -> None:
    write(tmp_path, version(1))
    run_dying(tmp_path, 2)
    report = write(tmp_path, version(3)[:1])
    assert (report.removed, report.edited) == ((SAFE_FILE,), ())


def test_nobody_elses_unfinished_file_goes(tmp_path: Path) -> None:
    """A name of softgen's form proves nothing: what it holds begins as softgen's text does."""
    mine = {
        f".{SAFE_FILE}.abcdefgh.tmp": "my notes\n",
        ".notes.cu.abcdefgh.tmp": "// notes\n",
        f".{SAFE_FILE}.abc.tmp": SAFE.text,
        f"{SAFE_FILE}.abcdefgh.tmp": SAFE.text,
        ".manifest.json.abcdefgh.tmp": "{}",
        ".manifest.json.swp": '{\n  "generator": "softgen"',
    }
    for name, text in mine.items():
        (tmp_path / name).write_text(text)
    (tmp_path / f".{ONLINE_FILE}.abcdefgh.tmp").symlink_to(tmp_path / "target")
    (tmp_path / "target").write_text(ONLINE.text)
    (tmp_path / f".{ONLINE_FILE}.bcdefghi.tmp").mkdir()
    before = files(tmp_path)
    for name, text in ((SAFE_FILE, SAFE.text[:50]), (MANIFEST, '{\n  "gen'), (SAFE_FILE, "")):
        (tmp_path / f".{name}.{len(text):08}.tmp").write_text(text)
    write(tmp_path, [SAFE, ONLINE])
    assert files(tmp_path) == sorted([*before, SAFE_FILE, ONLINE_FILE, MANIFEST])
    for name, text in mine.items():
        assert (tmp_path / name).read_text() == text


def test_a_file_system_without_locks_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing then tells an unfinished file of a dead process from that of one at work."""

    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    (tmp_path / f".{SAFE_FILE}.abcdefgh.tmp").write_text("")
    write(tmp_path, [SAFE])
    (record,) = caplog.records
    assert f"{tmp_path} cannot be locked (No locks available)" in record.getMessage()
    assert "emit into it one at a time" in record.getMessage()
    assert files(tmp_path) == [f".{SAFE_FILE}.abcdefgh.tmp", SAFE_FILE, MANIFEST]


def test_where_only_files_are_locked_there_is_one_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on NFS, which locks for writing only what is open for it."""
    lock, read = fcntl.flock, manifest.read

    def of_files(handle: int, operation: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        lock(handle, operation)

    meeting = threading.Barrier(2)

    def together(folder: Path) -> manifest.Entries:
        found = read(folder)
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(0.3)  # the other is kept out, so that nobody comes
        return found

    monkeypatch.setattr(fcntl, "flock", of_files)
    monkeypatch.setattr(manifest, "read", together)
    threads = [
        threading.Thread(target=write, args=(tmp_path, [source], ONE_KERNEL))
        for source in (SAFE, ONLINE)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert listed(tmp_path) == [SAFE_FILE, ONLINE_FILE]
    assert caplog.records == []
