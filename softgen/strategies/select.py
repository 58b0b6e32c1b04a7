"""From a caller's word to one variant: a strategy, a setting, a named choice, a full name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.names import unknown
from softgen.plugins import require_sound
from softgen.problems.arch import Arch
from softgen.problems.problem import DEFAULT_ROWS, MAX_ROWS, Problem, rows_bucket
from softgen.strategies import winners
from softgen.strategies.base import Strategy
from softgen.strategies.lessons.ladder import ARTICLES, LADDER, step
from softgen.strategies.oneflow import oneflow_dispatch
from softgen.strategies.registry import all_strategies
from softgen.strategies.variants import Variant, best_guess, is_full_name, parse_label, parse_name


def _step(name: str, problem: Problem, rows: int, arch: Arch) -> Strategy:
    return step(name, problem)


# Settings of other people's kernels by name: what OneFlow's dispatch takes, FastSoftmax's steps.
NAMED: dict[str, Callable[[Problem, int, Arch], Strategy]] = {
    "oneflow": oneflow_dispatch,
    **{name: partial(_step, name) for name in (*LADDER, *ARTICLES)},
}

Choice = str | Strategy | Variant | None


def select(problem: Problem, rows: int, arch: Arch, choice: Choice = None) -> Variant:
    """Return the variant of `problem` that `choice` names, legal on `arch`.

    Args:
        problem: the request.
        rows: number of rows, which moves the best guess and OneFlow's.
        arch: the architecture to be legal on.
        choice: None for the best guess, the name of a strategy for its best guess, the label of a
            setting (warp_p4_c32_g32_r1_pad_b128), a name of NAMED for that setting, the full name
            of a variant, a Strategy or a Variant.

    Raises InvalidValueError for an unknown name or one that belongs to another problem,
    IllegalVariantError if the setting cannot compute `problem` on `arch`.
    """
    names = [kind.name for kind in all_strategies()]
    if choice is None or (isinstance(choice, str) and choice in names):
        return best_guess(problem, rows, arch, choice)
    variant = _named(problem, rows, arch, choice, names)
    if variant.problem != problem:
        raise InvalidValueError(
            f"variant {variant.name} computes {describe(variant.problem)}, "
            f"and the request is {describe(problem)}; "
            f"choose a name that starts with {problem.label}_ (`softgen list` prints them, with "
            "--batch-invariant those with `fixed`)"
        )
    variant.check(arch)
    return variant


@dataclass(frozen=True)
class Untimed:
    """A choice that was made without timing anything here.

    Attributes:
        variant: what was chosen.
        tuned_on: the device whose shipped table it is from; empty for a best guess.
        rows: how many rows it is for; None for any number.
        near: what the table has it for, if that is another device or another shape.
    """

    variant: Variant
    tuned_on: str
    rows: int | None
    near: winners.Near | None = None

    @property
    def origin(self) -> str:
        """Where the choice is from, in the words of the command line."""
        if self.near is not None:
            return self.near.origin
        rows = "any number of rows" if self.rows is None else f"{self.rows} rows"
        return f"tuned on {self.tuned_on} for {rows}" if self.tuned_on else f"best guess for {rows}"


def untimed(problem: Problem, rows: int, arch: Arch, batch_invariant: bool = False) -> Untimed:
    """Return what a call on the device of `arch` runs where it tunes nothing and has no cache.

    It is the winner that softgen ships for that device, else what the nearest table has for a
    similar shape, else the best guess. With `batch_invariant` the rows do not count.
    """
    sized = None if batch_invariant else rows
    bucket = rows_bucket(max(1, rows))
    if batch_invariant:
        winner = winners.winner_for_any_rows(problem, arch)
    else:
        winner = winners.winner(problem, bucket, arch)
    if winner is not None:
        return Untimed(winner, arch.device, sized)
    near = winners.near(problem, MAX_ROWS if batch_invariant else bucket, arch)
    if near is not None:
        return Untimed(near.variant, near.device.device, sized, near)
    guess = best_guess(problem, DEFAULT_ROWS if batch_invariant else bucket, arch)
    return Untimed(guess, "", sized)


def shipped_of(
    strategy: str, problem: Problem, rows: int, arch: Arch, batch_invariant: bool = False
) -> Untimed | None:
    """Return the winner that softgen ships, if it is of the strategy of that name.

    The name alone chooses the strategy's best guess: the winner is asked for by its own name.
    """
    found = untimed(problem, rows, arch, batch_invariant)
    shipped = found.tuned_on and found.near is None
    return found if shipped and found.variant.strategy.name == strategy else None


def describe(problem: Problem) -> str:
    """Return a problem in the words of the command line."""
    types = problem.dtype.value
    if problem.out_dtype is not problem.dtype:
        types += f" to {problem.out_dtype.value}"
    order = ", batch-invariant" if problem.fixed_order else ""
    layout = f", {problem.layout.label}" if problem.layout.label else ""
    return (
        f"{problem.computed} of {types} with {problem.cols} columns, "
        f"alignment {problem.alignment}{order}{layout}"
    )


def _named(problem: Problem, rows: int, arch: Arch, choice: object, names: list[str]) -> Variant:
    if isinstance(choice, Variant):
        return choice
    if isinstance(choice, Strategy):
        return Variant(problem, choice)
    if not isinstance(choice, str):
        raise InvalidTypeError(
            f"a variant is chosen by a name, a Strategy or a Variant, not by {choice!r}"
        )
    if choice in NAMED:
        return Variant(problem, NAMED[choice](problem, rows, arch))
    name, _, knobs = choice.partition("_")
    require_sound(name)
    if knobs and name in names:
        return Variant(problem, parse_label(choice))
    if is_full_name(choice):
        return parse_name(choice)
    raise _unknown(choice, names)


def require_known(choice: str) -> None:
    """Raise InvalidValueError unless `choice` is, or begins as, a name that needs a problem."""
    names = [kind.name for kind in all_strategies()]
    name = choice.partition("_")[0]
    require_sound(name)
    if name not in names and choice not in NAMED:
        raise _unknown(choice, names)


def _unknown(choice: str, names: list[str]) -> InvalidValueError:
    more = (
        ", settings such as online_p4_u2_b128, and full names such as "
        "softmax_f32_1000_online_p4_u2_b128"
    )
    more += _not_installed(choice.partition("_")[0])
    if re.fullmatch(r"\d+x\d+", choice):
        more += f". {choice} is a shape, which --shape takes"
    return InvalidValueError(unknown("variant", choice, [*names, *NAMED], more))


def _not_installed(name: str) -> str:
    """Return what to do where the checkout here has that strategy, and another softgen runs."""
    file, running = Path("softgen/strategies", f"{name}.py"), Path(__file__).parent
    if not name.isidentifier() or not file.is_file() or file.parent.resolve() == running.resolve():
        return ""
    return (
        f". The checkout here has {file}, and the softgen that runs is {running.parent}: install "
        "the checkout with `pip install -e .`"
    )
