"""What the committed CSV files under docs/ hold, as the pages' sentences ask for it."""

from __future__ import annotations

import csv
import functools
import statistics
from dataclasses import dataclass
from pathlib import Path

from softgen.bench.record import LIMIT, SOFTGEN, timed_calls
from softgen.bench.roster import others
from softgen.problems.dtypes import DType

DOCS = Path(__file__).resolve().parents[1] / "docs"
FIVE = ("llm", "online", "triton", "fastsoftmax", "oneflow")  # forward along plain rows
NOISE = 0.02  # by which a time may differ between two suites or runs


@dataclass(frozen=True)
class Call:
    """One call of a benchmark's file, with the microseconds of all that were timed on a GPU."""

    function: str
    dtype: str
    rows: int
    cols: int
    case: str
    us: dict[str, float]

    @property
    def size(self) -> str:
        """Its type and its shape, as the pages have them."""
        return f"{self.dtype} {self.case or f'{self.rows} x {self.cols}'}"

    @property
    def over_limit(self) -> float:
        """softgen's time over that of the copy, or read."""
        return self.us[SOFTGEN] / self.us[LIMIT]

    @property
    def other(self) -> str:
        """The fastest that is no softgen's."""
        return min(self.us.keys() & (others() - {LIMIT}), key=self.us.__getitem__)

    @property
    def lead(self) -> float:
        """How many times as long the fastest other takes."""
        return self.us[self.other] / self.us[SOFTGEN]

    @property
    def moved(self) -> int:
        """Bytes of x and of a result like it."""
        return 2 * self.rows * self.cols * DType(self.dtype).itemsize

    def over(self, peer: str, mine: str = SOFTGEN) -> float:
        """The time of `mine` over that of another."""
        return self.us[mine] / self.us[peer]


@functools.cache
def calls(name: str) -> tuple[Call, ...]:
    """Return the calls of docs/benchmark/<name>.csv that softgen was timed at."""
    found = []
    for timed in timed_calls(DOCS / "benchmark" / f"{name}.csv"):
        if SOFTGEN in timed:
            one = timed[SOFTGEN]
            us = {peer: record.microseconds or 0.0 for peer, record in timed.items()}
            found.append(Call(one.function, one.dtype, one.rows, one.cols, one.case, us))
    return tuple(found)


def call(name: str, size: str, function: str = "") -> Call:
    """Return the call of a file with that type and shape."""
    (found,) = [c for c in calls(name) if c.size == size and function in ("", c.function)]
    return found


def five() -> list[Call]:
    """Return the calls of the five suites."""
    return [each for name in FIVE for each in calls(name)]


def rows(path: str) -> list[dict[str, str]]:
    """Return the lines of another file under docs/."""
    with (DOCS / path).open(newline="") as file:
        return list(csv.DictReader(file))


def single() -> dict[str, str]:
    """Return the figures of docs/published/single.csv, by their keys."""
    return {row["key"]: row["value"] for row in rows("published/single.csv")}


def spread(values: list[float], digits: int = 2) -> str:
    """Return the least and the largest, in words."""
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def median(values: list[float]) -> float:
    """Return the median."""
    return statistics.median(values)
