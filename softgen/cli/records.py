"""The records of a measurement: kept and written shape by shape, so that Ctrl-C loses none."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from softgen.cli import output

if TYPE_CHECKING:
    from softgen.bench.record import Record


def collected(
    found: Iterable[list[Record]], shapes: int, csv: Path | None
) -> tuple[list[Record], bool]:
    """Return the records, and whether Ctrl-C came before the last shape.

    Args:
        found: yields the records of each of `shapes` shapes as soon as they are there.
        shapes: how many there are.
        csv: the file that they are written to as they come, if any.
    """
    from softgen.bench.record import write_csv

    records: list[Record] = []
    try:
        for each in found:
            records += each
            if csv is not None:
                write_csv(csv, records, done=False)
    except KeyboardInterrupt:
        done = len({record.contest for record in records})
        output.warn(f"interrupted; {done} of {shapes} shapes are done and kept")
        return records, True
    finally:
        if csv is not None and records:
            write_csv(csv, records)
    return records, False
