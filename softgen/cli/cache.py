"""`softgen cache`: the tuned choices on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softgen.cli import options, output
from softgen.cli.group import Command, Commands
from softgen.cli.tune import describe
from softgen.disk import folders, outputs

app = typer.Typer(
    name="cache",
    cls=Commands,
    no_args_is_help=True,
    help="List, export, import and merge the tuned choices; clear all that is kept.",
)

# What the files of each folder are.
NAMES = {
    "tuned": "choices",
    "texts": "texts of kernels",
    "code": "pieces of machine code",
    "emulator": "programs and objects of the emulator",
    "sources": "sources",
}

File = Annotated[Path, typer.Argument(metavar="FILE", help="JSON file of cache entries.")]


@app.command("ls", cls=Command)
def list_entries(json: options.JsonOption = False) -> None:
    """List the stored choices."""
    from softgen.tuning import cache

    lines = []
    for entry in cache.entries():
        device = dict(entry.key.environment).get("device", "unknown")
        line = {**describe(entry, entry.key.rows), "device": device}
        # An entry is for all row counts up to its own; how many were timed is not stored.
        del line["gigabytes_per_second"]
        lines.append(line)
    if json:
        output.document(lines)
    elif lines:
        output.table(lines[0].keys(), (line.values() for line in lines), ("variant", "device"))
    else:
        output.note(f"no tuned choices in {folders.directory()}; `softgen tune` makes some")


@app.command("path", cls=Command)
def print_path(json: options.JsonOption = False) -> None:
    """Print the cache folder."""
    if json:
        output.document({"path": str(folders.directory())})
    else:
        output.result(str(folders.directory()))


@app.command("clear", cls=Command)
def clear(json: options.JsonOption = False) -> None:
    """Delete all that softgen keeps: choices, kernels, programs of the emulator, sources.

    Only files that softgen made go, and only from folders that it made.
    """
    from softgen.tuning import cache

    cleared = cache.clear()
    if json:
        output.document({"folder": str(folders.directory()), **cleared._asdict()})
        return
    for kind, reason in cleared.left.items():
        output.warn(f"{folders.directory() / kind} is left alone: {reason}")
    counts = ", ".join(f"{count} {NAMES[kind]}" for kind, count in cleared.deleted.items())
    output.note(f"deleted {counts} from {folders.directory()}")


@app.command("export", cls=Command)
def export_file(
    file: File,
    as_table: Annotated[
        bool,
        typer.Option(
            "--table",
            help="Write a table of a device's winners, like those in softgen/strategies/tables.",
        ),
    ] = False,
    json: options.JsonOption = False,
) -> None:
    """Write all stored choices to one FILE, to ship with a program or move to another machine."""
    from softgen.tuning import cache, table

    if as_table:
        found = cache.entries()
        outputs.write(file, table.text_of(found).encode())
        count = len(found)
    else:
        count = cache.export_file(file)
    if json:
        output.document({"exported": count, "file": str(file)})
    else:
        output.note(f"wrote {count} entries to {file}")


@app.command("import", cls=Command)
def import_file(file: File, json: options.JsonOption = False) -> None:
    """Store every choice of a FILE that `softgen cache export` wrote."""
    from softgen.tuning import cache

    count = cache.import_file(file)
    if json:
        output.document({"imported": count, "file": str(file)})
    else:
        output.note(f"stored {count} entries in {folders.directory()}")


@app.command("merge", cls=Command)
def merge_folders(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...", help="Cache folders of other machines, or files of `cache export`."
        ),
    ],
    json: options.JsonOption = False,
) -> None:
    """Store the choices of other cache folders; of two for the same, the faster one.

    Choices for other devices, compilers or drivers stand beside each other. Everything is read
    before anything is stored.
    """
    from softgen.tuning.cache import merge

    merged = merge(paths)
    if json:
        output.document({"folder": str(folders.directory()), **merged._asdict()})
    else:
        output.note(
            f"{merged.added} added, {merged.replaced} replaced by better ones, {merged.kept} kept, "
            f"{merged.skipped} skipped in {folders.directory()}"
        )
