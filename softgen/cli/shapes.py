"""Shapes on the command line, and in files of them."""

from __future__ import annotations

import re
from pathlib import Path

from softgen.errors import InvalidValueError
from softgen.problems.problem import MAX_COLS, MAX_ROWS

Shape = tuple[int, int]
_SHAPE = re.compile(r"\s*(\d{1,20})\s*[x,*\s]\s*(\d{1,20})\s*")


def parse_shape(text: str, origin: str) -> Shape:
    """Return (rows, cols) of a text such as 4096x1024."""
    match = _SHAPE.fullmatch(text)
    rows, cols = (int(match[1]), int(match[2])) if match else (0, 0)
    if not (1 <= rows <= MAX_ROWS and 1 <= cols <= MAX_COLS):
        given = text if len(text) <= 80 else f"{text[:80]}..."
        raise InvalidValueError(
            f"{origin}: {given!r} is not a shape; write ROWSxCOLS with two positive numbers up to "
            "2**40, for example 4096x1024"
        )
    return rows, cols


def read_shapes(path: Path) -> list[Shape]:
    """Return the shapes of a file, one a line; blank lines and # comments do not count."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise InvalidValueError(
            f"--shapes: cannot read {path}: {reason}; give a text file with one ROWSxCOLS a line"
        ) from error
    texts = [(number, line.partition("#")[0].strip()) for number, line in enumerate(lines, 1)]
    return [parse_shape(text, f"{path}, line {number}") for number, text in texts if text]
