"""The best variant per key, remembered on disk: one JSON file a key, replaced whole.

One file a key, because a shared file loses updates when processes tune at the same time. A file is
written beside its place and moved there, so a reader sees the old one or the new one. What cannot
be read, or does not fit, is a miss with a warning, never an error. `merge` takes over what other
machines have stored: of two choices for one key, the better one.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from softgen import logs
from softgen.disk import folders, outputs, owned
from softgen.disk.files import read_regular, write_whole
from softgen.errors import IllegalVariantError, InvalidValueError
from softgen.problems.arch import Arch
from softgen.tuning.entry import SCHEMA, Entry, Key, entry_from_json

KIND = "tuned"

_ACCEPTED = (
    "name a cache folder, as `softgen cache path` prints it, or a file of `softgen cache export`"
)

# Entries of this process whose file could not be written, by path.
_memory: dict[Path, Entry] = {}


def tuned_directory() -> Path:
    """Return the folder of the entries, which need not exist."""
    return folders.directory() / KIND


@functools.cache
def _warn_once(message: str) -> None:
    logs.warning(message)


def trusted_directory(create: bool) -> Path | None:
    """Return the folder of the entries if it exists (or could be made) and only we can write to it.

    Otherwise None, with one warning: choices are then kept in memory.
    """
    try:
        return folders.made(KIND) if create else folders.found(KIND)
    except OSError as error:
        _warn_once(
            f"the cache folder {tuned_directory()} is not used: {error}. Choices are kept in "
            "memory; set SOFTGEN_CACHE_DIR to a folder of your own"
        )
        return None


def load(key: Key, arch: Arch, *, quiet: bool = False) -> Entry | None:
    """Return the stored entry for `key`; None if there is none that can be used on `arch`.

    One that cannot be used gives a warning, unless `quiet`. One whose winner has another text today
    is none: the next tuning replaces it.
    """
    path = tuned_directory() / key.file_name
    remembered = _memory.get(path)  # one look: another thread may take it out as its file appears
    if remembered is not None:
        return remembered
    folder = trusted_directory(create=False)
    if folder is None:
        return None
    try:
        entry = _read(path)
        if entry.key != key:
            raise InvalidValueError("it is for another key")
        entry.winner.check(arch)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, IllegalVariantError) as error:
        if not quiet:
            logs.warning("ignoring the cache entry %s: %s", path, error)
        return None
    return entry if entry.is_current else None


def _read(path: Path) -> Entry:
    """Return the entry in a file; OSError, ValueError or RecursionError if there is none."""
    return entry_from_json(json.loads(read_regular(path).decode()))


def store(entry: Entry) -> Path | None:
    """Write `entry` and return its path; None if it could only be kept in memory (one warning)."""
    path = tuned_directory() / entry.key.file_name
    folder = trusted_directory(create=True)
    if folder is not None:
        try:
            owned.delete_stale(KIND, folder)
            write_entry(path, entry)
        except OSError as error:
            why = error.strerror or error  # not the file, which would make it a warning for each
            _warn_once(f"the cache folder {folder} cannot be written ({why}); going on in memory")
        else:
            _memory.pop(path, None)
            return path
    _memory[path] = entry
    return None


def write_entry(path: Path, entry: Entry) -> None:
    """Write `entry` to its file; OSError if that cannot be."""
    write_atomic(path, json.dumps(entry.to_json(), indent=1) + "\n")


def write_atomic(path: Path, text: str) -> None:
    """Write `text` to `path`, for the owner only: old or new, whole, and on the disk."""
    write_whole(path, text.encode(), private=True)


def entries() -> list[Entry]:
    """Return every readable entry, by file name; damaged files give a warning each."""
    folder = trusted_directory(create=False)
    found = []
    for path in sorted(folder.glob("*.json")) if folder else []:
        try:
            found.append(_read(path))
        except (OSError, ValueError, RecursionError) as error:
            logs.warning("ignoring the cache entry %s: %s", path, error)
    return found


class Cleared(NamedTuple):
    """What `clear` did, by folder of the cache folder.

    Attributes:
        deleted: how many files went: choices, texts, built programs, sources.
        left: why a folder was left as it is.
    """

    deleted: dict[str, int]
    left: dict[str, str]


def clear() -> Cleared:
    """Delete all that softgen keeps in its cache folder, damaged files included."""
    _memory.clear()
    deleted, left = {}, {}
    for kind in owned.KINDS:
        deleted[kind] = 0
        try:
            folder = folders.found(kind)
            if folder is None:
                continue
            marked = owned.is_marked(folder)
            if owned.mark(kind, folder):
                deleted[kind] = sum(map(owned.delete, owned.files(kind, folder)))
                owned.delete_stale(kind, folder)
                if not marked:  # it may be an empty folder of the user's
                    owned.delete(folder / owned.MARKER)
            else:
                left[kind] = "softgen did not make it, or not all that it holds"
        except OSError as error:
            left[kind] = str(error)
    return Cleared(deleted, left)


def export_file(path: Path) -> int:
    """Write all entries to one JSON file; return how many."""
    found = entries()
    text = json.dumps([entry.to_json() for entry in found], indent=1) + "\n"
    outputs.write(path, text.encode())
    return len(found)


def import_file(path: Path) -> int:
    """Store every entry of a file that `export_file` wrote; return how many.

    Raises InvalidValueError, before anything is stored, if the file holds anything else.
    """
    if path.is_dir():
        raise InvalidValueError(
            f"{path} is a folder; `softgen cache merge {path}` takes over the choices in it"
        )
    data = read_export(path)
    try:
        found = [entry_from_json(item) for item in data]
    except InvalidValueError as error:
        raise InvalidValueError(f"{path}: {error}; nothing was imported") from error
    for entry in found:
        store(entry)
    return len(found)


def read_export(path: Path) -> list[Any]:
    """Return the list in a file that `export_file` wrote; InvalidValueError if it holds none."""
    if not path.exists():
        raise InvalidValueError(
            f"cannot read {path}: there is no such file; `softgen cache export` writes one"
        )
    try:
        data: Any = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidValueError(
            f"cannot read {path} as JSON, which `softgen cache export` writes: {error}"
        ) from error
    if not isinstance(data, list):
        raise InvalidValueError(f"{path} is not a list of cache entries, as `cache export` writes")
    return data


class Merged(NamedTuple):
    """What `merge` did.

    Attributes:
        added: choices for keys that had none here.
        replaced: choices here that gave way to a better one.
        kept: choices here that were as good as what came for their key, or better.
        skipped: what is no choice that this softgen can read.
    """

    added: int
    replaced: int
    kept: int
    skipped: int


class _Found(NamedTuple):
    """An entry, and when its file was written, in nanoseconds."""

    entry: Entry
    written: int

    def beats(self, other: _Found) -> bool:
        """Whether this one is to be used, where the other one is.

        Times are compared where both are of today's kernels and of as many rows: the key says that
        device, compiler and driver are the same. Else the newer one is.
        """
        mine, its = self.entry, other.entry
        if mine.is_current != its.is_current:
            return mine.is_current
        times = mine.microseconds, its.microseconds
        if mine.is_current and mine.rows == its.rows and None not in times:
            return (mine.microseconds or 0.0) < (its.microseconds or 0.0)
        return self.written > other.written


def merge(paths: Sequence[Path]) -> Merged:
    """Store what the cache folders and exported files in `paths` hold, where it is better.

    What cannot be read gives a warning and is skipped. Everything is read before anything is
    written, and every file is written whole: a merge that was killed can be made again.

    Raises InvalidValueError, before anything is written, for a path that is neither, and for an
    entry of a later version of softgen; OSError if this machine's folder cannot be written.
    """
    came = [found for path in paths for found in _came(path)]
    folder = folders.made(KIND)
    ours = {entry.key: found for entry in entries() if (found := _ours(folder, entry))}
    best = dict(ours)
    for found in came:
        if found is not None:
            key = found.entry.key
            if key not in best or found.beats(best[key]):
                best[key] = found
    better = {key: found for key, found in best.items() if found is not ours.get(key)}
    for key, found in better.items():
        write_entry(folder / key.file_name, found.entry)
    challenged = {found.entry.key for found in came if found is not None} & ours.keys()
    return Merged(
        added=len(better.keys() - ours.keys()),
        replaced=len(better.keys() & ours.keys()),
        kept=len(challenged - better.keys()),
        skipped=came.count(None),
    )


def _ours(folder: Path, entry: Entry) -> _Found | None:
    """Return an entry of this machine; None if its file has another name, where none looks."""
    file = folder / entry.key.file_name
    return _Found(entry, file.stat().st_mtime_ns) if file.exists() else None


def _came(path: Path) -> Iterator[_Found | None]:
    """Yield the entries of a cache folder or of an exported file; None for one that is skipped."""
    if path.is_dir():
        inner = path / KIND
        files = sorted((inner if inner.is_dir() else path).glob("*.json"))
        if not files and not inner.is_dir():
            raise InvalidValueError(f"{path} holds no tuned choices; {_ACCEPTED}")
        for file in files:
            try:
                data = json.loads(read_regular(file))
            except (OSError, ValueError, RecursionError) as error:
                _warn(file, error)
                yield None
            else:
                yield _found(data, file)
    elif not path.exists():
        raise InvalidValueError(f"{path} does not exist; {_ACCEPTED}")
    else:
        try:
            items = read_export(path)
        except InvalidValueError as error:
            raise InvalidValueError(f"{error}; {_ACCEPTED}") from error
        for item in items:
            yield _found(item, path)


def _found(data: Any, file: Path) -> _Found | None:
    schema = data.get("schema") if isinstance(data, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise InvalidValueError(
            f"{file} is of a later version of softgen: schema {schema}, and this one reads "
            f"{SCHEMA}; nothing was merged, update softgen here first"
        )
    try:
        return _Found(entry_from_json(data), file.stat().st_mtime_ns)
    except (InvalidValueError, OSError) as error:
        _warn(file, error)
        return None


def _warn(file: Path, error: Exception) -> None:
    logs.warning("skipping an entry of %s: %s", file, error)
