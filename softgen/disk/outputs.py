"""Paths that a user names to write to: what lies there stays what it is.

A regular file is whole or the old one, with the mode and the owner that it had. What a link names
is written and the link stays. A device or a pipe is written into.
"""

from __future__ import annotations

import itertools
import os
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from softgen.disk.files import write_whole
from softgen.errors import InvalidValueError

STANDARD = (1, 2)  # stdout and stderr


def objection(path: Path) -> str | None:
    """Return why `path` cannot be written, as "is a folder"; None where it may be."""
    if path.is_dir():
        return "is a folder"
    real = Path(os.path.realpath(path))
    linked = path.is_symlink()
    folder = real.parent if linked else path.absolute().parent
    if path.exists() or (folder.is_dir() and not real.is_symlink()):
        return None
    if real.is_symlink():
        return "is a link to itself"
    where = "in a folder that does not exist"
    return f"is a link to {real}, {where}" if linked else f"is {where}"


def write(path: Path, data: bytes) -> None:
    """Write `data` to a path that a user named; an OSError names it.

    A full disk leaves the old file. Raises InvalidValueError for a folder, and where there is none
    for the file.
    """
    if reason := objection(path):
        raise InvalidValueError(f"{path} {reason}; give the path of a file")
    try:
        state = os.stat(path) if path.exists() else None
        if state is None or _is_replaced(state):
            write_whole(Path(os.path.realpath(path)), data, like=state, synced=True)
        else:
            _write_into(path, state, data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def is_replaced(path: Path) -> bool:
    """Whether a second `write` to `path` replaces the first; a device or a pipe would get both."""
    return not path.exists() or _is_replaced(os.stat(path))


def require_apart(named: Mapping[str, Path]) -> None:
    """Raise InvalidValueError if two options name one file, by any spelling or link.

    Args:
        named: the path of each option, by the option.
    """
    for (one, first), (other, second) in itertools.combinations(named.items(), 2):
        if is_replaced(first) and _is_same(first, second):
            raise InvalidValueError(f"{one} and {other} name one file, {first}; give each its own")


def _is_same(first: Path, second: Path) -> bool:
    if first.exists() and second.exists():
        return first.samefile(second)
    return os.path.realpath(first) == os.path.realpath(second)


def _is_replaced(state: os.stat_result) -> bool:
    return stat.S_ISREG(state.st_mode) and _standard(state) is None


def _standard(state: os.stat_result) -> int | None:
    """Return the descriptor of stdout or stderr if it is of the file; None if neither is.

    A file that a shell opened as one of them is not replaced: what is printed later would be lost.
    """
    for handle in STANDARD:
        with suppress(OSError):  # it may be closed
            if os.path.samestat(os.fstat(handle), state):
                return handle
    return None


def _write_into(path: Path, state: os.stat_result, data: bytes) -> None:
    """Write into what is there: a device, a pipe, stdout."""
    standard = _standard(state)
    if standard is None:
        handle = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    else:
        sys.stdout.flush()
        handle = os.dup(standard)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
