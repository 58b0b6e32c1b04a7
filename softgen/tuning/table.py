"""Writes the table of one device's tuned winners, which strategies/winners.py reads."""

from __future__ import annotations

import json
from typing import Any

from softgen.errors import InvalidValueError
from softgen.strategies.winners import SCHEMA
from softgen.tuning.entry import Entry


def text_of(entries: list[Entry]) -> str:
    """Return the table of tuned `entries`, an entry a line.

    Raises InvalidValueError unless all are of one device and one version of everything, today's.
    """
    if not entries:
        raise InvalidValueError("the cache holds no tuned choices; `softgen tune` makes some")
    environments = {entry.key.environment for entry in entries}
    if len(environments) != 1:
        raise InvalidValueError(
            f"a table is for one device and one version of softgen, compiler and driver, and the "
            f"cache holds choices of {len(environments)}; tune into an empty SOFTGEN_CACHE_DIR"
        )
    stale = [entry.winner.name for entry in entries if not entry.is_current]
    if stale:
        raise InvalidValueError(
            f"the text of {stale[0]} has changed since it was timed ({len(stale)} such choices); "
            "tune into an empty SOFTGEN_CACHE_DIR"
        )
    made_with = dict(environments.pop())
    device = made_with.pop("device", "unknown")
    lines = [json.dumps(_line(entry)) for entry in sorted(entries, key=_order)]
    head = json.dumps({"schema": SCHEMA, "device": device, "made_with": made_with}, indent=1)
    return head.removesuffix("\n}") + ',\n "entries": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"


def _line(entry: Entry) -> dict[str, Any]:
    time = entry.microseconds
    return {
        "variant": entry.winner.name,
        "rows": entry.key.rows,
        "microseconds": round(time, 3) if time else None,
    }


def _order(entry: Entry) -> tuple[str, int, int, int]:
    problem = entry.key.problem
    return problem.stem, problem.cols, -problem.alignment, entry.key.rows
