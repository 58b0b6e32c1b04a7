"""Kept files that tell whether they are whole, and made from what was asked for.

The first line is a digest of what the content was made from, and of the content, which follows. It
has no key, so it does not keep out who can write to the folder: that is for `folders.py`, and
SECURITY.md says what is trusted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from softgen.disk import folders
from softgen.disk.files import read_regular, write_whole


def read(kind: str, name: str, made_by: Iterable[str]) -> bytes | None:
    """Return the content of a file; None if it cannot be read, or is not what was written.

    Args:
        kind: the folder, one of `owned.KINDS`.
        name: of the file.
        made_by: what the content is made from, as it was given to `write`.
    """
    try:
        folder = folders.found(kind)
        data = read_regular(folder / name) if folder else b""
    except OSError:
        return None
    content = data.partition(b"\n")[2]
    return content if data == _whole(made_by, content) else None


def write(kind: str, name: str, made_by: Iterable[str], content: bytes) -> None:
    """Write a file in place of the one of that name; raises OSError, saying why, if it cannot."""
    write_whole(folders.made(kind) / name, _whole(made_by, content))


def _whole(made_by: Iterable[str], content: bytes) -> bytes:
    """Return all that a file holds."""
    head = "".join(f"{each}\0" for each in made_by).encode()
    return hashlib.sha256(head + content).hexdigest().encode() + b"\n" + content
