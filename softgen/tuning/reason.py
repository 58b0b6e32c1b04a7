"""Why the winner of a tuning won, in one sentence made of its numbers."""

from __future__ import annotations

import contextlib

from softgen.errors import SoftgenError
from softgen.strategies.variants import Variant, parse_name
from softgen.tuning.entry import Entry


def reason(entry: Entry, guess: Variant) -> str:
    """Return why the winner of a tuning won: its time beside those of others, in one sentence."""
    times = {timing.variant: timing.microseconds for timing in entry.timings}
    winner = entry.winner
    mine = times.pop(winner.name, None)
    if mine is None:
        return "the cache entry does not have its time"
    if not times:
        return "the only candidate that was timed"
    rival, best = min(times.items(), key=lambda each: each[1])
    said = ["the best guess"] if guess == winner else []
    if best < mine:
        said.append(f"within the noise of the fastest, {_label(rival)}, and guessed before it")
    elif guess == winner or guess.name not in times:
        said.append(f"{_compared(best / mine)} the next, {_label(rival)}")
    if guess.name in times:
        said.append(f"{_compared(times[guess.name] / mine)} the best guess, {guess.strategy.label}")
    elif guess != winner:
        said.append(f"the best guess, {guess.strategy.label}, was not timed")
    prefix = f"{winner.problem.label}_{winner.strategy.name}_"
    strangers = {name: time for name, time in times.items() if not name.startswith(prefix)}
    if strangers:
        name = min(strangers, key=lambda each: strangers[each])
        if _label(name) not in "".join(said):
            kind = _label(name).partition("_")[0]
            said.append(f"{_compared(strangers[name] / mine)} the best {kind}, {_label(name)}")
    return "; ".join(said)


def _compared(ratio: float) -> str:
    """Return how much less time than another a kernel takes, by the other's time over its own."""
    more = max(ratio, 1 / ratio) - 1
    if more < 0.0005:
        return "as fast as"
    return f"{more:.1%} {'faster' if ratio > 1 else 'slower'} than"


def _label(name: str) -> str:
    """Return the setting in the name of a variant; the name itself where it is none today."""
    with contextlib.suppress(SoftgenError):
        return parse_name(name).strategy.label
    return name
