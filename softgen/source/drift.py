"""`softgen emit --check`: how a folder differs from what would be emitted into it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from softgen.errors import InvalidValueError
from softgen.source import manifest
from softgen.source.emit import plan, refuse_links
from softgen.source.manifest import GALLERY, Entries
from softgen.source.render import Source


@dataclass(frozen=True)
class Difference:
    """One file that is not as it would be emitted.

    Attributes:
        file: its name in the folder.
        kind: "changed", "missing" or "stale" (listed in the manifest, no longer produced).
        diff: unified diff from the file on disk to what would be emitted.
    """

    file: str
    kind: str
    diff: str


def check(folder: Path, sources: Sequence[Source], of: str = GALLERY) -> list[Difference]:
    """Return how `folder` differs from what `write` would make of it; nothing is written.

    A link is a difference even where it points to the right bytes; a file that the manifest never
    listed is none, since `write` leaves it alone.
    """
    refuse_links(folder)
    previous = _lenient_entries(folder)
    wanted = plan(sources, previous, of)
    present = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return list(_differences(folder, wanted.texts, present, wanted.stale))


def _differences(
    folder: Path,
    texts: dict[str, str],
    present: set[str],
    stale: Sequence[str],
) -> Iterator[Difference]:
    for name, text in texts.items():
        path = folder / name
        if name not in present:
            yield Difference(name, "missing", _diff(path, None, text))
        elif path.is_symlink() or not path.is_file():
            yield Difference(name, "changed", f"{path}: not a regular file\n")
        elif path.read_bytes() != text.encode():
            yield Difference(name, "changed", _diff(path, path.read_bytes(), text))
    for name in sorted(present.intersection(stale)):
        path = folder / name
        regular = path.is_file() and not path.is_symlink()
        diff = _diff(path, path.read_bytes(), None) if regular else f"{path}: not a regular file\n"
        yield Difference(name, "stale", diff)


def _lenient_entries(folder: Path) -> Entries:
    """Return the manifest's entries; none if it is damaged, which then shows up as a change."""
    try:
        return manifest.read(folder)
    except InvalidValueError:
        return {}


def _diff(path: Path, old: bytes | None, new: str | None) -> str:
    """Return a unified diff as `diff -u` prints it; None is a file that does not exist."""
    try:
        before = (old or b"").decode().splitlines(keepends=True)
    except UnicodeDecodeError:
        return f"{path}: not text\n"
    after = (new or "").splitlines(keepends=True)
    lines = difflib.unified_diff(
        before,
        after,
        "/dev/null" if old is None else str(path),
        "/dev/null" if new is None else f"{path.name} (emitted)",
    )
    marked = (
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
    if old is None or new is None:
        return "".join(marked) or f"{path}: empty\n"
    return "".join(marked) or f"{path}: differs in its line ends\n"
