"""The `softgen` command: one file a command, each importing what it needs when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from softgen.cli import (
    bench,
    cache,
    doctor,
    emit,
    explain,
    functions,
    listing,
    run,
    show,
    tune,
    verify,
)
from softgen.cli.group import Command, Commands
from softgen.cli.problem_options import expanded
from softgen.version import __version__

__all__ = ["app"]

app = typer.Typer(
    name="softgen",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"softgen {__version__}")
        raise typer.Exit(0)


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Generate, tune and run specialized CUDA softmax kernels.

    Each command has --help, and --json for programs.

    Exit codes: 0 ok, 1 the operation failed, 2 wrong usage, 3 no GPU where one was asked for,
    4 a result is farther from float64 than its bound.
    """


for _name, _function in (
    ("run", run.run),
    ("emit", emit.emit),
    ("functions", functions.functions),
    ("list", listing.list_variants),
    ("show", show.show),
    ("explain", explain.explain),
    ("tune", tune.tune),
    ("bench", bench.bench),
    ("verify", verify.verify),
    ("doctor", doctor.doctor),
):
    app.command(_name, cls=Command)(expanded(_function))
app.add_typer(cache.app, name="cache")
