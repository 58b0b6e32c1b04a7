"""Numbers that calls take: finite ones, and whole ones of 64 bits."""

from __future__ import annotations

import math
from typing import Any

from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.problem import whole_number


def is_number(value: Any) -> bool:
    """Whether it is a number of Python's or of NumPy's, and no array."""
    # Not int | float: PyTorch 2.7 traces no union, here and elsewhere in what is compiled.
    return isinstance(value, (int, float)) or (
        getattr(value, "shape", None) == () and type(value).__module__ == "numpy"
    )


def finite(name: str, value: Any) -> float:
    """Return the argument `name`, a finite number, as Python's float."""
    if type(value) is float and math.isfinite(value):  # as most are
        return value
    if isinstance(value, bool) or not is_number(value):
        raise InvalidTypeError(f"{name} must be a number, got {value!r}")
    number = float(value)
    if not math.isfinite(number):
        raise InvalidValueError(f"{name} must be finite, got {number!r}")
    return number


def above_zero(name: str, value: Any) -> float:
    """Return the argument `name`, a finite number above 0, as Python's float."""
    number = finite(name, value)
    if number <= 0:
        raise InvalidValueError(f"{name} must be above 0, got {value!r}; leave it out for none")
    return number


def whole(name: str, value: Any) -> int:
    """Return the argument `name`, an int that fits 64 bits."""
    if type(value) is int and -(2**63) <= value < 2**64:  # as most are
        return value
    number = whole_number(name, value)
    if not -(2**63) <= number < 2**64:
        raise InvalidValueError(f"{name} must fit 64 bits, got {number}")
    return number


def bits(name: str, value: Any) -> int:
    """Return 64 bits, the argument `name`, as the signed number that they are."""
    number = whole(name, value)
    return number - 2**64 if number >= 2**63 else number
