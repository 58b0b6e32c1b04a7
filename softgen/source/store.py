"""Emitted texts, remembered on disk: a process whose kernel was emitted before loads no Jinja.

To load it and to read the templates would be more than half of a first call whose machine code is
on disk. What is damaged, another variant's, or of other templates is emitted anew.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from softgen import plugins
from softgen.disk import checked, folders, owned
from softgen.source.render import PACKAGE, Source, own_parts, render, template_directory
from softgen.strategies.variants import Variant
from softgen.version import __version__

KIND = "texts"

# The rooms whose modules may decide a text; the names and errors below them do not.
ROOMS = ("source", "problems", "strategies")


def source_of(variant: Variant) -> Source:
    """Return the source of `variant`, as `render` does, from disk where it was kept."""
    own = _state_of_own(variant)
    if own is None:
        return render(variant)
    made_by, name = (variant.name, state(), *own), f"{variant.name}-{state()}.txt"
    text = _text_of(variant, checked.read(KIND, name, made_by))
    if text is not None:
        return Source.of(variant, text)
    source = render(variant)
    # What cannot be kept is emitted again: nothing but the next process's time is lost.
    with contextlib.suppress(OSError):
        _delete_others(folders.made(KIND))
        checked.write(KIND, name, made_by, source.text.encode())
    return source


@functools.cache
def state() -> str:
    """Return a digest of all files that may decide a text: of their names, sizes and times.

    To read them would take 12 to 31 ms of a first call, to look at them takes 2.
    """
    found = [f"{__version__} {PACKAGE}"]
    for folder in (*(PACKAGE / room for room in ROOMS), template_directory()):
        found += sorted(_looks(folder))
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]


def _state_of_own(variant: Variant) -> tuple[str, ...] | None:
    """Return the names, sizes and times of the files of what is not softgen's own in a variant.

    None where something of it has no file, so that nothing tells when it changes.
    """
    found: list[str] = []
    parts = own_parts(variant)
    for _, item, _ in parts:
        modules = plugins.modules_of(plugins.class_of(item))
        if modules is None:
            return None
        found += map(_look, modules)
    for folder in plugins.template_folders() if parts else ():
        found += sorted(_looks(folder))
    return tuple(found)


def _looks(folder: str | Path) -> Iterator[str]:
    """Yield the name, size and time of each module and template in a folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".py", ".j2")):
                yield _look(entry)
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _looks(entry.path)


def _look(file: os.DirEntry[str] | Path) -> str:
    status = file.stat()
    return f"{os.fspath(file)} {status.st_size} {status.st_mtime_ns}"


def _delete_others(folder: Path) -> None:
    """Delete the texts of other templates, which another version left."""
    for path in owned.files(KIND, folder):
        if not path.stem.endswith(f"-{state()}"):
            owned.delete(path)
    owned.delete_stale(KIND, folder)


def _text_of(variant: Variant, content: bytes | None) -> str | None:
    """Return the text that a file holds; None if it is not a text of `variant`."""
    try:
        text = (content or b"").decode()
    except UnicodeDecodeError:
        return None
    # As CuPy will look it up: at the start of a line, where only the kernel's own name stands.
    return text if f"\n    {variant.name}(" in text else None
