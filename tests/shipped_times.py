"""What the shipped winners took beside the first guess and a copy, by the benchmark's CSV files.

A table of winners has the time of each when it was tuned. Where a committed benchmark timed that
very kernel beside the first guess and the fastest copy, its line has those times too, as `beside`:
`softgen explain` compares them. `python -m tests.shipped_times` writes them into the tables.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from softgen.bench.record import LIMIT, SOFTGEN, Record, Regime, read_csv
from softgen.bench.suites import GRID
from softgen.problems.arch import KNOWN, Arch
from softgen.problems.problem import Problem, rows_bucket
from softgen.strategies import winners
from softgen.strategies.variants import best_guess
from tests.figures import DOCS

UNTUNED = "softgen-untuned"


def written(text: str) -> str:
    """Return a table with the times that the CSV files have, in its own form."""
    data = json.loads(text)
    found = dict(_beside(arch_of(data)))
    lines = []
    for entry in data.pop("entries"):
        entry.pop("beside", None)
        times = found.get((entry["variant"], entry["rows"]))
        lines.append(json.dumps(entry | ({"beside": times} if times else {})))
    head = json.dumps(data, indent=1)
    return head.removesuffix("\n}") + ',\n "entries": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"


def arch_of(data: dict[str, Any]) -> Arch:
    """Return the device that a table is of."""
    made = data["made_with"]
    sms = made["multiprocessors"]
    return dataclasses.replace(KNOWN[made["arch"]], device=data["device"], multiprocessors=sms)


def _beside(arch: Arch) -> Iterator[tuple[tuple[str, int], dict[str, Any]]]:
    """Yield the times of all kernels that were timed on a device, by name and bucket of rows."""
    for path in sorted((DOCS / "benchmark").glob("*.csv")):
        contests: dict[object, dict[str, Record]] = {}
        for record in read_csv(path):
            plain = record.regime is Regime.COLD and not record.case and record.suite != GRID
            if record.device == arch.device and plain:
                contests.setdefault(record.contest, {})[record.peer] = record
        for peers in contests.values():
            if SOFTGEN in peers and LIMIT in peers:
                yield _times(peers, arch)


def _times(peers: dict[str, Record], arch: Arch) -> tuple[tuple[str, int], dict[str, Any]]:
    mine, guess = peers[SOFTGEN], peers.get(UNTUNED)
    problem = Problem.of(mine.function, mine.dtype, mine.cols)
    bucket = rows_bucket(mine.rows)
    # What was the first guess then may be another today.
    stands = guess and guess.note == best_guess(problem, bucket, arch).strategy.label
    return (f"{problem.label}_{mine.note}", bucket), {
        "microseconds": mine.microseconds,
        "rows": mine.rows,
        "guess": guess.microseconds if guess and stands else None,
        "copy": peers[LIMIT].microseconds,
    }


def tables() -> list[Path]:
    """Return the tables that come with softgen."""
    return sorted(winners.DIRECTORY.glob("*.json"))


if __name__ == "__main__":
    for path in tables():
        path.write_text(written(path.read_text()))
