"""Tuned winners that come with softgen: a JSON file a device, for what the user's cache lacks.

A winner is kept by the name of its variant, and counts as long as the name parses and is legal. It
is not tied to the digest of the templates, as entries of the cache are: edits rarely change which
variant is fastest, and would throw away what only a maintainer with that GPU can make again.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import re
from pathlib import Path
from typing import Any

from softgen.arch import MIB, Arch
from softgen.entry import Entry, rows_bucket
from softgen.errors import InvalidValueError, SoftgenError
from softgen.problem import Algorithm, Problem
from softgen.strategies import Strategy
from softgen.variants import Variant, parse_name

SCHEMA = 1
DIRECTORY = Path(__file__).resolve().parent / "tables"

# Bytes read and written from which on more rows of a width have the same winner, but for the noise:
# at float32 128 x 4096 (4 MB) and 4096 x 4096 the winners differ, at 128 x 131072 they do not.
LARGE = 128 * MIB

log = logging.getLogger("softgen")


def winner(problem: Problem, rows: int, arch: Arch) -> Variant | None:
    """Return the shipped winner for `rows` rows on the device of `arch`; None if there is none.

    Log-softmax moves the same bytes with the same launch as softmax, and takes its winner where it
    has none of its own.
    """
    known = _winners(arch.device)
    bucket = rows_bucket(rows)
    for algorithm in (problem.algorithm, Algorithm.SOFTMAX):
        setting = known.get((dataclasses.replace(problem, algorithm=algorithm), bucket))
        if setting is not None and setting.is_legal(problem, arch):
            return Variant(problem, setting)
    return None


def winner_for_any_rows(problem: Problem, arch: Arch) -> Variant | None:
    """Return the shipped winner of the most rows, if they are so many that the memory decides."""
    known = _winners(arch.device)
    for algorithm in (problem.algorithm, Algorithm.SOFTMAX):
        wanted = dataclasses.replace(problem, algorithm=algorithm)
        rows = [r for p, r in known if p == wanted and r * p.bytes_per_row >= LARGE]
        setting = known[wanted, max(rows)] if rows else None
        if setting is not None and setting.is_legal(problem, arch):
            return Variant(problem, setting)
    return None


def path_of(device: str) -> Path:
    """Return the file for the device of that name, which need not exist."""
    slug = re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_")
    return DIRECTORY / f"{slug}.json"


@functools.cache
def _winners(device: str) -> dict[tuple[Problem, int], Strategy]:
    """Return the shipped settings of `device` by problem and bucket of rows."""
    path = path_of(device)
    found: dict[tuple[Problem, int], Strategy] = {}
    try:
        data: Any = json.loads(path.read_text())
        if data["schema"] != SCHEMA or data["device"] != device:
            return found
        entries = [(entry["variant"], entry["rows"]) for entry in data["entries"]]
    except FileNotFoundError:
        return found
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("ignoring the table of tuned winners %s: %r", path, error)
        return found
    for name, rows in entries:
        try:
            variant = parse_name(name)
        except SoftgenError:  # its strategy or a knob has changed since
            continue
        found[variant.problem, rows] = variant.strategy
    return found


def text_of(entries: list[Entry]) -> str:
    """Return the table of tuned `entries`, an entry a line.

    Raises InvalidValueError unless all are of one device and one version of everything.
    """
    if not entries:
        raise InvalidValueError("the cache holds no tuned choices; `softgen tune` makes some")
    environments = {entry.key.environment for entry in entries}
    if len(environments) != 1:
        raise InvalidValueError(
            f"a table is for one device and one version of softgen, compiler and driver, and the "
            f"cache holds choices of {len(environments)}; tune into an empty SOFTGEN_CACHE_DIR"
        )
    made_with = dict(environments.pop())
    device = made_with.pop("device", "unknown")
    lines = [json.dumps(_line(entry)) for entry in sorted(entries, key=_order)]
    head = json.dumps({"schema": SCHEMA, "device": device, "made_with": made_with}, indent=1)
    return head.removesuffix("\n}") + ',\n "entries": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"


def _line(entry: Entry) -> dict[str, Any]:
    name = entry.winner.name
    time = next((t.microseconds for t in entry.timings if t.variant == name), None)
    return {
        "variant": name,
        "rows": entry.key.rows,
        "microseconds": round(time, 3) if time else None,
    }


def _order(entry: Entry) -> tuple[str, int, int, int]:
    problem = entry.key.problem
    return problem.function, problem.cols, -problem.alignment, entry.key.rows
