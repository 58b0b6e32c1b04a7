"""Emitted texts, remembered on disk: a process whose kernel was emitted before loads no Jinja.

To load it and to read the templates would be more than half of a first call whose machine code
CuPy has on disk. A file holds a digest in its first line, then the text; what is damaged, another
variant's, or of other templates is emitted anew. The digest has no key, so it does not keep out who
can write to the folder: that is for `folders.py`, and SECURITY.md says what is trusted.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from pathlib import Path

from softgen.disk import folders, owned
from softgen.disk.files import read_regular, write_whole
from softgen.errors import SoftgenError
from softgen.source.digest import digest
from softgen.source.render import Source, render
from softgen.strategies.variants import Variant, parse_name

KIND = "texts"


def source_of(variant: Variant) -> Source:
    """Return the source of `variant`, as `render` does, from disk where it was kept."""
    name = f"{variant.name}-{digest(variant)}.txt"
    try:
        folder = folders.found(KIND)
        text = _checked(variant, read_regular(folder / name)) if folder else None
    except OSError:
        text = None
    if text is not None:
        return Source.of(variant, text)
    source = render(variant)
    # What cannot be kept is emitted again: nothing but the next process's time is lost.
    with contextlib.suppress(OSError):
        folder = folders.made(KIND)
        _delete_others(folder)
        write_whole(folder / name, _with_digest(variant, source.text.encode()))
    return source


def _delete_others(folder: Path) -> None:
    """Delete the texts of other templates, which another version left."""
    for path in owned.files(KIND, folder):
        name, _, kept = path.stem.rpartition("-")
        if kept != _digest_of(name):
            owned.delete(path)
    owned.delete_stale(KIND, folder)


@functools.cache
def _digest_of(name: str) -> str:
    """Return the digest of the variant called `name`; empty if there is none today."""
    try:
        return digest(parse_name(name))
    except SoftgenError:
        return ""


def _with_digest(variant: Variant, text: bytes) -> bytes:
    """Return what a file holds: a text after a digest of it, of its name and of its templates."""
    head = f"{variant.name}\0{digest(variant)}\0".encode()
    return hashlib.sha256(head + text).hexdigest().encode() + b"\n" + text


def _checked(variant: Variant, data: bytes) -> str | None:
    """Return the text of a file; None if it is not what was written."""
    content = data.partition(b"\n")[2]
    if data != _with_digest(variant, content):
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    # As CuPy will look it up: at the start of a line, where only the kernel's own name stands.
    return text if f"\n    {variant.name}(" in text else None
