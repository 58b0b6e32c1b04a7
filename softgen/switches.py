"""Environment variables that turn something on or off."""

from __future__ import annotations

import os

from softgen.errors import InvalidValueError


def is_on(name: str, *, default: bool = False) -> bool:
    """Whether the environment variable is 1; `default` where it is empty or not set.

    Raises InvalidValueError for anything but 0 and 1.
    """
    text = os.environ.get(name, "")
    if text not in ("", "0", "1"):
        raise InvalidValueError(f"the environment variable {name} must be 0 or 1, got {text!r}")
    return text == "1" if text else default
