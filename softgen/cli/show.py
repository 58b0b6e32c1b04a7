"""`softgen show`: the source of one kernel, and what a compiler makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from softgen.cli import options, output
from softgen.cli.listing import summary
from softgen.spec.arch import DEFAULT_ARCH, Arch, arch_named
from softgen.spec.problem import DEFAULT_ROWS
from softgen.strategies.select import select, untimed
from softgen.strategies.variants import Variant


def show(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="VARIANT",
            help="As --variant; mostly a full name.",
            show_default=False,
            autocompletion=options.completing(options.variant_names),
        ),
    ] = None,
    shape: options.ShapeOption = None,
    cols: options.AnyCols = None,
    dtype: options.AnyDType = None,
    function: options.AnyFunction = None,
    out_dtype: options.OutDType = None,
    alignment: options.Alignment = None,
    rows: options.Rows = None,
    arch: options.ArchOption = DEFAULT_ARCH,
    sms: options.Sms = None,
    variant: options.VariantOption = None,
    batch_invariant: options.BatchInvariant = False,
    strided: options.StridedOption = 0,
    inner: options.InnerOption = 1,
    sharded: options.ShardedOption = False,
    hooks: options.HooksOption = None,
    json: options.JsonOption = False,
) -> None:
    """Print the CUDA source of one kernel; registers and occupancy go to stderr.

    Give the full name of a VARIANT, or a problem by --shape, --dtype and so on.
    """
    from softgen.source.render import render

    known = arch_named(arch, sms)
    rows, cols = options.sized(shape, rows, cols)
    rows = DEFAULT_ROWS if rows is None else rows
    if name is not None and variant is not None:
        raise typer.BadParameter("give VARIANT or --variant, not both")
    # The path of an emitted file will do: it is called as its variant.
    choice = variant if name is None else Path(name).stem if name.endswith(".cu") else name
    problem = options.problem_of(
        *(choice, cols, dtype, function, out_dtype, alignment),
        *(batch_invariant, strided, inner, hooks, sharded),
    )
    found = untimed(problem, rows, known, batch_invariant) if choice is None else None
    chosen = found.variant if found else select(problem, rows, known, choice)
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
