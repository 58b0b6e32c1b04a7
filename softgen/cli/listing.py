"""`softgen list`: the variants that can compute a problem, in the order they would be tried."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from softgen.cli import options, output
from softgen.cli.problem_options import ProblemOptions
from softgen.problems.arch import Arch
from softgen.problems.problem import Problem
from softgen.strategies.registry import all_strategies
from softgen.strategies.select import Untimed, describe, select, shipped_of, untimed
from softgen.strategies.variants import Variant, candidates, none_legal

EXAMPLE_COLS = 1000
BELOW = ("parameters", "threads", "shared bytes", "SMs")  # in a second line, where it is narrow


@dataclass(frozen=True)
class ListOptions(ProblemOptions):
    """Those of `softgen list`, which has an example's columns where none are given."""

    cols: Annotated[
        int | None, options.cols_option(f"Elements in a row. \\[default: {EXAMPLE_COLS}]")
    ] = None


def list_variants(given: ListOptions, json: options.JsonOption = False) -> None:
    """List the candidate variants of a problem and their parameters.

    The first is the winner that softgen ships for --rows on the device of --arch (an NVIDIA H200
    for sm_90), or for a similar shape or device, if there is one. The best guess comes next.
    If --variant names a strategy, only its candidates are listed: the winner that is shipped for
    --rows and the device, if it is one of them, then the strategy's best guess, which is what its
    name chooses in other commands.
    """
    given = given.sized()
    if given.cols is None and given.named is None:
        given = replace(given, cols=EXAMPLE_COLS)
    problem, rows, known = given.problem(), given.rows_or_default, given.device
    variant = given.variant
    found = matching(problem, rows, known, variant)
    first = _first(problem, rows, known, variant, given.batch_invariant) if found else None
    if first and first.tuned_on:
        found = [first.variant, *(each for each in found if each != first.variant)]
    if json:
        origins = [first.tuned_on if first else "", *[""] * len(found)]
        output.document(
            [
                {**summary(each), "tuned_on": origin}
                for each, origin in zip(found, origins, strict=False)
            ]
        )
        return
    output.note(
        f"{describe(problem)}, {rows} rows, {known.label}: {output.count(len(found), 'candidate')}"
    )
    if not found:
        output.note(none_legal(problem, rows, known, variant))
        return
    _print(found)
    if first:
        output.note(f"{first.variant.name}: {first.origin}")


def _first(
    problem: Problem, rows: int, arch: Arch, choice: str | None, batch_invariant: bool
) -> Untimed | None:
    """Return what is listed before the other candidates; None if it is one of them."""
    if choice is None:
        return untimed(problem, rows, arch, batch_invariant)
    return shipped_of(choice, problem, rows, arch, batch_invariant)


def _print(found: list[Variant]) -> None:
    """Print the table of candidates."""
    columns: dict[str, list[object]] = {
        "variant": [each.name for each in found],
        "parameters": [spell(each.strategy.knobs) for each in found],
        "threads": [each.launch.block_size for each in found],
        "shared bytes": [each.launch.shared_bytes for each in found],
    }
    if any(each.launch.multiprocessors for each in found):
        columns["SMs"] = [each.launch.multiprocessor_rule for each in found]
    output.table(columns, zip(*columns.values(), strict=True), BELOW)


def matching(problem: Problem, rows: int, arch: Arch, choice: str | None) -> list[Variant]:
    """Return every candidate, those of one strategy, or the one that a name stands for."""
    if choice is None or choice in (kind.name for kind in all_strategies()):
        return list(candidates(problem, rows, arch, choice))
    return [select(problem, rows, arch, choice)]


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
