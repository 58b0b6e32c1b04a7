"""The `softgen` command: one file a command, each importing what it needs when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from softgen import __version__
from softgen.cli import bench, cache, doctor, emit, listing, run, show, tune, verify
from softgen.cli.group import Commands

__all__ = ["app"]

app = typer.Typer(
    name="softgen",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
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

    Exit codes: 0 ok, 1 the operation failed, 2 wrong usage, 3 no GPU where one was asked for,
    4 a result is farther from float64 than its bound.
    """


app.command("run")(run.run)
app.command("emit")(emit.emit)
app.command("list")(listing.list_variants)
app.command("show")(show.show)
app.command("tune")(tune.tune)
app.command("bench")(bench.bench)
app.command("verify")(verify.verify)
app.add_typer(cache.app, name="cache")
app.command("doctor")(doctor.doctor)
