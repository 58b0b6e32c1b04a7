"""Emitted texts, remembered on disk: a process whose kernel was emitted before loads no Jinja.

To load it and to read the templates would be more than half of a first call whose machine code
CuPy has on disk. A file holds the digest of a text in its first line, then the text; what is
damaged, changed by hand or of other templates is emitted anew.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from softgen import folders
from softgen.files import write_whole
from softgen.render import Source, digest, render
from softgen.variants import Variant

FOLDER = "texts"


def source_of(variant: Variant) -> Source:
    """Return the source of `variant`, as `render` does, from disk where it was kept."""
    name = f"{variant.name}-{digest()}.txt"
    try:
        folder = folders.found(FOLDER)
        text = _checked((folder / name).read_bytes()) if folder else None
    except OSError:
        text = None
    if text is not None:
        return Source.of(variant, text)
    source = render(variant)
    # What cannot be kept is emitted again: nothing but the next process's time is lost.
    with contextlib.suppress(OSError):
        folder = folders.made(FOLDER)
        _delete_others(folder)
        write_whole(folder / name, _with_digest(source.text.encode()))
    return source


def clear() -> None:
    """Delete all texts."""
    with contextlib.suppress(OSError):
        folder = folders.found(FOLDER)
        for path in folder.iterdir() if folder else ():
            path.unlink(missing_ok=True)


def _delete_others(folder: Path) -> None:
    """Delete the texts of other templates, which another version left."""
    for path in folder.iterdir():
        if not path.stem.endswith(f"-{digest()}"):
            path.unlink(missing_ok=True)


def _with_digest(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest().encode() + b"\n" + text


def _checked(data: bytes) -> str | None:
    """Return the text of a file; None if it is not what was written."""
    text = data.partition(b"\n")[2]
    return text.decode() if data == _with_digest(text) else None
