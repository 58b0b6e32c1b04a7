"""Where built programs are kept, so that the same kernel is compiled once."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path

from softgen.cache import directory

# A unit of one kernel takes 0.1 MB, one of fifty kernels 0.5 MB.
MAX_BYTES = 256 * 2**20

_temporary: list[tempfile.TemporaryDirectory[str]] = []  # deleted when the process ends


@functools.cache
def _folder(root: Path) -> Path:
    path = root / "emulator"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = path.stat()
        # Its programs will be run, so nobody else may be able to put one there.
        ours = state.st_uid == os.getuid() and not state.st_mode & 0o022
        if ours and os.access(path, os.W_OK):
            return path
    except OSError:
        pass
    _temporary.append(tempfile.TemporaryDirectory(prefix="softgen-"))
    return Path(_temporary[-1].name)


def program_folder() -> Path:
    """Return the folder: `emulator` in softgen's cache folder, else a temporary one."""
    return _folder(directory())


def keep_small(folder: Path, limit: int = MAX_BYTES) -> None:
    """Delete the programs that were not used for longest until `folder` is within `limit` bytes."""
    entries = []
    for path in folder.iterdir():
        try:
            state = path.stat()
        except FileNotFoundError:  # another process was quicker
            continue
        entries.append((state.st_mtime, state.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries, key=lambda entry: entry[0]):
        if total <= limit:
            return
        path.unlink(missing_ok=True)
        total -= size
