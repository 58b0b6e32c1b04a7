"""`softgen verify`: the numerics of the variant matrix against float64."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from softgen.cli import options, output
from softgen.cli.group import INTERRUPTED, WRONG_RESULT, failure
from softgen.problems.dtypes import DType, result_type
from softgen.problems.functions.base import Function

if TYPE_CHECKING:
    from softgen.verify.verify import Report, Step


SILENT_SECONDS = 30.0  # a log, which shows no bar, gets a line so often
NAMED = 5  # variants that fail alike and are named


class Narrowed(NamedTuple):
    """What alone is verified; None for everything."""

    variants: list[str] | None
    dtypes: list[DType] | None
    functions: list[Function] | None
    cols: list[int] | None


class Stopped(Exception):
    """Ctrl-C, and in words how far it was."""


def verify(
    device: Annotated[
        options.Device, options.device_option("auto, cuda or cpu; auto uses a GPU if there is one.")
    ] = options.Device.AUTO,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Verify thousands of settings that cover every knob value, not the best guesses "
            "alone.",
        ),
    ] = False,
    variant: Annotated[
        list[str] | None, options.variant_option("Verify only this, repeatable:")
    ] = None,
    dtype: Annotated[
        list[DType] | None,
        options.dtype_option(f"Type of the input, repeatable: {options.TYPES}. \\[default: all]"),
    ] = None,
    function: Annotated[
        list[Function] | None,
        options.function_option(" Repeatable. \\[default: all]"),
    ] = None,
    cols: Annotated[
        list[int] | None,
        options.cols_option(
            "Elements in a row; repeatable. \\[default: widths up to 50257, of every layout]"
        ),
    ] = None,
    source: Annotated[Path | None, options.edited_source(hidden=False)] = None,
    only_list: Annotated[
        bool, typer.Option("--list", help="Print the names of the variants, and run none.")
    ] = False,
    json: options.JsonOption = False,
) -> None:
    """Compute hard rows with the variants of every strategy and compare them with float64.

    Exits with 4 if a result is farther from float64 than its bound. With --json `failures` has the
    names of such variants, and a worst error that is not finite is null.
    """
    narrowed = Narrowed(variant or None, dtype or None, function or None, cols or None)
    if source is not None:
        if every or dtype or function or cols or only_list or len(variant or []) > 1:
            raise typer.BadParameter("--source takes none of the other options but one --variant")
    elif only_list:
        _list(every, narrowed, json)
        return
    where = options.resolve_device(device)
    try:
        if source is not None:
            report = _verify_file(source, variant[0] if variant else None, where.value)
        else:
            report = _verify(where.value, every, narrowed)
    except Stopped as stopped:
        message = f"interrupted; {stopped}"
        if json:
            output.document(failure(message, "Abort"))
        else:
            output.warn(message)
        raise typer.Exit(INTERRUPTED) from None
    if json:
        document = summary(report)
        message = f"{report.failed} of {report.checked} variants are wrong"
        output.document(document | (failure(message, "VerificationError") if report.failed else {}))
    else:
        _print(report)
    if report.failed:
        raise typer.Exit(WRONG_RESULT)


def _list(every: bool, narrowed: Narrowed, json: bool) -> None:
    """Print the names of what is verified, one a line, and how many they are."""
    from softgen.verify.matrix import matrix

    names = [each.name for each in matrix(every, *narrowed)]
    if json:
        output.document({"variants": names})
        return
    for name in names:
        typer.echo(name)
    output.note(output.count(len(names), "kernel"))


def summary(report: Report) -> dict[str, Any]:
    """Return the document of a report; JSON has no infinity, so what is not finite is None."""
    return {
        "checked": report.checked,
        "failed": report.failed,
        "failures": list(report.wrong),
        "worst": {
            kind: worst if math.isfinite(worst) else None for kind, worst in report.worst.items()
        },
        "by_strategy": dict(report.by_strategy),
    }


def _verify_file(path: Path, variant: str | None, device: str) -> Report:
    """Verify the text of one file."""
    from softgen.source.edited import read_source
    from softgen.verify.verify import verify_source

    return verify_source(read_source(path, variant), device)


def _verify(device: str, every: bool, narrowed: Narrowed) -> Report:
    """Run with a progress bar on stderr."""
    from softgen.verify.verify import verify as verify_variants

    console = output.console()
    with output.bars("{task.fields[left]}") as bars:
        bar = bars.add_task(f"verify on {device}", total=None, left="")
        told, reached = time.monotonic(), "no kernel was checked"

        def show(step: Step) -> None:
            nonlocal told, reached
            reached = f"{step.done} of {output.count(step.total, 'kernel')} were checked"
            reached += f", {step.failed} of them wrong" if step.done else ""
            unknown = step.seconds_left is None or step.done == step.total
            left = "" if unknown else f"about {duration(step.seconds_left or 0)}"
            bars.update(bar, completed=step.done, total=step.total, left=left and f"{left} left")
            if step.done == 0:
                cores = f" on {os.cpu_count()} cores, less where they are compiled already"
                output.note(
                    f"verify on {device}: {output.count(step.total, 'kernel')}"
                    + (left and f", {left}{cores}")
                )
            elif not console.is_terminal and time.monotonic() - told > SILENT_SECONDS:
                told = time.monotonic()
                output.note(f"{step.done} of {step.total} kernels" + (left and f", {left} left"))

        try:
            return verify_variants(
                device=device,
                all_variants=every,
                **narrowed._asdict(),
                progress=show,
            )
        except KeyboardInterrupt:
            raise Stopped(reached) from None


def duration(seconds: float) -> str:
    """Return a duration that is only about right, for example 40 s or 7 min."""
    return f"{max(1, round(seconds))} s" if seconds < 100 else f"{round(seconds / 60)} min"


def grouped(failures: Sequence[str]) -> list[str]:
    """Return what to print of failures: those that differ in names and numbers only are one.

    A slip in a template is the same in every variant.
    """
    alike: dict[str, list[str]] = {}
    told: dict[str, str] = {}
    for line in failures:
        name, _, reason = line.partition(": ")
        kind = re.sub(r"\d+", "#", reason.replace(name, ""))
        alike.setdefault(kind, []).append(name)
        told.setdefault(kind, line)
    lines = []
    for kind, (_, *others) in alike.items():
        lines.append(told[kind])
        if others:
            more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
            lines.append(f"and alike: {', '.join(others[:NAMED])}{more}")
    return lines


def _print(report: Report) -> None:
    from softgen.problems.numerics import unit_of

    output.table(("strategy", "checked"), report.by_strategy.items())
    errors = (
        (k, f"{worst:.3g} {unit_of(result_type(k))}" if math.isfinite(worst) else "not finite")
        for k, worst in report.worst.items()
    )
    if report.worst:
        output.table(("result dtype", "worst error"), errors)
    for line in grouped(report.failures):
        output.result(line)
    output.result(f"{report.checked} checked, {report.failed} failed")
