"""What is said of an error in what was added to softgen: the line, and the error in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

# What an author's line may raise that is no Exception and must not end the program. Ctrl-C must.
AUTHORS = (Exception, SystemExit)


def told(error: BaseException, mine: Callable[[Path], bool]) -> tuple[str | None, str]:
    """Return the innermost line of files that are `mine`, if there is one, and the reason."""
    reason = f"{type(error).__name__}: {error}".strip().splitlines()[0].removesuffix(":")
    return _place(error, mine), reason


def _place(error: BaseException, mine: Callable[[Path], bool]) -> str | None:
    import traceback  # milliseconds, which a sound process need not spend

    if isinstance(error, SyntaxError) and error.filename:  # it has no frame in that file
        return f"{error.filename}, line {error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if mine(Path(frame.filename)):
            return f"{frame.filename}, line {frame.lineno}"
    return None
