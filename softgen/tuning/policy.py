"""Which variant a call uses: the tune= modes, their environment variables, one tuning at a time."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from softgen import logs
from softgen.devices.gpu.device import arch_of, environment
from softgen.errors import InvalidValueError, NoRoomError
from softgen.problems.arch import Arch
from softgen.problems.problem import DEFAULT_ROWS, Problem, rows_bucket
from softgen.strategies import winners
from softgen.strategies.variants import Variant, best_guess, candidates
from softgen.switches import is_on
from softgen.tuning import cache
from softgen.tuning.entry import Entry, Key

MODES = ("on", "cached", "off", "force")
DEFAULT_BUDGET = 2.0
# With batch_invariant the rows of a call do not count: the choice is made as for this many.
NOMINAL_ROWS = DEFAULT_ROWS

_locks: dict[Key, threading.Lock] = {}
_locks_guard = threading.Lock()


def tune_mode(argument: str | None) -> str:
    """Return the mode of a call: its argument, else SOFTGEN_TUNE, else "on"."""
    mode = argument if argument is not None else os.environ.get("SOFTGEN_TUNE") or "on"
    if mode not in MODES:
        origin = "tune" if argument is not None else "the environment variable SOFTGEN_TUNE"
        raise InvalidValueError(f"{origin} must be one of {', '.join(MODES)}; got {mode!r}")
    return mode


def tune_budget() -> float:
    """Return the seconds that a call may spend on tuning: SOFTGEN_TUNE_BUDGET, else 2."""
    text = os.environ.get("SOFTGEN_TUNE_BUDGET")
    if not text:
        return DEFAULT_BUDGET
    try:
        budget = float(text)
    except ValueError:
        budget = -1.0
    if not 0 < budget < float("inf"):
        raise InvalidValueError(
            f"the environment variable SOFTGEN_TUNE_BUDGET must be seconds above 0, got {text!r}"
        )
    return budget


def batch_invariant_default() -> bool:
    """Whether SOFTGEN_BATCH_INVARIANT asks for the same bits of a row in any batch."""
    return is_on("SOFTGEN_BATCH_INVARIANT")


def debugging() -> bool:
    """Whether SOFTGEN_DEBUG asks for a line about each choice."""
    return is_on("SOFTGEN_DEBUG")


def tell(variant: Variant, rows: int, device: str, origin: str, start: float) -> None:
    """Print one line about a choice on stderr: where it is from, and the seconds since `start`."""
    sys.stderr.write(  # one write: lines of two threads do not mix
        f"softgen: {variant.problem.label} for {rows} rows on {device}: {variant.strategy.label}, "
        f"{origin}, {time.perf_counter() - start:.3f} s\n"
    )


class Chosen(NamedTuple):
    """A choice.

    Attributes:
        variant: what was chosen.
        origin: where it is from, in words.
    """

    variant: Variant
    origin: str


def choose(problem: Problem, rows: int, device: int, mode: str) -> Chosen:
    """Return the variant for `rows` rows on `device`, tuning first if the mode says so.

    Args:
        problem: the request.
        rows: number of rows.
        device: the current device's number.
        mode: "on" tunes once where no choice is stored or shipped, and takes the first guess where
            memory is too short to tune; "cached" takes the stored or shipped choice or the first
            guess, "off" the best guess, "force" tunes again. The first guess is what the nearest
            table has for a similar shape, else the best guess. For rows of views, or with hooks, it
            is the choice for contiguous rows without; for views "on" tunes nothing, and with hooks
            "force" tunes those.
    """
    arch = arch_of(device)
    if mode == "off":
        return _best_guess(problem, rows, arch)
    if problem.bare != problem and not (mode == "force" and problem.hooks):
        return _as_bare(problem, rows, device, mode)
    key = Key.of(problem, rows, environment(device))
    if mode != "force":
        stored = cache.load(key, arch)
        if stored is not None:
            return Chosen(stored.winner, "from the cache")
        shipped = winners.winner(problem, rows, arch)
        if shipped is not None:
            return Chosen(shipped, "shipped")
        if mode == "cached":
            return _guess(problem, rows, arch)
    with _lock_of(key):
        # Another thread may have finished a tuning since this one looked.
        stored = cache.load(key, arch, quiet=True) if mode == "on" else None
        if stored is not None:
            return Chosen(stored.winner, "tuned by another thread")
        try:
            tuned = _tune_and_log(problem, rows)
        except NoRoomError as error:
            if mode == "force":
                raise
            logs.warning("not tuned, the first guess is taken: %s", error)
            return _guess(problem, rows, arch)
        return Chosen(tuned.winner, f"tuned, {len(tuned.timings)} candidates timed")


def _as_bare(problem: Problem, rows: int, device: int, mode: str) -> Chosen:
    """Return the choice for contiguous rows without hooks, where that is legal, else a guess.

    So a new hook costs no tuning. Views have as many widths as a cache has lengths: a call times
    none of them unasked, not as contiguous rows either. Hooks may have been tuned by name.
    """
    arch, bare = arch_of(device), problem.bare
    if problem.hooks:
        stored = cache.load(Key.of(problem, rows, environment(device)), arch, quiet=True)
        if stored is not None:
            return Chosen(stored.winner, "from the cache")
        shipped = winners.own(problem, rows, arch)
        if shipped is not None:
            return Chosen(shipped, "shipped")
        if not winners.takes_bare(problem):
            return _guess(problem, rows, arch)
    of_views = problem.layout != bare.layout
    alike = choose(bare, rows, device, "cached" if mode == "on" and of_views else mode)
    fits = winners.fitting(alike.variant.strategy, problem, arch)
    return Chosen(fits, alike.origin) if fits else _guess(problem, rows, arch)


def _guess(problem: Problem, rows: int, arch: Arch) -> Chosen:
    near = winners.near(problem, rows, arch)
    return Chosen(near.variant, near.origin) if near else _best_guess(problem, rows, arch)


def _best_guess(problem: Problem, rows: int, arch: Arch) -> Chosen:
    return Chosen(best_guess(problem, rows_bucket(rows), arch), "best guess")


def choose_invariant(problem: Problem, device: int) -> Chosen:
    """Return the variant for any number of rows, which nothing but the model of the device moves.

    What a tuning finds may differ from one GPU of a model to the next, so none is used: it is the
    winner that comes with softgen, else the first guess for many rows.
    """
    from softgen.strategies.select import (
        untimed,  # every strategy: a first call loads its own alone
    )

    found = untimed(problem, NOMINAL_ROWS, arch_of(device), batch_invariant=True)
    if found.near is not None:
        return Chosen(found.variant, found.origin)
    origin = "shipped" if found.tuned_on else "best guess"
    return Chosen(found.variant, f"{origin} for any number of rows")


def others(first: Variant, rows: int, device: int) -> Iterator[Variant]:
    """Yield what to take, in this order, where `first` turns out not to do."""
    found = candidates(first.problem, rows_bucket(rows), arch_of(device))
    return itertools.filterfalse(first.__eq__, found)


def _lock_of(key: Key) -> threading.Lock:
    """Return the lock that lets one thread a key tune."""
    with _locks_guard:
        return _locks.setdefault(key, threading.Lock())


def _tune_and_log(problem: Problem, rows: int) -> Entry:
    from softgen.tuning.tune import (
        tune,  # 15 ms that a process whose choices are known does not spend
    )

    start = time.perf_counter()
    entry = tune(problem, rows, budget=tune_budget())
    logs.info(
        "tuned %s for %d rows in %.1f s: %s (%d candidates timed)",
        problem.label,
        rows,
        time.perf_counter() - start,
        entry.winner.strategy.label,
        len(entry.timings),
    )
    return entry
