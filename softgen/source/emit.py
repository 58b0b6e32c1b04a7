"""Writes sources into a folder and keeps the folder true: only what differs, nothing of others.

A folder belongs to softgen through its manifest.json, which says of each file the sets that it was
written for: the gallery, a request of --all, or one kernel. What an earlier run of a set wrote, and
neither that set nor another has any more, is deleted unless it was edited. All else is left alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from softgen.disk.files import write_whole
from softgen.errors import InvalidValueError
from softgen.source import manifest
from softgen.source.manifest import GALLERY, MANIFEST, ONE_KERNEL, Entries
from softgen.source.render import Source


@dataclass(frozen=True)
class Report:
    """What `write` did, by file name.

    Attributes:
        written: new or changed.
        unchanged: not touched, because the bytes were the same.
        removed: deleted, because the manifest listed them and they are no longer produced.
        edited: no longer produced, and left alone because somebody edited them since.
    """

    written: tuple[str, ...]
    unchanged: tuple[str, ...]
    removed: tuple[str, ...]
    edited: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """What a folder shall hold.

    Attributes:
        texts: every file's text, the manifest's last.
        stale: files of an earlier run that are to go.
    """

    texts: dict[str, str]
    stale: tuple[str, ...]


def plan(sources: Sequence[Source], previous: Entries, of: str = GALLERY) -> Plan:
    """Return what a folder whose manifest lists `previous` shall hold.

    Args:
        sources: the files to emit.
        previous: the entries of the folder's manifest.
        of: the set that the sources are all of, or ONE_KERNEL, which replaces nothing.
    """
    files = manifest.by_file(sources)
    kept, stale = {}, []
    for name in previous.keys() - files.keys():
        sets = set(manifest.sets_of(previous[name]))
        if of != ONE_KERNEL:
            sets.discard(of)
        if sets:
            kept[name] = manifest.with_sets(previous[name], sets)
        else:
            stale.append(name)
    entries = {}
    for name, source in files.items():
        before = manifest.sets_of(previous[name]) if name in previous else ()
        entries[name] = manifest.with_sets(manifest.describe(source), {*before, of})
    texts = {name: source.text for name, source in files.items()}
    texts[MANIFEST] = manifest.to_text({**kept, **entries})
    return Plan(texts, tuple(sorted(stale)))


def write(folder: Path, sources: Sequence[Source], of: str = GALLERY) -> Report:
    """Make `folder` hold `sources`, which are `of` a set, and their manifest; say what that took.

    Raises InvalidValueError if the folder, or a file to write or read, is a symbolic link, or if
    the folder holds a manifest.json, or a file of an emitted name, that softgen did not write or
    that was edited since. Nothing is written then.
    """
    refuse_links(folder)
    if folder.exists() and not folder.is_dir():
        raise InvalidValueError(f"{folder} is a file; give a folder to emit into")
    _refuse_odd_file(folder / MANIFEST)
    previous = manifest.read(folder)
    wanted = plan(sources, previous, of)
    for name in [*wanted.texts, *wanted.stale]:
        _refuse_odd_file(folder / name)
    _refuse_edited(folder, wanted.texts, previous)
    folder.mkdir(parents=True, exist_ok=True)

    # The manifest goes last: a run that dies on the way leaves one that still lists every file.
    removed = [name for name in wanted.stale if _remove(folder / name, previous[name]["sha256"])]
    written = [
        name for name, text in wanted.texts.items() if write_if_different(folder / name, text)
    ]
    return Report(
        written=tuple(written),
        unchanged=tuple(name for name in wanted.texts if name not in written),
        removed=tuple(removed),
        edited=tuple(
            name for name in wanted.stale if name not in removed and (folder / name).exists()
        ),
    )


def write_if_different(path: Path, text: str) -> bool:
    """Write `text` to `path`, whole or not at all; return False if it was there already."""
    data = text.encode()
    if path.is_file() and path.read_bytes() == data:
        return False
    write_whole(path, data)
    return True


def refuse_links(folder: Path) -> None:
    """Raise InvalidValueError if `folder`, or a folder on the way to it, is a symbolic link.

    A link directly under the root, or in a folder that we cannot write to (as /tmp or /home are on
    some systems), was put there by whoever runs the machine and is followed.
    """
    # With its `..`, as the system goes: behind a link that is not the folder before it.
    path = folder.absolute()
    for part in (path, *path.parents):
        ours = part.parent != Path(part.anchor) and os.access(part.parent, os.W_OK)
        if part.is_symlink() and ours:
            raise InvalidValueError(
                f"{part} is a symbolic link, and softgen writes only inside the folder it is "
                f"given; name the real one, {part.resolve()}"
            )


def _refuse_odd_file(path: Path) -> None:
    if path.is_symlink():
        raise InvalidValueError(
            f"{path} is a symbolic link, and softgen does not write through links; remove it"
        )
    if path.exists() and not path.is_file():
        raise InvalidValueError(f"{path} is not a regular file; remove it or choose another folder")


def _refuse_edited(folder: Path, texts: dict[str, str], previous: Entries) -> None:
    """Raise InvalidValueError if a file to be replaced is not as its manifest says we wrote it."""
    for name, text in texts.items():
        path = folder / name
        if name == MANIFEST or not path.is_file():
            continue
        data = path.read_bytes()
        ours = {hashlib.sha256(text.encode()).hexdigest(), previous.get(name, {}).get("sha256")}
        if hashlib.sha256(data).hexdigest() not in ours:
            raise InvalidValueError(
                f"{path} was edited, or is not softgen's; nothing was written. Move or delete it, "
                "or emit into another folder"
            )


def _remove(path: Path, sha256: str) -> bool:
    """Delete a file that we wrote; return False, deleting nothing, if it was edited since."""
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        return False
    path.unlink()
    return True
