"""`softgen explain`: why a shape gets the kernel that it gets, and what else could be tuned."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softgen.cli import candidates, options, output
from softgen.cli.problem_options import ProblemOptions
from softgen.cli.shapes import parse_shape
from softgen.cli.show import resources
from softgen.problems.arch import Arch
from softgen.problems.problem import Problem
from softgen.strategies.select import select, untimed

if TYPE_CHECKING:
    from softgen.cli.explain_text import Choice
    from softgen.tuning.entry import Entry
    from softgen.tuning.explain import Knob, Row


@dataclass(frozen=True)
class ExplainOptions(ProblemOptions, without=("cols", "rows")):
    """Those of `softgen explain`, which asks the GPU here unless a device is given."""

    arch: options.HereOrArch = None


def explain(
    shape: Annotated[
        list[str],
        typer.Argument(metavar="ROWSxCOLS", help="For example 4096x1024.", show_default=False),
    ],
    given: ExplainOptions,
    json: options.JsonOption = False,
) -> None:
    """Tell why a shape gets its kernel: the candidates, with their expected and measured times.

    The first line compares the time with that of the first guess and that of a copy. Times are
    those that `softgen tune`, or a first call, stored in the cache for the GPU here. With --arch or
    --sms, and without a GPU, it tells what a call takes on that device without tuning: the winner
    that softgen ships for it, with its time, else what the table of the nearest device has for a
    similar shape, else the best guess.
    """
    from softgen.cli import explain_text
    from softgen.problems.roofline import data_sheet_peaks, roofline
    from softgen.tuning import explain as choices

    rows, cols = parse_shape(" ".join(shape), "ROWSxCOLS")
    problem = replace(given, cols=cols).problem()
    variant, batch_invariant = given.variant, given.batch_invariant
    entry, elsewhere = None, _why_not_here(given)
    if elsewhere:
        known = given.device
        peaks = data_sheet_peaks(known)
    else:
        here = choices.look_here(problem, rows)
        known, peaks = here.arch, here.peaks
        entry = None if batch_invariant else here.entry
    choice = _choose(problem, rows, known, entry, batch_invariant, variant)
    found = choices.explain(problem, rows, known, choice.variant, entry)
    limits = roofline(problem, rows, known, peaks) if peaks else None
    used, unknown = resources(choice.variant, known)
    if json:
        output.document(
            {
                **problem.as_json,
                "rows": rows,
                "device": known.device,
                "arch": known.name,
                "variant": choice.variant.name,
                "origin": choice.origin,
                "answer": explain_text.answer(choice, found, rows, limits, elsewhere),
                "why": explain_text.why(choice, found),
                "microseconds": choice.microseconds,
                "timed_rows": entry.rows if entry else None,
                "shipped": asdict(choice.shipped) if choice.shipped else None,
                "roofline": asdict(limits) if limits else None,
                "resources": used,
                "missing": unknown,
                "legal": found.legal,
                "candidates": candidates.document(found),
                "strategies": [_strategy(each) for each in found.strategies],
                "knobs": [_knob(each) for each in found.knobs],
            }
        )
        return
    explain_text.show(choice, found, rows, known, limits, (used, unknown), elsewhere)


def _why_not_here(given: ExplainOptions) -> str:
    """Return why the GPU of this machine is not asked; nothing if it is."""
    if given.arch is not None or given.sms is not None:
        return "times are of the GPU here; leave out --arch and --sms to see them"
    from softgen.devices.gpu.device import unavailable_reason

    reason = unavailable_reason()
    return f"no GPU can be used: {reason}" if reason else ""


def _choose(
    problem: Problem,
    rows: int,
    arch: Arch,
    entry: Entry | None,
    batch_invariant: bool,
    variant: str | None,
) -> Choice:
    """Return what a call runs that tunes nothing, or what --variant names."""
    from softgen.cli.explain_text import ASKED, Choice
    from softgen.strategies import winners

    if variant is not None:
        named = select(problem, rows, arch, variant)
        return Choice(named, ASKED, entry, arch.device, winners.times_of(named, rows, arch.device))
    if entry is not None:
        origin = f"tuned here, {output.count(len(entry.timings), 'candidate')} timed"
        return Choice(entry.winner, origin, entry)
    found = untimed(problem, rows, arch, batch_invariant)
    shipped = winners.times_of(found.variant, rows, arch.device) if found.rows else None
    return Choice(found.variant, found.origin, None, found.tuned_on, shipped, found.near)


def _strategy(found: Row) -> dict[str, Any]:
    best = found.best
    return {
        "strategy": found.name,
        "expected": round(found.expected, 4),
        "legal": found.legal,
        "considered": found.considered,
        "best": best.variant.name if best else None,
        "microseconds": best.microseconds if best else None,
    }


def _knob(found: Knob) -> dict[str, Any]:
    return {
        "knob": found.name,
        "meaning": found.meaning,
        "value": found.value,
        "values": [{"value": value, "microseconds": time} for value, time in found.best.items()],
    }
