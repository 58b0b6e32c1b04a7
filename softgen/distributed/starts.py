"""How many columns each process has, which processes ask each other once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from softgen.call.scalars import whole
from softgen.errors import InvalidValueError

# By group, and how many columns this process has: those of each process, in the order of the ranks.
_known: WeakKeyDictionary[Any, dict[int, list[int]]] = WeakKeyDictionary()


def columns_of(group: Any, cols: int, ask: Callable[[], Any]) -> list[int]:
    """Return how many columns each process of the group has, in the order of the ranks.

    Where the columns of any process change, those of each have to, or the ones that know would not
    answer.

    Args:
        group: a process group, or a communicator.
        cols: how many columns this process has.
        ask: returns the result in an array.
    """
    known = _known.setdefault(group, {})
    if cols not in known:
        known[cols] = ask().tolist()
    return known[cols]


def start_of(offset: Any) -> int:
    """Return a caller's `offset`; raise InvalidTypeError or InvalidValueError if it is none."""
    start = whole("offset", offset)
    if not 0 <= start < 2**63:
        raise InvalidValueError(
            f"offset must be the number of the shard's first column, 0 or above, got {start}"
        )
    return start
