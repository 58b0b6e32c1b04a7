"""Tests that take a part of something, for time, take all of it where SOFTGEN_TEST_WHOLE is 1.

`python -m tests.whole` sets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from softgen.switches import is_on

T = TypeVar("T")

WHOLE = is_on("SOFTGEN_TEST_WHOLE")


def part(items: Sequence[T], every: int, first: int = 0) -> Sequence[T]:
    """Return one item in `every`, from number `first` on; all of them where tests run whole."""
    return items if WHOLE else items[first::every]
