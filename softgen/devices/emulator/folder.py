"""Where built programs are kept, so that the same kernel is compiled once.

A file has the digest of its bytes in its name, and is moved there when it is finished: it is whole,
or it shows that it is not, as after a full disk or a power cut.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from softgen.disk import folders, owned
from softgen.disk.files import read_regular

KIND = "emulator"

# A unit of one kernel takes 0.1 MB, one of fifty kernels 0.5 MB.
MAX_BYTES = 256 * 2**20

# Where a disk has less, programs are built elsewhere: a build takes a few MB, and a compiler that
# finds no room says so in thousands of lines.
LEAST_FREE_BYTES = 16 * 2**20


def program_folder() -> Path:
    """Return the folder: `emulator` in softgen's cache folder, else a temporary one.

    It is temporary too where the disk is full.
    """
    # Its programs will be run, so nobody else may be able to put one there; and it is kept small,
    # so it has to be softgen's own.
    with contextlib.suppress(OSError):
        folder = folders.made(KIND)
        room = shutil.disk_usage(folder).free >= LEAST_FREE_BYTES
        if room and owned.mark(KIND, folder) and os.access(folder, os.W_OK):
            return folder
    return _temporary(os.getpid())


@functools.cache
def _temporary(process: int) -> Path:
    """Return a folder that lives as long as the process: one that is forked has its own."""
    made = Path(tempfile.mkdtemp(prefix="softgen-"))
    atexit.register(_delete, made, process)
    owned.mark(KIND, made)
    return made


def _delete(folder: Path, process: int) -> None:
    if process == os.getpid():  # what was forked ends by this too, and may end sooner
        shutil.rmtree(folder, ignore_errors=True)


def work_folder(folder: Path) -> tempfile.TemporaryDirectory[str]:
    """Return a new folder to build in; if this process is killed, a later one deletes it."""
    return tempfile.TemporaryDirectory(dir=folder, prefix=owned.WORK_PREFIX)


def kept(folder: Path, stem: str, suffix: str = "") -> Path | None:
    """Return the file that was kept as `stem`; None if there is none that is whole."""
    # Processes that build at once may leave one each: the compiler's output names its folder.
    for path in sorted(folder.glob(f"{stem}-*{suffix}")):
        try:
            if path.name == _name(stem, read_regular(path), suffix):
                os.utime(path)
                return path
        except OSError:  # another process deleted it, or it is no file
            continue
    return None


def keep(built: Path, folder: Path, stem: str, suffix: str = "") -> Path:
    """Move the file `built`, of the same file system, into `folder`; return where it is now."""
    path = folder / _name(stem, built.read_bytes(), suffix)
    os.replace(built, path)
    return path


def keep_small(folder: Path, limit: int = MAX_BYTES) -> None:
    """Delete the programs that were not used for longest until `folder` is within `limit` bytes."""
    owned.delete_stale(KIND, folder)
    entries = []
    for path in owned.files(KIND, folder):
        try:
            state = path.lstat()
        except FileNotFoundError:  # another process was quicker
            continue
        entries.append((state.st_mtime, state.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries, key=lambda entry: entry[0]):
        if total <= limit:
            return
        owned.delete(path)
        total -= size


def _name(stem: str, data: bytes, suffix: str) -> str:
    return f"{stem}-{hashlib.sha256(data).hexdigest()[:32]}{suffix}"
