"""What `softgen explain` prints for people: the choice, its limits, and three tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.cli import candidates, output
from softgen.cli.candidates import short
from softgen.cli.show import sentence
from softgen.problems.arch import Arch
from softgen.problems.functions.softmax import SOFTMAX
from softgen.problems.problem import Problem, rows_bucket
from softgen.problems.roofline import Roofline
from softgen.strategies.select import describe
from softgen.strategies.variants import Variant
from softgen.strategies.winners import Near, Times
from softgen.tuning import cost
from softgen.tuning.entry import Entry
from softgen.tuning.explain import Explanation
from softgen.tuning.reason import reason

ASKED = "asked for by --variant"
# The fastest copy of bfloat16 1 x 128256 (0.5 MB) takes 1.82 us on an H200: that is the launch.
LAUNCH_MICROSECONDS = 1.8


@dataclass(frozen=True)
class Choice:
    """What a call runs, and what is known of it.

    Attributes:
        origin: where the choice is from, in words.
        entry: the tuned choice in the cache; None where nothing was timed here.
        tuned_on: the device whose shipped table it is from; empty for none.
        shipped: what it took on that device.
        near: what the table has it for, if that is another device or another shape.
    """

    variant: Variant
    origin: str
    entry: Entry | None = None
    tuned_on: str = ""
    shipped: Times | None = None
    near: Near | None = None

    @property
    def microseconds(self) -> float | None:
        """The time of `entry.rows` rows here, if it was timed."""
        name, timings = self.variant.name, self.entry.timings if self.entry else ()
        return next((t.microseconds for t in timings if t.variant == name), None)


def why(choice: Choice, found: Explanation) -> str:
    """Return why it was chosen, in one sentence."""
    if choice.origin == ASKED:
        return "it was asked for; without --variant it tells what a call takes"
    if choice.entry is not None:
        return reason(choice.entry, found.guess)
    if choice.tuned_on:
        guess = found.guess
        other = "" if guess == choice.variant else f" (the best guess is {guess.strategy.label})"
        won = f"the fastest when {choice.tuned_on} was tuned"
        if choice.near is not None:
            shape = f"{choice.near.rows} x {choice.near.cols}"
            return f"nothing was timed here, and it was {won} for {shape}{other}"
        return f"{won}{other}"
    return (
        "it is the first guess of the strategy that is expected to be the fastest: nothing was "
        "timed here, and no winner is shipped; `expected` does not decide among settings of one "
        "strategy, whose order was fitted to measured times"
    )


def answer(
    choice: Choice, found: Explanation, rows: int, limits: Roofline | None, elsewhere: str
) -> str:
    """Return the time, and what it is beside that of the first guess and of a copy.

    Args:
        choice: what a call runs.
        found: what it was chosen from.
        rows: number of rows.
        limits: what no kernel beats, if it is known.
        elsewhere: why nothing was measured, if the GPU here was not asked.
    """
    problem, mine = choice.variant.problem, choice.microseconds
    bound = _bound(problem)
    if choice.entry is not None and mine is not None:
        times = {each.variant: each.microseconds for each in choice.entry.timings}
        rate = choice.entry.rows * problem.bytes_per_row / mine / 1e3
        peak = f" ({rate / limits.peaks.gigabytes_per_second:.1%} of the peak)" if limits else ""
        said = [
            *_beside(choice, found, mine, times.get(found.guess.name)),
            f"{rate:.0f} GB/s{peak}",
        ]
        return f"{short(mine)} us: {', '.join(said)}; {choice.entry.rows} rows, here"
    if choice.shipped is not None:
        known = choice.shipped
        said = _beside(choice, found, known.microseconds, known.guess)
        if known.copy is not None:
            said.append(f"{known.microseconds / known.copy:.2f} of {bound}")
        sized = f"{known.rows or rows_bucket(rows)} rows"
        where = f"{sized}, {choice.tuned_on}"
        return (
            f"{short(known.microseconds)} us: {', '.join(said) or 'no other time is kept'}; {where}"
        )
    expected = next(each.expected for each in found.table if each.variant == choice.variant)
    if elsewhere:
        return f"not measured: {elsewhere}; {expected:.2f} of {bound} is expected"
    advice = f"softgen tune --shape {rows}x{problem.cols} --dtype {problem.dtype.value}"
    if problem.function != SOFTMAX:
        advice += f" --function {problem.function}"
    return (
        f"not measured yet: `{advice}` times the candidates; {expected:.2f} of {bound} is expected"
    )


def _bound(problem: Problem) -> str:
    """Return what moves as many bytes as the problem's kernels must."""
    return "a copy" if problem.writes_elements else "a read"


def _beside(choice: Choice, found: Explanation, mine: float, guess: float | None) -> list[str]:
    """Return how far ahead of the first guess a choice is, in words; nothing if it is not known."""
    if found.guess == choice.variant:
        return ["the first guess itself"]
    if guess is None:
        return []
    way = "ahead of" if guess >= mine else "behind"
    return [f"{abs(guess / mine - 1):.1%} {way} the first guess"]


