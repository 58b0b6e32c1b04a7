"""The logger "softgen", loaded when something is said: that takes 1.4 ms of a first call."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """Return `text` with escapes for what is no letter: a terminal obeys what it prints.

    Args:
        text: may come from anybody's file, or be a file's name.
        keep: control characters that stay.
    """
    return "".join(
        letter
        if letter.isprintable() or letter in keep
        else letter.encode("unicode_escape").decode()
        for letter in text
    )


def info(message: str, *values: object) -> None:
    """Say what was done; `values` are filled in where the level is on."""
    _say("info", message, values)


def warning(message: str, *values: object) -> None:
    """Say what went wrong and does not stop a call."""
    _say("warning", message, values)


def _say(level: str, message: str, values: tuple[object, ...]) -> None:
    import logging

    logger = logging.getLogger("softgen")
    if logger.isEnabledFor(logging.getLevelName(level.upper())):
        said = printable(message % values if values else message, keep="\n\t")
        getattr(logger, level)("%s", said, stacklevel=3)
