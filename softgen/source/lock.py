"""One `softgen emit` at a time into a folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from softgen import logs

LOCK = ".manifest.json.lock"


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[bool]:
    """Wait until no other process emits into `folder`, and keep others out; yield whether they are.

    The system lets go of the lock when a process ends, however it ends: none is ever left over.
    Where there are no locks a warning says so, and the emit goes on.
    """
    handle = None
    try:
        handle = _locked(folder)
    except OSError as error:
        logs.warning(
            "%s cannot be locked (%s); emit into it one at a time, or its %s may lose entries",
            *(folder, error.strerror or error, "manifest.json"),
        )
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)


def _locked(folder: Path) -> int:
    """Return what holds the lock until it is closed: the folder itself, so that nothing is left."""
    try:
        return _lock(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
    # NFS locks for writing only what is open for writing, which no folder is. The file stays: who
    # deletes it may delete what another waits for.
    return _lock(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)


def _lock(path: Path, flags: int) -> int:
    handle = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except BaseException:
        os.close(handle)
        raise
    return handle
