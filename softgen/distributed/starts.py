"""Where the columns of a process begin, which processes ask each other once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from softgen.call.scalars import whole
from softgen.errors import InvalidValueError

# By group, and how many columns this process has.
_known: WeakKeyDictionary[Any, dict[int, int]] = WeakKeyDictionary()


def first_of(group: Any, rank: int, cols: int, ask: Callable[[], Any]) -> int:
    """Return the number of the first column of process `rank` among those of the group.

    Where the columns of any process change, those of each have to, or the ones that know would not
    answer.

    Args:
        group: a process group, or a communicator.
        rank: of this process.
        cols: how many columns it has.
        ask: returns how many columns each process has, in an array in the order of the ranks.
    """
    known = _known.setdefault(group, {})
    if cols not in known:
        known[cols] = int(ask()[:rank].sum())
    return known[cols]


def start_of(offset: Any) -> int:
    """Return a caller's `offset`; raise InvalidTypeError or InvalidValueError if it is none."""
    start = whole("offset", offset)
    if not 0 <= start < 2**63:
        raise InvalidValueError(
            f"offset must be the number of the shard's first column, 0 or above, got {start}"
        )
    return start
