"""Writes sources into a folder and keeps the folder true: only what differs, nothing of others.

A folder belongs to softgen through its manifest.json, which says of each file the sets that it was
written for: the gallery, a request of --all, or one kernel. What an earlier run of a set wrote, and
neither that set nor another has any more, is deleted unless it was edited. All else is left alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softgen.disk.files import read_regular, unfinished, write_whole
from softgen.errors import InvalidValueError
from softgen.source import manifest
from softgen.source.lock import alone_in
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
        entries: of the manifest, those of the files.
        stale: files of an earlier run that are to go.
    """

    texts: dict[str, str]
    entries: Entries
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
    return Plan(texts, entries, tuple(sorted(stale)))


def write(folder: Path, sources: Sequence[Source], of: str = GALLERY) -> Report:
    """Make `folder` hold `sources`, which are `of` a set, and their manifest; say what that took.

    Raises InvalidValueError if the folder, or a file to write or read, is a symbolic link, or if
    the folder holds a manifest.json, or a file of an emitted name, that softgen did not write or
    that was edited since. Nothing is written then.
    """
    refuse_links(folder)
    if folder.exists() and not folder.is_dir():
        raise InvalidValueError(f"{folder} is a file; give a folder to emit into")
    manifest.by_file(sources)  # what cannot be emitted is refused before there is a folder
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder) as alone:
        return _write(folder, sources, of, alone)


def _write(folder: Path, sources: Sequence[Source], of: str, alone: bool) -> Report:
    """Do what `write` does; `alone`: no other process writes into the folder."""
    _refuse_odd_file(folder / MANIFEST)
    previous = manifest.read(folder)
    wanted = plan(sources, previous, of)
    for name in [*wanted.texts, *wanted.stale]:
        _refuse_odd_file(folder / name)
    there = _digests(folder, wanted.entries, previous)
    listed = (folder / MANIFEST).read_text() if (folder / MANIFEST).exists() else None
    if alone:
        _delete_unfinished(folder, {MANIFEST, *previous, *wanted.entries})

    # The manifest goes first and last: a run that dies on the way leaves one that lists each file,
    # as it was or as it is to be, so that the next run knows it for softgen's.
    changing = {
        name: {**entry, "replaces": there[name]} if name in there else entry
        for name, entry in wanted.entries.items()
        if there.get(name) != entry["sha256"]
    }
    if changing:
        write_if_different(folder / MANIFEST, manifest.to_text({**previous, **changing}))
    removed = [name for name in wanted.stale if _remove(folder / name, previous[name])]
    written = [
        name for name, text in wanted.texts.items() if write_if_different(folder / name, text)
    ]
    if MANIFEST not in written and wanted.texts[MANIFEST] != listed:
        written.append(MANIFEST)
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


def _digests(folder: Path, entries: Entries, previous: Entries) -> dict[str, str]:
    """Return the digest of each file that is there.

    Raises InvalidValueError for one that is not as its manifest says we wrote it.
    """
    found = {}
    for name, entry in entries.items():
        path = folder / name
        if not path.is_file():
            continue
        found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        ours = manifest.digests_of(entry) | manifest.digests_of(previous.get(name, {}))
        if found[name] not in ours:
            raise InvalidValueError(
                f"{path} was edited, or is not softgen's; nothing was written. Move or delete it, "
                "or emit into another folder"
            )
    return found


def _delete_unfinished(folder: Path, names: Container[str]) -> None:
    """Delete what processes left of the files `names` that were killed while they wrote them.

    A name proves nothing: what a file holds has to begin as softgen's text does, or to be nothing.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            name = unfinished(entry.name)
            if name is None or name not in names:
                continue
            start = manifest.start_of(name).encode()
            with contextlib.suppress(OSError):  # no regular file, or not ours to read or delete
                if start.startswith(read_regular(Path(entry))[: len(start)]):
                    os.unlink(entry)


def _remove(path: Path, entry: dict[str, Any]) -> bool:
    """Delete a file that we wrote; return False, deleting nothing, if it was edited since."""
    if not path.is_file():
        return False
    if hashlib.sha256(path.read_bytes()).hexdigest() not in manifest.digests_of(entry):
        return False
    path.unlink()
    return True