def show(
    choice: Choice,
    found: Explanation,
    rows: int,
    arch: Arch,
    limits: Roofline | None,
    compiled: tuple[dict[str, Any] | None, str | None],
    elsewhere: str,
) -> None:
    """Print all of it.

    Args:
        choice: what a call runs.
        found: what it was chosen from.
        rows: number of rows.
        arch: the device.
        limits: what no kernel beats, if it is known.
        compiled: what `softgen show` tells of resources, or why it does not.
        elsewhere: why nothing was measured, if the GPU here was not asked.
    """
    problem = choice.variant.problem
    output.result(answer(choice, found, rows, limits, elsewhere))
    output.result(f"{describe(problem)}, {rows} rows, on {arch.device} ({arch.name})")
    output.result(f"chosen      {choice.variant.strategy.label}: {choice.origin}")
    output.result(f"why         {why(choice, found)}")
    if limits:
        _show_limits(limits)
    used, unknown = compiled
    output.result(f"launch      {_launch(choice.variant, rows, arch, used)}")
    output.result(f"occupancy   {sentence(used, arch) if used else f'not known: {unknown}'}")
    output.result("")
    candidates.show(found)
    output.result("")
    _show_strategies(found)
    output.result("")
    _show_knobs(found)
    output.result("")
    output.result(
        f"`expected` is a time over that of {_bound(problem)}: an estimate for each strategy, and "
        "for each setting that times what few bytes in flight, idle threads and a short last wave "
        f"cost. The tuner times the settings up to {cost.VARIANT_WITHIN} of the least, and a few "
        f"of each strategy up to {cost.STRATEGY_WITHIN} of it: {len(found.table)} of "
        f"{found.legal} here, with the chosen one. The guess is the first setting of the best "
        "strategy, which has an order of its own."
    )


def _show_limits(limits: Roofline) -> None:
    """Print the lines of the roofline."""
    output.result(
        f"memory      at least {short(limits.memory)} us: {limits.moved_bytes / 1e6:.4g} MB at "
        f"{limits.peaks.gigabytes_per_second:.0f} GB/s"
    )
    if limits.arithmetic is None or limits.teraflops is None:
        return
    exponentials = (
        f"; exponentials {short(limits.exponentials)} us" if limits.exponentials is not None else ""
    )
    output.result(
        f"arithmetic  at least {short(limits.arithmetic)} us: {limits.flops / 1e6:.4g} MFLOP "
        f"({limits.flops_per_element} an element) at {limits.teraflops:.1f} TFLOP/s{exponentials}"
    )
    most = max(limits.memory, limits.arithmetic, limits.exponentials or 0)
    if most < LAUNCH_MICROSECONDS:
        bound = "less than a launch takes, about 1.8 us"
    else:
        bound = "the memory decides" if most == limits.memory else "the arithmetic decides"
    ridge = limits.teraflops * 1e3 / limits.peaks.gigabytes_per_second
    output.result(
        f"roofline    {limits.flops / limits.moved_bytes:.2f} FLOP a byte, where the limits meet "
        f"at {ridge:.1f}: {bound}"
    )


def _launch(variant: Variant, rows: int, arch: Arch, used: dict[str, Any] | None) -> str:
    launch = variant.launch
    blocks = launch.grid(rows)
    said = f"{output.count(blocks, 'block')} of {launch.block_size} threads"
    if launch.cluster_size > 1:
        said += f" in clusters of {launch.cluster_size}"
    if used and used["blocks_per_multiprocessor"]:
        waves = blocks / (used["blocks_per_multiprocessor"] * arch.multiprocessors)
        said += f", {waves:.2f} waves of all {arch.multiprocessors} SMs"
    return said


def _show_strategies(found: Explanation) -> None:
    columns = {
        "strategy": [each.name for each in found.strategies],
        "expected": [f"{each.expected:.2f}" for each in found.strategies],
        "settings": [str(each.legal) for each in found.strategies],
        "let through": [str(each.considered) for each in found.strategies],
    }
    if found.timed:
        fastest = [each.best for each in found.strategies]
        columns["best us"] = [short(each.microseconds if each else None) for each in fastest]
        columns["setting"] = [
            each.variant.strategy.label if each else candidates.NONE for each in fastest
        ]
    candidates.print_columns(columns, ("setting",))


def _show_knobs(found: Explanation) -> None:
    """Print the choice's knobs with the best time at each value; meanings where there is room."""
    columns = {
        "knob": [each.name for each in found.knobs],
        "chosen": [_spell(each.value) for each in found.knobs],
        "best us at each value" if found.timed else "values": [
            "  ".join(
                f"{_spell(value)}: {short(time)}" if found.timed else _spell(value)
                for value, time in each.best.items()
            )
            for each in found.knobs
        ],
        "meaning": [each.meaning for each in found.knobs],
    }
    candidates.print_columns(columns, ("meaning",))


def _spell(value: int | bool) -> str:
    return str(value).lower()
