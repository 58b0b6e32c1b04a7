"""CuPy's folder of machine code, and what is done where it cannot be written.

CuPy 14 makes the folder when it is imported, and every version writes what it compiles into it. In
a home that is read-only either is a bare PermissionError, so CuPy is then asked to compile in
memory: that costs each process its compile time again, and nothing else. Emitted kernels are not
there: `machine_code.py` keeps them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from softgen import logs
from softgen.disk.files import require_writable

VARIABLE = "CUPY_CACHE_DIR"
HOW_TO_MEND = f"set {VARIABLE} to a folder of your own"


def folder() -> Path:
    """Return the folder that CuPy takes, which need not exist."""
    return Path(os.environ.get(VARIABLE, os.path.expanduser("~/.cupy/kernel_cache")))


def objection() -> str:
    """Return why CuPy cannot write to its folder, or make it; nothing if it can."""
    try:
        require_writable(folder().absolute())
    except OSError as error:  # also of absolute(), if the current folder was deleted
        return str(error)
    return ""


@contextlib.contextmanager
def replaced_if_unusable() -> Iterator[None]:
    """Let CuPy be imported, and compile in memory from then on, where its folder is of no use."""
    if not _objection_once():
        yield
        return
    os.environ["CUPY_CACHE_IN_MEMORY"] = "1"
    if "cupy" in sys.modules:
        yield
        return
    given = os.environ.get(VARIABLE)
    with tempfile.TemporaryDirectory(prefix="softgen-") as empty:
        os.environ[VARIABLE] = empty
        try:
            yield
        finally:
            del os.environ[VARIABLE]
            if given is not None:
                os.environ[VARIABLE] = given


@functools.cache
def warn_once() -> None:
    """Log a warning if CuPy compiles in memory because its folder is of no use."""
    if reason := _objection_once():
        logs.warning(
            "CuPy's cache folder %s is not used: %s. What it keeps there is compiled anew in each "
            "process that tunes; %s",
            folder(),
            reason,
            HOW_TO_MEND,
        )


@functools.cache
def _objection_once() -> str:
    return objection()
