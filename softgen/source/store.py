"""Emitted texts, remembered on disk: a process whose kernel was emitted before loads no Jinja.

To load it and to read the templates would be more than half of a first call whose machine code is
on disk. What is damaged, another variant's, or of other templates is emitted anew.
"""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

from softgen.disk import checked, folders, owned
from softgen.errors import SoftgenError
from softgen.source.digest import digest
from softgen.source.render import Source, render
from softgen.strategies.variants import Variant, parse_name

KIND = "texts"


def source_of(variant: Variant) -> Source:
    """Return the source of `variant`, as `render` does, from disk where it was kept."""
    made_by = (variant.name, digest(variant))
    name = f"{'-'.join(made_by)}.txt"
    text = _text_of(variant, checked.read(KIND, name, made_by))
    if text is not None:
        return Source.of(variant, text)
    source = render(variant)
    # What cannot be kept is emitted again: nothing but the next process's time is lost.
    with contextlib.suppress(OSError):
        _delete_others(folders.made(KIND))
        checked.write(KIND, name, made_by, source.text.encode())
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


def _text_of(variant: Variant, content: bytes | None) -> str | None:
    """Return the text that a file holds; None if it is not a text of `variant`."""
    try:
        text = (content or b"").decode()
    except UnicodeDecodeError:
        return None
    # As CuPy will look it up: at the start of a line, where only the kernel's own name stands.
    return text if f"\n    {variant.name}(" in text else None
