"""The cache folder on this machine, and which folders in it can be trusted."""

from __future__ import annotations

import os
from pathlib import Path


def directory() -> Path:
    """Return the cache folder, which need not exist.

    It is SOFTGEN_CACHE_DIR, else $XDG_CACHE_HOME/softgen, else ~/.cache/softgen.
    """
    explicit = os.environ.get("SOFTGEN_CACHE_DIR")
    xdg = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = os.path.expanduser(explicit or os.path.join(xdg, "softgen"))
    # expanduser leaves the ~ where a user has no home: that is no folder to make.
    return Path(path) if path.startswith("~") else Path(path).absolute()


def _place(name: str) -> Path:
    folder = directory() / name
    if not folder.is_absolute():
        raise FileNotFoundError("there is no home folder")
    return folder


def made(name: str) -> Path:
    """Return the folder `name` of the cache folder, which only we can write to; make it if needed.

    Raises OSError, saying why, if it cannot be made or others could have written what it holds.
    """
    folder = _place(name)
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    for ours in (folder.parent, folder):
        ours.mkdir(mode=0o700, exist_ok=True)
    _check(folder)
    return folder


def found(name: str) -> Path | None:
    """Return the folder `name` of the cache folder, None if it does not exist.

    Raises OSError, saying why, if others could have written what it holds.
    """
    folder = _place(name)
    if not folder.is_dir():
        return None
    _check(folder)
    return folder


def _check(folder: Path) -> None:
    """Raise PermissionError if others could have put something into `folder`."""
    info = folder.stat()
    if hasattr(os, "getuid") and info.st_uid != os.getuid():
        raise PermissionError("it belongs to another user")
    if info.st_mode & 0o022:
        raise PermissionError("others can write to it")
