"""`softgen list`: the variants that can compute a problem, in the order they would be tried."""

from __future__ import annotations

from typing import Any

from softgen.arch import DEFAULT_ARCH, Arch, arch_named
from softgen.cli import options, output
from softgen.problem import Algorithm, DType, Problem
from softgen.select import DEFAULT_ROWS, NAMED, describe, select
from softgen.variants import Variant, candidates

EXAMPLE_COLS = 1000


def list_variants(
    cols: options.Cols = EXAMPLE_COLS,
    dtype: options.DTypeOption = DType.FLOAT32,
    algorithm: options.AlgorithmOption = Algorithm.SOFTMAX,
    out_dtype: options.OutDType = None,
    alignment: options.Alignment = None,
    rows: options.Rows = DEFAULT_ROWS,
    arch: options.ArchOption = DEFAULT_ARCH,
    sms: options.Sms = None,
    strategy: options.StrategyOption = None,
    batch_invariant: options.BatchInvariant = False,
    json: options.JsonOption = False,
) -> None:
    """List the candidate variants of a problem and their parameters, best guess first."""
    problem = Problem.of(
        *(algorithm, dtype, cols),
        out_dtype=out_dtype,
        alignment=alignment,
        fixed_order=batch_invariant,
    )
    known = arch_named(arch, sms)
    found = matching(problem, rows, known, strategy)
    if json:
        output.document([summary(variant) for variant in found])
        return
    output.note(f"{describe(problem)}, {rows} rows, {known.label}: {len(found)} candidates")
    if not found:
        output.note(f"no setting of {strategy} is legal there; `softgen list` without --strategy")
        return
    headings = ["variant", "parameters", "threads", "shared bytes"]
    lines: list[list[object]] = [
        [v.name, spell(v.strategy.knobs), v.launch.block_size, v.launch.shared_bytes] for v in found
    ]
    if any(v.launch.multiprocessors for v in found):
        headings.append("SMs")
        for line, v in zip(lines, found, strict=True):
            line.append(v.launch.multiprocessor_rule)
    output.table(headings, lines)


def matching(problem: Problem, rows: int, arch: Arch, strategy: str | None) -> list[Variant]:
    """Return every candidate, those of one strategy, or the one that a name stands for."""
    if strategy is not None and (strategy in NAMED or "_" in strategy):
        return [select(problem, rows, arch, strategy)]
    return list(candidates(problem, rows, arch, strategy))


def summary(variant: Variant) -> dict[str, Any]:
    """Return what `list --json` says of one variant."""
    return {
        "name": variant.name,
        "strategy": variant.strategy.name,
        "parameters": variant.strategy.knobs,
        "threads": variant.launch.block_size,
        "shared_bytes": variant.launch.shared_bytes,
        "multiprocessors": variant.launch.multiprocessors,
    }


def spell(knobs: dict[str, int | bool]) -> str:
    """Return parameters in one line, for example pack_size=4 padding=true."""
    return " ".join(f"{name}={str(value).lower()}" for name, value in knobs.items())
