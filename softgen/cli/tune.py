"""`softgen tune`: time the candidates for the shapes that matter, once, before they are needed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softgen.bench.suites import shapes_of
from softgen.cli import candidates, options, output
from softgen.cli.grid import require_search, search_all
from softgen.cli.group import INTERRUPTED
from softgen.errors import InvalidValueError
from softgen.spec.dtypes import DType
from softgen.spec.functions.softmax import SOFTMAX
from softgen.spec.layouts import layout_behind
from softgen.spec.problem import MAX_COLS, MAX_ROWS, Problem
from softgen.strategies.select import describe as describe_problem

if TYPE_CHECKING:
    from softgen.tuning.entry import Entry
    from softgen.tuning.explain import Explanation

Shape = tuple[int, int]
_SHAPE = re.compile(r"\s*(\d{1,20})\s*[x,*\s]\s*(\d{1,20})\s*")


def tune(
    shape: Annotated[
        list[str] | None, typer.Option("--shape", help="ROWSxCOLS, as 4096x1024; may be repeated.")
    ] = None,
    shapes: Annotated[
        Path | None, typer.Option("--shapes", help="File with one ROWSxCOLS a line; # comments.")
    ] = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(
            "--suite",
            help="Suite of `softgen bench`, in its dtype and of its function; may be repeated.",
        ),
    ] = None,
    dtype: options.DTypeOption = DType.FLOAT32,
    function: options.SuiteFunction = None,
    out_dtype: options.OutDType = None,
    inner: options.InnerOption = 1,
    hooks: options.HooksOption = None,
    budget: Annotated[
        float | None,
        typer.Option("--budget", min=0.01, help="Seconds a shape. \\[default: all that may win]"),
    ] = None,
    with_candidates: Annotated[
        bool,
        typer.Option(
            "--candidates",
            help="Print of each shape what every candidate took and was expected to.",
        ),
    ] = False,
    strategy: Annotated[
        str | None,
        typer.Option("--strategy", help="With --grid: the strategy to search; lessons as well."),
    ] = None,
    grid: Annotated[
        Path | None,
        typer.Option(
            "--grid",
            help="Remember nothing: time every legal setting of --strategy, write the figures to "
            "this CSV file and a heat map beside it.",
        ),
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """Time the candidates for each shape on this GPU and remember the winners.

    Ctrl-C keeps what is finished: every shape is stored as soon as it is done.
    """
    sizes = [parse_shape(text, "--shape") for text in shape or []]
    sizes += read_shapes(shapes) if shapes is not None else []
    wanted = [(function or SOFTMAX, dtype, rows, cols) for rows, cols in sizes]
    # A suite's shapes have its function, unless one is asked for.
    of_suites = shapes_of(suite or [], function=function)
    wanted += [(each.function, each.dtype, each.rows, each.cols) for each in of_suites]
    if not wanted:
        raise typer.BadParameter("give at least one --shape ROWSxCOLS, --shapes FILE or --suite")
    if inner > 1 and (suite or grid is not None):
        raise typer.BadParameter("--inner goes with --shape and --shapes, without --grid")
    if hooks and grid is not None:
        raise typer.BadParameter("--hook goes without --grid, which searches kernels without hooks")
    layout = layout_behind(inner)
    problems = [
        (
            Problem.of(each, kind, cols, out_dtype=out_dtype, hooks=hooks or (), layout=layout),
            rows,
        )
        for each, kind, rows, cols in wanted
    ]
    searched = require_search(strategy, grid, budget=budget, out_dtype=out_dtype)
    options.require_gpu()
    if searched is not None and grid is not None:
        return search_all(wanted, searched, grid, json)

    finished: list[Entry] = []
    interrupted = False
    try:
        for problem, rows in problems:
            finished.append(_tune_one(problem, rows, budget))
    except KeyboardInterrupt:
        interrupted = True
        output.warn(f"interrupted; {len(finished)} of {len(problems)} shapes are tuned and stored")
    lines = [describe(entry, rows) for entry, (_, rows) in zip(finished, problems, strict=False)]
    tables = [_candidates(entry) for entry in finished] if with_candidates else []
    if json:
        found = map(candidates.document, tables)
        output.document([*map(_with_table, lines, found)] if with_candidates else lines)
    else:
        output.table(lines[0].keys() if lines else (), (line.values() for line in lines))
        for table in tables:
            output.result("")
            output.result(describe_problem(table.winner.problem))
            candidates.show(table)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def parse_shape(text: str, origin: str) -> Shape:
    """Return (rows, cols) of a text such as 4096x1024."""
    match = _SHAPE.fullmatch(text)
    rows, cols = (int(match[1]), int(match[2])) if match else (0, 0)
    if not (1 <= rows <= MAX_ROWS and 1 <= cols <= MAX_COLS):
        given = text if len(text) <= 80 else f"{text[:80]}..."
        raise InvalidValueError(
            f"{origin}: {given!r} is not a shape; write ROWSxCOLS with two positive numbers up to "
            "2**40, for example 4096x1024"
        )
    return rows, cols


def read_shapes(path: Path) -> list[Shape]:
    """Return the shapes of a file, one a line; blank lines and # comments do not count."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValueError(f"--shapes: cannot read {path}: {error}") from error
    texts = [(number, line.partition("#")[0].strip()) for number, line in enumerate(lines, 1)]
    return [parse_shape(text, f"{path}, line {number}") for number, text in texts if text]


def describe(entry: Entry, rows: int) -> dict[str, Any]:
    """Return what is printed of one tuned shape."""
    problem, name = entry.key.problem, entry.winner.name
    # An imported entry may lack the winner's time.
    time = next((t.microseconds for t in entry.timings if t.variant == name), None)
    return {
        "function": problem.function.name,
        "dtype": problem.dtype.value,
        "rows": rows,
        "cols": problem.cols,
        "variant": name,
        "microseconds": round(time, 3) if time else None,
        "gigabytes_per_second": round(rows * problem.bytes_per_row / time / 1e3, 1)
        if time
        else None,
        "candidates": len(entry.timings),
    }


def _candidates(entry: Entry) -> Explanation:
    """Return what the winner was chosen from."""
    from softgen.devices.gpu.device import current_arch
    from softgen.tuning.explain import explain

    return explain(entry.key.problem, entry.rows, current_arch(), entry.winner, entry)


def _with_table(line: dict[str, Any], table: list[dict[str, Any]]) -> dict[str, Any]:
    return {**line, "table": table}


def _tune_one(problem: Problem, rows: int, budget: float | None) -> Entry:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from softgen.tuning.tune import Progress as Step
    from softgen.tuning.tune import tune as tune_shape

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TextColumn("{task.fields[best]}"), console=output.console()) as bars:
        bar = bars.add_task(f"{problem.function} {rows}x{problem.cols}", total=None, best="")

        def show(step: Step) -> None:
            rate = step.gigabytes_per_second
            best = f"{rate:.0f} GB/s {step.best}" if rate else ""
            bars.update(bar, completed=step.done, total=step.total, best=best)

        return tune_shape(problem, rows, budget=budget, progress=show)
