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

from softgen.disk import checked, folders, owned
from softgen.source.render import PACKAGE, Source, render, strategy_template, template_directory
from softgen.strategies.faults import PACKAGES, SHIPPED
from softgen.strategies.variants import Variant
from softgen.version import __version__

KIND = "texts"

# The rooms whose modules may decide a text; the names and errors below them do not.
ROOMS = ("source", "spec", "strategies")


def source_of(variant: Variant) -> Source:
    """Return the source of `variant`, as `render` does, from disk where it was kept."""
    made_by = (variant.name, state())
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


@functools.cache
def state() -> str:
    """Return a digest of all files that may decide a text: of their names, sizes and times.

    To read them would take 12 to 31 ms of a first call, to look at them takes 2.
    """
    found = [f"{__version__} {PACKAGE}"]
    for folder in (*(PACKAGE / room for room in ROOMS), template_directory()):
        found += sorted(_looks(folder))
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]


def _looks(folder: str | Path) -> Iterator[str]:
    """Yield the name, size and time of each module and template in a folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".py", ".j2")):
                status = entry.stat()
                yield f"{entry.path} {status.st_size} {status.st_mtime_ns}"
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _looks(entry.path)


def added_strategies() -> str:
    """Return a digest of the strategies that do not come with softgen; empty without any.

    A choice is made again where there is another one, or one has changed: it may win. Of softgen's
    own a winner is kept as long as its own text is.
    """
    digest, some = hashlib.sha256(), False
    for package in PACKAGES:
        folder = PACKAGE.joinpath(*package.split(".")[1:])
        for path in sorted(folder.glob("*.py")):
            if path.stem not in SHIPPED | {"__init__"}:
                template = template_directory() / strategy_template(path.stem)
                for each in (path, template):
                    digest.update(each.read_bytes() if each.is_file() else b"")
                some = True
    return digest.hexdigest()[:16] if some else ""


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
