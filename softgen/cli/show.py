"""`softgen show`: the source of one kernel, and what a compiler makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from softgen.cli import options, output
from softgen.cli.listing import summary
from softgen.cli.problem_options import ProblemOptions
from softgen.problems.arch import Arch
from softgen.strategies.select import select, untimed
from softgen.strategies.variants import Variant


def show(
    given: ProblemOptions,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="VARIANT",
            help="The same as --variant, mostly a full name.",
            show_default=False,
            autocompletion=options.completing(options.variant_names),
        ),
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """Print the CUDA source of one kernel; registers and occupancy go to stderr.

    Give the full name of a VARIANT, or a problem by --shape, --dtype and so on.
    """
    from softgen.source.render import render

    known = given.device
    given = given.sized()
    if name is not None:
        if given.variant is not None:
            raise typer.BadParameter("give VARIANT or --variant, not both")
        # The path of an emitted file will do: it is called as its variant.
        given = replace(given, variant=Path(name).stem if name.endswith(".cu") else name)
    problem, rows = given.problem(), given.rows_or_default
    found = None
    if given.variant is None:
        found = untimed(problem, rows, known, given.batch_invariant)
    chosen = found.variant if found else select(problem, rows, known, given.variant)
    source = render(chosen, known)
    used, missing = resources(chosen, known)
    if json:
        launch = {"block_size": chosen.launch.block_size}
        launch["rows_per_block"] = chosen.launch.rows_per_block
        output.document(
            {
                **summary(chosen),
                "arch": known.name,
                "tuned_on": found.tuned_on if found else "",
                "launch": launch,
                "options": list(source.options),
                "source": source.text,
                "resources": used,
                "missing": missing,
            }
        )
        return
    typer.echo(source.text, nl=False)
    if found:
        output.note(f"{found.variant.name}: {found.origin}")
    output.note(sentence(used, known) if used else f"registers and occupancy unknown: {missing}")


def resources(variant: Variant, arch: Arch) -> tuple[dict[str, Any] | None, str | None]:
    """Return what the compiled kernel takes of an SM, or None and why that is not known."""
    from softgen.errors import CompileError, MissingDependencyError
    from softgen.source.render import render

    try:
        from softgen.devices.gpu.compile import compile_offline

        made = compile_offline(render(variant), arch)
    except (MissingDependencyError, CompileError) as error:
        return None, str(error)
    from softgen.strategies.launch import blocks_per_multiprocessor

    shared = made.shared_bytes + variant.launch.dynamic_shared_bytes
    blocks = blocks_per_multiprocessor(variant.launch, made.registers, shared, arch)
    threads = blocks * variant.launch.block_size
    return {
        "registers": made.registers,
        "spill_bytes": made.spill_bytes,
        "shared_bytes": shared,
        "blocks_per_multiprocessor": blocks,
        "occupancy": threads / arch.threads_per_multiprocessor,
    }, None


def sentence(used: dict[str, Any], arch: Arch) -> str:
    """Return resources as one line."""
    return (
        f"{arch.name}: {used['registers']} registers a thread, "
        f"{used['spill_bytes']} bytes spilled, {used['shared_bytes']} bytes of shared memory, "
        f"{used['blocks_per_multiprocessor']} blocks an SM ({used['occupancy']:.0%} of its threads)"
    )
