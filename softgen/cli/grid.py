"""`softgen tune --strategy NAME --grid FILE`: a search over the settings of one strategy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from softgen.bench.shape import Shape
from softgen.bench.suites import GRID
from softgen.cli import options, output
from softgen.cli.group import INTERRUPTED, WRONG_RESULT
from softgen.cli.records import collected
from softgen.problems.dtypes import DType, FloatType
from softgen.problems.functions.base import Function
from softgen.strategies.registry import strategy_named

if TYPE_CHECKING:
    from rich.progress import TaskID

    from softgen.bench.record import Record

SHOWN = 10  # of the fastest settings at a shape; the file has all


def require_search(
    strategy: str | None, path: Path | None, *, budget: float | None, out_dtype: FloatType | None
) -> str | None:
    """Return the strategy that is to be searched, None if nothing is.

    Raises BadParameter unless --strategy and --grid are given together and without the options of a
    tuning, InvalidValueError for an unknown strategy or a file that cannot be written.
    """
    if (strategy is None) != (path is None):
        raise typer.BadParameter(
            "--strategy and --grid go together: every setting of the strategy is timed, and the "
            "file gets the figures"
        )
    if strategy is None or path is None:
        return None
    if budget is not None:
        raise typer.BadParameter("--budget cannot be given with --grid, which times every setting")
    if out_dtype is not None:
        raise typer.BadParameter("--grid times results of the type of x; leave --out-dtype out")
    strategy_named(strategy)
    options.require_new_file("--grid", path, ".csv")
    if path.suffix.lower() != ".csv":
        raise typer.BadParameter(f"{path} is no .csv file, and the figures are CSV")
    return strategy


def search_all(
    wanted: Sequence[tuple[Function, DType, int, int]], strategy: str, path: Path, json: bool
) -> None:
    """Time every setting of `strategy`; write the figures, draw them, print the best.

    Ctrl-C keeps the shapes that are finished.

    Args:
        wanted: function, element type, rows and columns of each shape.
        strategy: its name.
        path: the CSV file.
        json: whether one JSON document is printed, and not a table.
    """
    from softgen.bench.record import Status

    shapes = [Shape(GRID, kind, rows, cols, function=f) for f, kind, rows, cols in wanted]
    records, interrupted = _measure(shapes, strategy, path)
    if records:
        output.note(f"wrote {path}")
        _draw(records, path.with_suffix(".png"))
    if json:
        output.document([record.as_document() for record in records])
    elif records:
        show(records)
    wrong = [record.peer for record in records if record.status is Status.WRONG]
    if wrong:
        output.fail(f"softgen computed a wrong result: {', '.join(wrong)}")
        raise typer.Exit(WRONG_RESULT)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _measure(shapes: Sequence[Shape], strategy: str, path: Path) -> tuple[list[Record], bool]:
    """Return the records, and whether Ctrl-C came before the last shape."""
    from softgen.bench import grid

    with output.bars() as bars:

        def found() -> Iterator[list[Record]]:
            for shape in shapes:
                bar = bars.add_task(f"{strategy} {shape.rows}x{shape.cols}", total=None)

                def progress(done: int, total: int, bar: TaskID = bar) -> None:
                    bars.update(bar, completed=done, total=total)

                yield grid.search(shape, strategy, progress)

        return collected(found(), len(shapes), path)


def _draw(records: Sequence[Record], picture: Path) -> None:
    from softgen.bench.plot import draw, require_matplotlib
    from softgen.errors import MissingDependencyError

    try:
        require_matplotlib()
    except MissingDependencyError:
        output.note(
            f"no heat map, as matplotlib is not installed; where it is, `softgen bench --from "
            f"{picture.with_suffix('.csv')} --plot {picture}` draws it"
        )
        return
    if any(record.microseconds for record in records):
        draw(records, picture)
        output.note(f"wrote {picture}")


def show(records: Sequence[Record]) -> None:
    """Print the fastest settings of each shape that was searched, beside the fastest copy."""
    from softgen.bench.record import LIMIT

    lines: list[tuple[object, ...]] = []
    for contest in dict.fromkeys((record.origin, record.contest) for record in records):
        mine = [r for r in records if (r.origin, r.contest) == contest and r.microseconds]
        settings = [record for record in mine if record.peer != LIMIT]
        settings.sort(key=lambda record: record.microseconds or 0.0)
        for record in [r for r in mine if r.peer == LIMIT] + settings[:SHOWN]:
            lines.append(
                (
                    *(record.peer, record.function, record.dtype, record.rows, record.cols),
                    *(record.microseconds, record.gigabytes_per_second),
                    record.ratio_to_limit if record.ratio_to_limit is not None else "-",
                )
            )
    heads = ("setting", "function", "dtype", "rows", "cols", "us", "GB/s", "time / limit")
    output.table(heads, lines)
