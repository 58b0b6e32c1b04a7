"""What first guesses take beside tuned settings, where a table lacks a shape, or a device its own.

`python -m tests.first_guesses` takes no GPU. Times are those of the benchmark's CSV files, in all
versions that git has, each over the fastest copy of its run. Half of the H200's winners are left
out and guessed from the other half, and the other way round. Then the H100's are guessed from the
H200's.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import random
import re
import statistics
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from softgen.bench.record import SOFTGEN, Record, Regime, read_csv
from softgen.bench.suites import GRID
from softgen.errors import SoftgenError
from softgen.problems.arch import KNOWN, Arch
from softgen.problems.problem import Problem, rows_bucket
from softgen.strategies import winners
from softgen.strategies.variants import best_guess, parse_label
from tests.figures import DOCS

H200 = KNOWN["sm_90"]
H100 = dataclasses.replace(H200, device="NVIDIA H100 80GB HBM3")
SEED = 0


class Shape(NamedTuple):
    """What was tuned for: a problem of contiguous rows, by the names that the files have."""

    function: str
    dtype: str
    rows: int
    cols: int

    @property
    def problem(self) -> Problem:
        return Problem.of(self.function, self.dtype, self.cols)


Times = Mapping[Shape, Mapping[str, list[float]]]  # over those of a copy, by label, of each run


def plain(records: list[Record], device: str) -> Iterator[tuple[Shape, Record]]:
    """Yield the timed records of `device` of contiguous rows that nothing has just written."""
    for each in records:
        cold = each.regime is Regime.COLD and not each.case and each.suite != GRID
        if each.device == device and cold and each.ratio_to_limit:
            yield Shape(each.function, each.dtype, each.rows, each.cols), each


def tuned(device: str) -> dict[Shape, str]:
    """Return the labels of the settings that today's files have as tuned."""
    found = {}
    for path in sorted((DOCS / "benchmark").glob("*.csv")):
        for shape, record in plain(read_csv(path), device):
            with contextlib.suppress(SoftgenError):  # its strategy or a knob has changed since
                if record.peer == SOFTGEN and parse_label(record.note):
                    found[shape] = record.note
    return found


def all_times(device: str) -> Times:
    """Return the times in all committed files: by label, and by label without pdl."""
    found: dict[Shape, dict[str, list[float]]] = collections.defaultdict(
        lambda: collections.defaultdict(list)
    )
    listed = git("rev-list", "--objects", "HEAD", "--", "docs/benchmark").splitlines()
    with tempfile.TemporaryDirectory() as folder:
        for blob in (line.split()[0] for line in listed if line.endswith(".csv")):
            path = Path(folder, "records.csv")
            path.write_text(git("cat-file", "blob", blob))
            with contextlib.suppress(SoftgenError):  # of another form
                for shape, record in plain(read_csv(path), device):
                    for label in {record.note, without_pdl(record.note)}:
                        found[shape][label].append(record.ratio_to_limit or 0.0)
    return found


def git(*arguments: str) -> str:
    return subprocess.run(
        ("git", *arguments), cwd=DOCS.parent, check=True, capture_output=True, text=True
    ).stdout


def without_pdl(label: str) -> str:
    return re.sub(r"_pdl\d$", "", label)


@contextlib.contextmanager
def table_of(kept: Mapping[Shape, str]) -> Iterator[None]:
    """Let these winners be all that is shipped for the H200."""
    entries = [
        {"variant": f"{shape.problem.label}_{label}", "rows": rows_bucket(shape.rows)}
        for shape, label in kept.items()
    ]
    shipped = winners.DIRECTORY
    with tempfile.TemporaryDirectory() as folder:
        winners.DIRECTORY = Path(folder)
        winners._winners.cache_clear()
        text = json.dumps({"schema": winners.SCHEMA, "device": H200.device, "entries": entries})
        winners.path_of(H200.device).write_text(text)
        try:
            yield
        finally:
            winners.DIRECTORY = shipped
            winners._winners.cache_clear()


def guessed(
    wanted: Iterable[Shape], known: Mapping[Shape, str], arch: Arch, times: Times
) -> list[tuple[float, float]]:
    """Return the times of the best guess and of the table's over the tuned one; 0 if not on record.

    One of each shape for which the table has a guess.
    """
    found = []
    for shape in wanted:
        bucket = rows_bucket(shape.rows)
        if near := winners.near(shape.problem, bucket, arch):
            guess = best_guess(shape.problem, bucket, arch)
            labels = guess.strategy.label, near.variant.strategy.label
            took = time_of(known[shape], times[shape])
            model, table = (time_of(label, times[shape]) / took for label in labels)
            found.append((model, table))
    return found


def tell(title: str, shapes: int, found: Sequence[tuple[float, float]]) -> None:
    """Print how far the guesses are from what was tuned."""
    recorded = [table for _, table in found if table]
    both = [pair for pair in found if all(pair)]
    print(f"{title}: {shapes} shapes, for {len(found)} of them the table has a guess")
    print(f"  time of the table's on record  {spread(recorded)}")
    print(f"  both times on record, table's  {spread([table for _, table in both])}")
    print(f"  the same shapes, best guess    {spread([model for model, _ in both])}")


def spread(ratios: Sequence[float]) -> str:
    ordered = sorted(ratios)
    return (
        f"{len(ordered):3} of tuned: median {statistics.median(ordered):.3f}, "
        f"90% {ordered[int(0.9 * len(ordered))]:.3f}, worst {ordered[-1]:.3f}"
    )


def time_of(label: str, times: Mapping[str, list[float]]) -> float:
    """Return the median over the runs; without pdl where that label has none; 0 if neither has."""
    found = times.get(label) or times.get(without_pdl(label))
    return statistics.median(found) if found else 0.0


def main() -> None:
    known, times = tuned(H200.device), all_times(H200.device)
    buckets = {(s.function, s.dtype, rows_bucket(s.rows), s.cols): s for s in known}
    shapes = sorted(buckets.values())
    random.Random(SEED).shuffle(shapes)
    halves = shapes[::2], shapes[1::2]
    found = []
    for kept, left_out in (halves, halves[::-1]):
        with table_of({shape: known[shape] for shape in kept}):
            found += guessed(left_out, known, H200, times)
    tell("H200, half of its winners left out", len(shapes), found)
    theirs = tuned(H100.device)
    with table_of(known):
        found = guessed(theirs, theirs, H100, all_times(H100.device))
    tell("H100, by the H200's winners", len(theirs), found)


if __name__ == "__main__":
    main()
