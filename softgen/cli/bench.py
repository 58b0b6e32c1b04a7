"""`softgen bench`: softgen, other libraries and a copy of the same bytes, timed side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softgen.cli import bench_table, grid, options, output
from softgen.cli.group import INTERRUPTED, WRONG_RESULT
from softgen.cli.numbers import number_option
from softgen.cli.records import collected
from softgen.cli.shapes import parse_shape
from softgen.disk import outputs
from softgen.errors import InvalidValueError
from softgen.problems.dtypes import DType
from softgen.problems.functions.base import Function
from softgen.problems.functions.softmax import SOFTMAX

if TYPE_CHECKING:
    from softgen.bench.race import Settings
    from softgen.bench.record import Record
    from softgen.bench.shape import Shape

DEFAULT_SUITES = ["llm"]


def bench(
    suite: Annotated[
        list[str] | None,
        options.suite_option(
            "triton, fastsoftmax, online, oneflow, packs, llm, logsumexp, short, compiled, "
            "drawn, axes, hooks, views, backward, losses, routing, topk or sample; repeatable."
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        options.shape_option(", with --dtype; repeatable."),
    ] = None,
    dtype: Annotated[
        DType | None,
        options.dtype_option("Type of --shape, float32 by default; with --suite only this type."),
    ] = None,
    function: options.SuiteFunction = None,
    peers: Annotated[
        str | None,
        typer.Option(
            "--peers",
            metavar="LIST",
            help="Competitors, for example torch,quack,ladder: libraries, and any variant by its "
            "name (docs/sources.md). softgen-again, softgen-exhaustive and softgen-invariant tell "
            "how far to trust a run. \\[default: softgen, its first guess, oneflow, the libraries "
            "and those of a suite; softgen-again too in suite drawn]",
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv",
            metavar="FILE",
            help="Write every figure to this file, each as soon as it is measured.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw GB/s over columns into this PNG file."),
    ] = None,
    source: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Measure nothing; report on a file of --csv or of `tune --grid`. Repeatable.",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        number_option(
            "--seconds",
            least=0.001,
            help="Seconds that a competitor is timed for at a shape. \\[default: 0.2]",
            hidden=True,
        ),
    ] = None,
    setup_seconds: Annotated[
        float | None,
        number_option(
            "--setup-seconds",
            least=0,
            help="Seconds in a suite that a competitor may spend on compiling, if it compiles for "
            "every shape. \\[default: 120]",
            hidden=True,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Time only every eighth width of the triton suite.")
    ] = False,
    warm: Annotated[
        bool,
        typer.Option(
            "--warm",
            help="Time each competitor between a kernel that writes its input and one that reads "
            "its output.",
            hidden=True,
        ),
    ] = False,
    chained: Annotated[
        bool,
        typer.Option(
            "--chained",
            help="Time chains: each launch reads what the launch before has written.",
            hidden=True,
        ),
    ] = False,
    json: options.JsonOption = False,
) -> None:
    """Time softgen against every other softmax that is installed, and against the fastest copy.

    All competitors of a shape share one run, the same random data and the same allocated outputs.
    Each is checked against float64 before it is timed. For functions that write one number a row,
    such as logsumexp, the fastest read takes the place of the copy. Ctrl-C keeps what is finished.
    """
    if csv is not None:
        options.require_new_file("--csv", csv, ".csv")
    if plot is not None:
        options.require_new_file("--plot", plot, ".png")
        from softgen.bench.plot import require_matplotlib

        if plot.suffix.lower() != ".png":
            raise typer.BadParameter(f"{plot} is no .png file, and plots are PNG")
        require_matplotlib()
    if csv is not None and plot is not None:
        outputs.require_apart({"--csv": csv, "--plot": plot})
    if source:
        timed = seconds is not None or setup_seconds is not None
        if shape or dtype or peers or quick or warm or chained or timed:
            raise typer.BadParameter(
                "--from measures nothing: it goes with --suite, --function, --csv, --plot, --json"
            )
        from softgen.bench.record import write_csv

        records, interrupted = _read(source, suite, function), False
        if csv is not None:
            write_csv(csv, records)
    else:
        if warm and chained:
            raise typer.BadParameter("give --warm or --chained: each is a regime of its own")
        wanted = _shapes(suite, shape, dtype, function, quick)
        names = _names(peers)
        options.require_gpu()
        how = _settings(seconds, setup_seconds, warm, chained)
        records, interrupted = _measure(wanted, names, how, csv)
    _report(records, plot, json, interrupted)


def _shapes(
    suites: list[str] | None,
    texts: list[str] | None,
    dtype: DType | None,
    function: Function | None,
    quick: bool,
) -> list[Shape]:
    from softgen.bench.shape import Shape
    from softgen.bench.suites import CUSTOM, shapes_of

    if suites is None and texts is None:
        suites = DEFAULT_SUITES
    custom = [
        Shape(
            *(CUSTOM, dtype or DType.FLOAT32, *parse_shape(text, "--shape")),
            function=function or SOFTMAX,
        )
        for text in texts or []
    ]
    found = shapes_of(suites or [], quick, function)
    chosen = [each for each in found if dtype in (None, each.dtype)]
    if found and not chosen:
        there = ", ".join(dict.fromkeys(each.dtype.value for each in found))
        raise typer.BadParameter(f"no shape of {', '.join(suites or [])} is {dtype}, only {there}")
    return chosen + custom


def _names(peers: str | None) -> list[str] | None:
    from softgen.bench.roster import named_peers

    if peers is None:
        return None
    names = [name.strip() for name in peers.split(",") if name.strip()]
    named_peers(names)  # refuses unknown names before anything is measured
    return names


def _settings(
    seconds: float | None, setup_seconds: float | None, warm: bool, chained: bool
) -> Settings:
    from softgen.bench.race import Settings
    from softgen.bench.record import Regime

    regime = Regime.WARM if warm else Regime.CHAINED if chained else Regime.COLD
    asked = {"seconds": seconds, "setup_seconds": setup_seconds}
    return Settings(**{name: n for name, n in asked.items() if n is not None}, regime=regime)


def _read(
    paths: Sequence[Path], suites: list[str] | None, function: Function | None
) -> list[Record]:
    from softgen.bench.record import read_csv
    from softgen.bench.suites import CUSTOM, GRID, suite_named

    for name in suites or []:
        if name not in (CUSTOM, GRID):
            suite_named(name)  # refuses an unknown one
    records = _once([record for path in paths for record in read_csv(path)])
    if function is not None:
        known = dict.fromkeys(record.function for record in records)
        if records and function.name not in known:
            raise InvalidValueError(
                f"{', '.join(map(str, paths))}: nothing of function {function}, only of "
                f"{', '.join(known)}"
            )
        records = [record for record in records if record.function == function.name]
    there = dict.fromkeys(record.suite for record in records)
    if missing := [name for name in suites or [] if name not in there]:
        raise InvalidValueError(
            f"{', '.join(map(str, paths))}: nothing of suite {', '.join(missing)}, only of "
            f"{', '.join(there) or 'none'}"
        )
    return [record for record in records if not suites or record.suite in suites]


def _once(records: Sequence[Record]) -> list[Record]:
    """Return one record of each competitor, contest and device: the later one if there are two."""
    found: dict[tuple[object, ...], Record] = {}
    replaced = 0
    for record in records:
        key = (record.origin, record.contest, record.peer)
        replaced += found.setdefault(key, record) != record
        found[key] = record
    if replaced:
        output.note(
            f"{replaced} {'figure was' if replaced == 1 else 'figures were'} measured twice on one "
            "device; the later is taken"
        )
    return list(found.values())


def _measure(
    shapes: Sequence[Shape],
    names: list[str] | None,
    settings: Settings,
    csv: Path | None,
) -> tuple[list[Record], bool]:
    """Return the records, and whether Ctrl-C came before the last."""
    from softgen.bench.race import run
    from softgen.bench.roster import peers_for

    with output.bars("{task.fields[doing]}") as bars:
        bar = bars.add_task("shapes", total=len(shapes), doing="")

        def report(message: str) -> None:
            bars.update(bar, doing=message)

        def found() -> Iterator[list[Record]]:
            for records in run(shapes, partial(peers_for, names=names), settings, report):
                yield records
                bars.advance(bar)

        return collected(found(), len(shapes), csv)


def _report(records: list[Record], plot: Path | None, json: bool, interrupted: bool) -> None:
    from softgen.bench.record import Status
    from softgen.bench.suites import GRID

    if plot is not None and (records or not interrupted):
        from softgen.bench.plot import draw

        draw(records, plot)
        output.note(f"wrote {plot}")
    if json:
        output.document([record.as_document() for record in records])
    else:
        searched = [record for record in records if record.suite == GRID]
        others = [record for record in records if record.suite != GRID]
        if others or not searched:
            bench_table.show(others)
        if searched:
            grid.show(searched)
    wrong = sorted(
        {
            f"{r.peer}{r.of_function}"
            for r in records
            if r.status is Status.WRONG and bench_table.own(r)
        }
    )
    if wrong:
        output.fail(f"softgen computed a wrong result: {', '.join(wrong)}")
        raise typer.Exit(WRONG_RESULT)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
