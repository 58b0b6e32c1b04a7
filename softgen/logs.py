"""The logger "softgen", loaded when something is said: that takes 1.4 ms of a first call."""

from __future__ import annotations


def info(message: str, *values: object) -> None:
    """Say what was done; `values` are filled in where the level is on."""
    import logging

    logging.getLogger("softgen").info(message, *values, stacklevel=2)


def warning(message: str, *values: object) -> None:
    """Say what went wrong and does not stop a call."""
    import logging

    logging.getLogger("softgen").warning(message, *values, stacklevel=2)
