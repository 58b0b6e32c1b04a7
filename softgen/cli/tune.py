"""`softgen tune`: time the candidates for the shapes that matter, once, before they are needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softgen.bench.suites import shapes_of
from softgen.cli import candidates, options, output
from softgen.cli.gpus import gpu_of, parse_gpus, resolve_gpus
from softgen.cli.grid import require_search, search_all
from softgen.cli.group import INTERRUPTED, code_of
from softgen.cli.numbers import number_option
from softgen.cli.problem_options import ProblemOptions
from softgen.cli.shapes import parse_shape, read_shapes
from softgen.cli.shard import shard_of
from softgen.cli.tuner import Tuned, tune_here, tune_on, tune_on_ray
from softgen.problems.dtypes import DType
from softgen.problems.functions.softmax import SOFTMAX
from softgen.strategies.select import describe as describe_problem
from softgen.tuning.work_queue import Task

if TYPE_CHECKING:
    from softgen.tuning.entry import Entry
    from softgen.tuning.explain import Explanation


@dataclass(frozen=True)
class TuneOptions(
    ProblemOptions,
    without=(
        *("cols", "alignment", "rows", "arch", "sms", "variant"),
        *("batch_invariant", "strided", "sharded"),
    ),
):
    """Those of `softgen tune`, whose shapes come from several places."""

    dtype: options.DTypeOption = DType.FLOAT32
    function: options.SuiteFunction = None


def tune(
    *,
    shape: Annotated[list[str] | None, options.shape_option("; repeatable.")] = None,
    shapes: Annotated[
        Path | None,
        typer.Option(
            "--shapes", metavar="FILE", help="Text file with one RxC a line; # begins a comment."
        ),
    ] = None,
    suite: Annotated[
        list[str] | None,
        options.suite_option("Shapes of a suite of `softgen bench`, with its types; repeatable."),
    ] = None,
    given: TuneOptions,
    budget: Annotated[
        float | None,
        number_option(
            "--budget", least=0.01, help="Seconds for each shape. \\[default: as long as it takes]"
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus",
            metavar="LIST",
            help="GPUs of this machine that share the shapes, for example 0,1; or all. "
            "\\[default: one GPU]",
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard",
            metavar="RANK/WORLD",
            help="Tune this part of the shapes, for example 0/8. \\[default: the part that "
            "torchrun or srun gives this process, which takes one GPU]",
            hidden=True,
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Share the shapes among the free GPUs of a Ray cluster, or of this machine with "
            "`local`; the choices are stored here.",
            hidden=True,
        ),
    ] = None,
    with_candidates: Annotated[
        bool,
        typer.Option(
            "--candidates",
            help="Print the measured and the expected time of every candidate of each shape.",
        ),
    ] = False,
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="Strategy that --grid searches; one of the lessons too.",
            hidden=True,
        ),
    ] = None,
    grid: Annotated[
        Path | None,
        typer.Option(
            "--grid",
            metavar="FILE",
            hidden=True,
            help="Time every legal setting of --strategy and store no choice. This CSV file gets "
            "the figures, and a heat map is drawn beside it.",
        ),
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """Time the candidates for each shape on this GPU, or on several, and remember the winners.

    Ctrl-C keeps what is finished: every shape is stored as soon as it is done.
    """
    sizes = [parse_shape(text, "--shape") for text in shape or []]
    sizes += read_shapes(shapes) if shapes is not None else []
    wanted = [(given.function or SOFTMAX, given.dtype, rows, cols) for rows, cols in sizes]
    # A suite's shapes have its function, unless one is asked for.
    of_suites = shapes_of(suite or [], function=given.function)
    wanted += [(each.function, each.dtype, each.rows, each.cols) for each in of_suites]
    if not wanted:
        raise typer.BadParameter("give at least one --shape ROWSxCOLS, --shapes FILE or --suite")
    if given.layout.step > 1 and (suite or grid is not None):
        raise typer.BadParameter("--inner goes with --shape and --shapes, without --grid")
    if given.hooks and grid is not None:
        raise typer.BadParameter("--hook goes without --grid, which searches kernels without hooks")
    tasks = [
        Task(number, given.problem_of(each, kind, cols), rows)
        for number, (each, kind, rows, cols) in enumerate(wanted)
    ]
    searched = require_search(strategy, grid, budget=budget, out_dtype=given.out_dtype)
    if grid is not None and (gpus is not None or shard is not None):
        raise typer.BadParameter("--gpus and --shard go without --grid, which searches on one GPU")
    if grid is not None and with_candidates:
        raise typer.BadParameter("--candidates goes without --grid, whose file has every setting")
    if ray is not None:
        beside = {"--gpus": gpus, "--shard": shard, "--grid": grid}
        barred = [name for name, value in beside.items() if value is not None]
        barred += ["--candidates"] * with_candidates
        if barred:
            raise typer.BadParameter(
                "--ray shares all shapes among the free GPUs of a cluster; leave out "
                f"{' and '.join(barred)}, or --ray"
            )
        return _show(tune_on_ray(ray, tasks, budget), tasks, None, False, json)
    asked, part = parse_gpus(gpus), shard_of(shard) if grid is None else None
    options.require_gpu()
    if searched is not None and grid is not None:
        return search_all(wanted, searched, grid, json)

    if part is not None:
        mine = part.part(tasks)
        output.note(
            f"shard {part.rank} of {part.world}, by {part.origin}: {len(mine)} of "
            f"{output.count(len(tasks), 'shape')}"
        )
        tasks = mine
    devices = resolve_gpus(asked) if asked is not None else gpu_of(part)
    tuned = tune_on(devices, tasks, budget) if devices else tune_here(tasks, budget)
    _show(tuned, tasks, devices[0] if devices else None, with_candidates, json)


def _show(
    tuned: Tuned, tasks: list[Task], device: int | None, with_candidates: bool, json: bool
) -> None:
    """Print what came of the shapes; raise Exit unless all are tuned."""
    if tuned.interrupted:
        output.warn(
            f"interrupted; {len(tuned.finished)} of {len(tasks)} shapes are tuned and stored"
        )
    found = [(task, tuned.finished[task.number]) for task in tasks if task.number in tuned.finished]
    lines = [describe(entry, task.rows) for task, entry in found]
    tables = [_candidates(entry, device) for _, entry in found] if with_candidates else []
    if json:
        documents = map(candidates.document, tables)
        output.document([*map(_with_table, lines, documents)] if with_candidates else lines)
    else:
        heads = lines[0].keys() if lines else ()
        output.table(heads, (line.values() for line in lines), ("variant",))
        for table in tables:
            output.result("")
            output.result(describe_problem(table.winner.problem))
            candidates.show(table)
    for error in tuned.errors:
        output.fail(str(error))
    if tuned.interrupted:
        raise typer.Exit(INTERRUPTED)
    if tuned.errors:
        raise typer.Exit(code_of(tuned.errors[0]))


def describe(entry: Entry, rows: int) -> dict[str, Any]:
    """Return what is printed of one tuned shape."""
    problem, time = entry.key.problem, entry.microseconds
    return {
        "function": problem.function.name,
        "dtype": problem.dtype.value,
        "rows": rows,
        "cols": problem.cols,
        "variant": entry.winner.name,
        "microseconds": round(time, 3) if time else None,
        "gigabytes_per_second": round(rows * problem.bytes_per_row / time / 1e3, 1)
        if time
        else None,
        "candidates": len(entry.timings),
    }


def _candidates(entry: Entry, device: int | None) -> Explanation:
    """Return what the winner was chosen from on that device, the current one if None."""
    from softgen.devices.gpu.device import arch_of, current_arch
    from softgen.tuning.explain import explain

    arch = current_arch() if device is None else arch_of(device)
    return explain(entry.key.problem, entry.rows, arch, entry.winner, entry)


def _with_table(line: dict[str, Any], table: list[dict[str, Any]]) -> dict[str, Any]:
    return {**line, "table": table}
