"""Files written whole: a reader, or a crash, finds the old bytes or the new ones."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
from pathlib import Path


def read_regular(path: Path) -> bytes:
    """Return what the regular file `path` holds; OSError if it is anything else, a link too.

    Nothing that may lie in its place makes this wait, as a FIFO does with `open`.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with os.fdopen(handle, "rb") as file:
        return file.read()


def write_whole(
    path: Path,
    data: bytes,
    *,
    private: bool = False,
    synced: bool = False,
    like: os.stat_result | None = None,
) -> None:
    """Write `data` to `path` through a temporary file beside it; an OSError names `path`.

    Args:
        path: the file; its folder has to exist.
        data: all of its bytes.
        private: whether only the owner may read it; else the umask decides who may.
        synced: whether it is on the disk before it has its name; a private one always is.
        like: of a file whose mode it has instead, and whose owner where we may give files away.
    """
    try:
        _replace(path, data, private, synced or private, like)
    except OSError as error:
        error.filename = str(path)  # the temporary name, or none, says nothing to the reader
        raise


def unfinished(name: str) -> str | None:
    """Return which file `write_whole` would write as `name` until it is whole; None if none."""
    found = re.fullmatch(r"\.(.+)\.[a-z0-9_]{8}\.tmp", name)
    return found[1] if found else None


def _replace(
    path: Path, data: bytes, private: bool, synced: bool, like: os.stat_result | None
) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        if like is not None:
            with contextlib.suppress(OSError):  # EPERM, or EINVAL of an owner without a number here
                os.chown(temporary, like.st_uid, like.st_gid)
        if not private:  # mkstemp gives 0600
            os.chmod(temporary, stat.S_IMODE(like.st_mode) if like else 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """Return the process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def nearest(folder: Path) -> Path:
    """Return `folder`, or the nearest above it that exists."""
    return next(path for path in (folder, *folder.parents) if os.path.exists(path))


def require_writable(folder: Path) -> None:
    """Raise OSError, saying why, unless `folder` can be written, or made where it is to be.

    A temporary file is made there, without a name where the disk has such, and is gone when this
    returns: permissions say nothing of /proc, nor of a disk that is full.
    """
    existing = nearest(folder)
    if not existing.is_dir():
        raise NotADirectoryError(f"{existing} is not a folder")
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        raise PermissionError(f"{existing} cannot be written") from error
