"""Take over the choices that other machines have stored: of two for one key, the better one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from softgen import logs
from softgen.disk import folders
from softgen.disk.files import read_regular
from softgen.errors import InvalidValueError
from softgen.tuning import cache
from softgen.tuning.entry import SCHEMA, Entry, entry_from_json

_ACCEPTED = (
    "name a cache folder, as `softgen cache path` prints it, or a file of `softgen cache export`"
)


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
    folder = folders.made(cache.KIND)
    ours = {entry.key: found for entry in cache.entries() if (found := _ours(folder, entry))}
    best = dict(ours)
    for found in came:
        if found is not None:
            key = found.entry.key
            if key not in best or found.beats(best[key]):
                best[key] = found
    better = {key: found for key, found in best.items() if found is not ours.get(key)}
    for key, found in better.items():
        cache.write_entry(folder / key.file_name, found.entry)
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
        inner = path / cache.KIND
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
            items = cache.read_export(path)
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
