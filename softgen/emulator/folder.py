"""Where built programs are kept, so that the same kernel is compiled once."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from pathlib import Path

from softgen import folders

# A unit of one kernel takes 0.1 MB, one of fifty kernels 0.5 MB.
MAX_BYTES = 256 * 2**20


def program_folder() -> Path:
    """Return the folder: `emulator` in softgen's cache folder, else a temporary one."""
    # Its programs will be run, so nobody else may be able to put one there.
    with contextlib.suppress(OSError):
        folder = folders.made("emulator")
        if os.access(folder, os.W_OK):
            return folder
    return Path(_temporary().name)


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that lives as long as the process."""
    return tempfile.TemporaryDirectory(prefix="softgen-")


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
