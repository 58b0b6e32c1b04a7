"""`softgen show`: the source of one kernel, and what a compiler makes of it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from softgen.arch import DEFAULT_ARCH, Arch, arch_named
from softgen.cli import options, output
from softgen.cli.listing import summary
from softgen.problem import Algorithm, DType, Problem
from softgen.select import DEFAULT_ROWS, select
from softgen.variants import Variant, parse_name


def show(
    name: Annotated[
        str | None, typer.Argument(help="Full name of a variant, as `softgen list` prints it.")
    ] = None,
    cols: options.AnyCols = None,
    dtype: options.AnyDType = None,
    algorithm: options.AnyAlgorithm = None,
    out_dtype: options.OutDType = None,
    alignment: options.Alignment = None,
    rows: options.Rows = DEFAULT_ROWS,
    arch: options.ArchOption = DEFAULT_ARCH,
    sms: options.Sms = None,
    strategy: options.StrategyOption = None,
    batch_invariant: options.BatchInvariant = False,
    json: options.JsonOption = False,
) -> None:
    """Print the CUDA source of one kernel; registers and occupancy go to stderr.

    Give the NAME of a variant, or a problem by --cols, --dtype and so on for its best guess.
    """
    from softgen.render import render

    known = arch_named(arch, sms)
    described = (cols, dtype, algorithm, out_dtype, alignment, strategy, batch_invariant or None)
    if name is not None:
        if any(value is not None for value in described):
            raise typer.BadParameter("give a NAME or --cols with the options beside it, not both")
        variant = parse_name(name)
        variant.check(known)
    elif cols is None:
        raise typer.BadParameter("give the NAME of a variant, or --cols and --dtype")
    else:
        problem = Problem.of(
            algorithm or Algorithm.SOFTMAX,
            dtype or DType.FLOAT32,
            cols,
            out_dtype=out_dtype,
            alignment=alignment,
            fixed_order=batch_invariant,
        )
        variant = select(problem, rows, known, strategy)
    source = render(variant, known)
    used, missing = resources(variant, known)
    if json:
        launch = {"block_size": variant.launch.block_size}
        launch["rows_per_block"] = variant.launch.rows_per_block
        output.document(
            {
                **summary(variant),
                "arch": known.name,
                "launch": launch,
                "options": list(source.options),
                "source": source.text,
                "resources": used,
                "missing": missing,
            }
        )
        return
    typer.echo(source.text, nl=False)
    output.note(sentence(used, known) if used else f"registers and occupancy unknown: {missing}")


def resources(variant: Variant, arch: Arch) -> tuple[dict[str, Any] | None, str | None]:
    """Return what the compiled kernel takes of an SM, or None and why that is not known."""
    from softgen.errors import CompileError, MissingDependencyError
    from softgen.render import render

    try:
        from softgen.compile import compile_offline

        made = compile_offline(render(variant), arch)
    except (MissingDependencyError, CompileError) as error:
        return None, str(error)
    from softgen.occupancy import blocks_per_multiprocessor

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
