"""What softgen made in its cache folder: all that it ever deletes there.

A folder is softgen's if it holds softgen's marker, and a file in it if its name is of a form that
softgen gives. A source is opened by people, so it has to be as softgen wrote it as well. A cache
folder may be anybody's: with SOFTGEN_CACHE_DIR on a folder of one's own, a `texts/` that was there
before is used and nothing in it is deleted.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from pathlib import Path

from softgen.disk.files import read_regular, write_whole

# The first line is what backup tools look for (https://bford.info/cachedir/).
MARKER = "CACHEDIR.TAG"
_SIGN = b"# softgen made this folder and deletes what it makes in it.\n"
_MARK = b"Signature: 8a477f597d28d172789f06886806bc55\n" + _SIGN

# Files are written in milliseconds and programs built in a minute at most: a temporary one this old
# belongs to a process that was killed.
STALE_SECONDS = 3600

# A function, its types, columns: whatever functions there are, those of other versions too.
_TYPE = "(?:f16|bf16|f32|f64)"
_RESULT = "(?:f16|bf16|f32|f64|e4m3|e5m2)"
_VARIANT = rf"[a-z]+(?:_[a-z][a-z0-9]*)*_{_TYPE}(?:_to_{_RESULT})?_\d+[a-z0-9_]*"
_FORMS = {
    "tuned": rf"{_VARIANT}_rows\d+_[0-9a-f]{{12}}\.json",
    "texts": rf"{_VARIANT}-[0-9a-f]{{16}}\.txt",
    "code": rf"{_VARIANT}-sm_\d+\.cubin",
    # Without the second digest, and in folders tmp*, as earlier versions kept programs.
    "emulator": r"unit-[0-9a-f]{32}(?:-[0-9a-f]{32})?|host-[0-9a-f]{32}(?:-[0-9a-f]{32})?\.o",
    "sources": rf"{_VARIANT}\.cu",
}
KINDS = tuple(_FORMS)
WORK_PREFIX = "build-"
_WORK = rf"(?:{WORK_PREFIX}|tmp)[a-z0-9_]{{8}}"
_IN_WORK = r"(?:unit|host)[-.].*|unit"

# How files begin that earlier versions left in folders that they did not mark. Nothing tells the
# sources of theirs from what a user emitted there.
_STARTS = {
    "tuned": rb'\{\s*"schema": \d+,',
    "texts": rb"[0-9a-f]{64}\n",
    "code": rb"[0-9a-f]{64}\n",
    "emulator": rb"\x7fELF",
}
# The last line of a source that is kept.
_SEAL = b"// Kept by softgen run; softgen cache clear deletes it unless it was edited. sha256 "


def mark(kind: str, folder: Path) -> bool:
    """Mark `folder` as softgen's if it is empty, or an earlier version's; return whether it is.

    Earlier versions wrote no marker: theirs is known by holding nothing but softgen's names, and in
    each file what softgen writes. Raises OSError if it can be neither read nor marked.
    """
    if is_marked(folder):
        return True
    names = os.listdir(folder)
    if MARKER in names:  # another program's, or another process's since we looked
        return is_marked(folder)
    if not all(_is_name(kind, name) and _is_proven(kind, folder / name) for name in names):
        return False
    write_whole(folder / MARKER, _MARK, private=True)
    return True


def files(kind: str, folder: Path) -> list[Path]:
    """Return what softgen keeps in `folder` and may delete: nothing unless it is marked."""
    if not is_marked(folder):
        return []
    with os.scandir(folder) as entries:
        return [
            Path(entry)
            for entry in entries
            if re.fullmatch(_FORMS[kind], entry.name) and not entry.is_dir(follow_symlinks=False)
            if kind != "sources" or is_source(Path(entry))
        ]


def sealed(text: bytes) -> bytes:
    """Return the text of a source with the line by which `is_source` knows it."""
    return text + _SEAL + hashlib.sha256(text).hexdigest().encode() + b"\n"


def is_source(path: Path) -> bool:
    """Whether softgen kept the file `path` of a marked folder, and nobody edited it since.

    One that an earlier version kept has no seal: it is nobody's to delete but the user's.
    """
    try:
        data = read_regular(path)
    except OSError:
        return False
    text, seal, _ = data.rpartition(_SEAL)
    return bool(seal) and data == sealed(text)


def delete(path: Path) -> bool:
    """Delete a file and return True; False if it is gone already, or cannot be deleted."""
    try:
        path.unlink()
    except OSError:
        return False
    return True


def delete_stale(kind: str, folder: Path) -> None:
    """Delete what processes left in `folder` that were killed while they wrote."""
    if not is_marked(folder):
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if not _is_temporary(kind, entry.name):
                continue
            try:
                old = time.time() - entry.stat(follow_symlinks=False).st_mtime > STALE_SECONDS
            except OSError:  # its process has finished it
                continue
            if old and entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry, ignore_errors=True)
            elif old:
                delete(Path(entry))


def is_marked(folder: Path) -> bool:
    """Whether `folder` holds softgen's marker."""
    try:
        return _SIGN in read_regular(folder / MARKER)
    except OSError:
        return False


def _is_name(kind: str, name: str) -> bool:
    return re.fullmatch(_FORMS[kind], name) is not None or _is_temporary(kind, name)


def _is_proven(kind: str, path: Path) -> bool:
    """Whether what `path` holds proves that softgen made it, in a folder that nobody marked."""
    try:
        if path.is_dir() and not path.is_symlink():
            return all(re.fullmatch(_IN_WORK, name) for name in os.listdir(path))
        return kind in _STARTS and re.match(_STARTS[kind], read_regular(path)) is not None
    except OSError:
        return False


def _is_temporary(kind: str, name: str) -> bool:
    if kind == "emulator" and re.fullmatch(_WORK, name):
        return True
    form = rf"\.(?:{_FORMS[kind]}|{re.escape(MARKER)})\.[a-z0-9_]+\.tmp"
    return re.fullmatch(form, name) is not None
