"""The cache folder on this machine, and which folders in it can be trusted.

What is read from it is compiled and run, so a folder counts only if nobody but this user and root
could have put something there: SECURITY.md.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from softgen.disk import owned
from softgen.disk.files import nearest, require_writable

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def directory() -> Path:
    """Return the cache folder, which need not exist.

    It is SOFTGEN_CACHE_DIR, else $XDG_CACHE_HOME/softgen, else ~/.cache/softgen. It is relative
    only where there is no such place, as without a home or below a folder that was deleted.
    """
    path = _named()
    # Behind a link `..` is not the folder before it: what the system makes of both is meant.
    return Path(os.path.realpath(path)) if path.is_absolute() and ".." in path.parts else path


def _named() -> Path:
    """Return the cache folder by the name that it was given, links, `..` and all."""
    explicit = os.environ.get("SOFTGEN_CACHE_DIR")
    xdg = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = explicit or os.path.join(xdg, "softgen")
    if os.environ.get("HOME") != "":  # else ~ would be /
        path = os.path.expanduser(path)
    # expanduser leaves the ~ where a user has no home: that is no folder to make.
    if path.startswith("~"):
        return Path(path)
    try:
        return Path(path).absolute()
    except OSError:  # the current folder was deleted
        return Path(path)


def _place(kind: str) -> Path:
    folder = directory() / kind
    if not folder.is_absolute():
        raise FileNotFoundError("there is no home folder, or the current folder was deleted")
    return folder


def made(kind: str) -> Path:
    """Return the folder `kind` of the cache folder, which only we can write to; make it if needed.

    One that is new, or an earlier version's, is marked as softgen's own. Raises OSError, saying
    why, if it cannot be made or others could have written what it holds.
    """
    folder = _place(kind)
    _check_way(folder)
    # Not by mkdir(parents=True): it would make those on the way as the umask says, as wide as 775.
    for path in (*reversed(folder.parents), folder):
        if not path.exists():
            path.mkdir(mode=0o700, exist_ok=True)
    _check(folder)
    owned.mark(kind, folder)
    return folder


def found(kind: str) -> Path | None:
    """Return the folder `kind` of the cache folder, None if it does not exist.

    Raises OSError, saying why, if others could have written what it holds.
    """
    folder = _place(kind)
    try:
        mode = folder.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISDIR(mode) and not stat.S_ISLNK(mode):
        return None
    _check(folder)
    return folder


def require_usable() -> None:
    """Raise OSError, saying which folder and why, unless every one of the cache can be written."""
    for kind in owned.KINDS:
        folder = _place(kind)
        try:
            _check_way(folder)
            found(kind)
        except OSError as error:
            raise PermissionError(f"{folder} is not used: {error}") from error
        require_writable(folder)


def _check_way(folder: Path) -> None:
    """Raise PermissionError if others could replace what would be made on the way to `folder`."""
    existing = nearest(folder)
    if existing == folder:
        return  # nothing is made, and it is judged itself
    _check_links(_named())
    real = Path(os.path.realpath(existing))
    info = real.lstat()
    if not stat.S_ISDIR(info.st_mode):
        return  # making a folder there says so
    if info.st_uid not in (os.getuid(), 0):
        raise PermissionError(f"{real} belongs to another user")
    if info.st_mode & _OTHERS_WRITE:
        if not info.st_mode & stat.S_ISVTX:
            raise PermissionError(f"others can write to {real}")
        _check_place(real)


def _check(folder: Path) -> None:
    """Raise PermissionError if others could have put something into `folder`, or it elsewhere."""
    info = folder.lstat()
    if stat.S_ISLNK(info.st_mode):
        raise PermissionError("it is a symbolic link")
    if info.st_uid != os.getuid():
        raise PermissionError("it belongs to another user")
    if info.st_mode & _OTHERS_WRITE:
        raise PermissionError("others can write to it")
    _check_links(_named())
    _check_place(Path(os.path.realpath(folder)))


def _check_links(path: Path) -> None:
    """Raise PermissionError if others could change a symbolic link on the way to `path`."""
    for part in (*reversed(path.parents), path):
        if part.is_symlink():
            folder = Path(os.path.realpath(part.parent))
            _check_place(folder / part.name)
            _check_links(folder / os.readlink(part))


def _check_place(path: Path) -> None:
    """Raise PermissionError if others could put something else in the place of `path`.

    Whoever can write to a folder can rename what it holds, but for a sticky one as /tmp, where only
    the owner can. A folder that only we or root can write to ends the look.

    Args:
        path: absolute, and without a link on the way to it.
    """
    ours = (os.getuid(), 0)
    while path != path.parent:
        info = path.parent.lstat()
        if info.st_uid not in ours:
            raise PermissionError(f"{path.parent} belongs to another user")
        if not info.st_mode & _OTHERS_WRITE:
            return
        if not info.st_mode & stat.S_ISVTX or path.lstat().st_uid not in ours:
            raise PermissionError(f"others can write to {path.parent}")
        path = path.parent
