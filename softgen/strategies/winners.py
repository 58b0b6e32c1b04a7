"""Tuned winners that come with softgen: a JSON file a device, for what the user's cache lacks.

A winner is kept by the name of its variant, and counts as long as the name parses and is legal. It
is not tied to the code that was timed, as entries of the cache are: edits rarely change which
variant is fastest, and would throw away what only a maintainer with that GPU can make again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softgen import logs
from softgen.errors import SoftgenError
from softgen.problems.arch import MIB, Arch
from softgen.problems.functions.base import Function
from softgen.problems.layouts import LABEL
from softgen.problems.problem import Problem, rows_bucket
from softgen.strategies.base import Strategy
from softgen.strategies.variants import Variant, parse_label

SCHEMA = 1
DIRECTORY = Path(__file__).resolve().parent / "tables"

# From so many bytes read and written on, more rows of a width have the same winner, but for noise.
# At float32 128 x 4096 (4 MB) and 4096 x 4096 the winners differ, at 128 x 131072 they do not.
LARGE = 128 * MIB

# Where hooks take at least so many instructions an element, a setting that was tuned without hooks
# says nothing about one with them.
HEAVY = 2


@dataclass(frozen=True)
class Times:
    """What a shipped winner took, in microseconds.

    Attributes:
        rows: of how many rows; None where only their bucket is kept.
        guess: what the first guess took beside it, in the same run; None where none was timed.
        copy: what the fastest copy of the same bytes took, or the fastest read where nothing of an
            element is written.
    """

    microseconds: float
    rows: int | None = None
    guess: float | None = None
    copy: float | None = None


def winner(problem: Problem, rows: int, arch: Arch) -> Variant | None:
    """Return the shipped winner for `rows` rows on the device of `arch`; None if there is none.

    A function that moves the same bytes with the same launch as another takes the other's winner
    where it has none of its own, and before that its twin's; so does a problem of views, or with
    hooks that cost little, that of the same without.
    """
    bucket = rows_bucket(rows)
    for wanted in _alike(problem):
        setting = _settings(wanted, arch.device).get(bucket)
        if setting is not None and (found := fitting(setting, problem, arch)):
            return found
    return None


def winner_for_any_rows(problem: Problem, arch: Arch) -> Variant | None:
    """Return the shipped winner of the most rows, if they are so many that the memory decides."""
    for wanted in _alike(problem):
        known = _settings(wanted, arch.device)
        rows = [r for r in known if r * wanted.bytes_per_row >= LARGE]
        setting = known[max(rows)] if rows else None
        if setting is not None and (found := fitting(setting, problem, arch)):
            return found
    return None


def fitting(setting: Strategy, problem: Problem, arch: Arch) -> Variant | None:
    """Return `problem` with the setting of a similar one; None if that is not legal for it.

    With hooks, or a third sum, fewer blocks may fit an SM. Elements that stay packed are unpacked
    where they must be or where hooks take arithmetic, as packed ones take a second exponential.
    Without hooks, views take a setting as it is.
    """
    found, knobs = [setting], setting.knobs
    if "min_blocks" in knobs and (problem.modifiers or problem.layout.starts_alike):
        stays = knobs.get("packed", False) and problem.hook_instructions < HEAVY
        found = [setting] if stays or not knobs.get("packed", False) else []
        for packed in dict.fromkeys((stays, False)):
            for blocks in range(knobs["min_blocks"], 0, -1):
                other: dict[str, Any] = {"min_blocks": blocks}
                other |= {"packed": packed} if "packed" in knobs else {}
                found.append(dataclasses.replace(setting, **other))
    return next((Variant(problem, s) for s in found if s.is_legal(problem, arch)), None)


def takes_bare(problem: Problem) -> bool:
    """Whether a setting that was tuned without the problem's hooks says much about it with them.

    A kernel without hooks waits for memory, whatever its instructions, and all its rows have one
    length. At bfloat16 131072 x 2048 on an H200 the winner without takes 291 us with softcap, 303
    with dropout, 248 with causal and 263 with lengths, the first guess 256, 257, 205 and 217.
    """
    return problem.hook_instructions < HEAVY and not problem.shortens


def own(problem: Problem, rows: int, arch: Arch) -> Variant | None:
    """Return the winner that was shipped for these hooks themselves; None if there is none."""
    setting = _settings(problem, arch.device).get(rows_bucket(rows))
    return fitting(setting, problem, arch) if setting is not None else None


def times_of(variant: Variant, rows: int, device: str) -> Times | None:
    """Return what a shipped winner of the bucket of `rows` took on `device`, None if it is none."""
    wanted = (variant.name, rows_bucket(max(1, rows)))
    return next((times for *shipped, times in _winners(device) if tuple(shipped) == wanted), None)


def _alike(problem: Problem) -> Iterator[Problem]:
    """Yield the problem and those whose winners it takes, nearest first."""
    function = problem.function
    names = {function.twin: None, function.like: None}  # in this order
    others = [Function.of(name) for name in names if name not in ("", function.name)]
    others += [Function.of(each.like) for each in others[-1:] if each.like != each.name]
    for wanted in dict.fromkeys((problem, problem.bare) if takes_bare(problem) else (problem,)):
        for each in (function, *others):
            yield dataclasses.replace(wanted, function=each)


def path_of(device: str) -> Path:
    """Return the file for the device of that name, which need not exist."""
    slug = re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_")
    return DIRECTORY / f"{slug}.json"


def _settings(problem: Problem, device: str) -> dict[int, Strategy]:
    """Return the shipped settings of `device` for `problem`, by bucket of rows.

    Names of other problems are not read: that would import every function and every strategy.
    """
    found: dict[int, Strategy] = {}
    for name, rows, _ in _winners(device):
        begin, _, label = name.partition(f"{problem.label}_")
        if begin or not label or re.match(_OF_ANOTHER, label):
            continue
        with contextlib.suppress(SoftgenError):  # its strategy or a knob has changed since
            found[rows] = parse_label(label)
    return found


# What may come in a name between the columns and the setting. Compiled at its first use.
_OF_ANOTHER = rf"{LABEL}_|align\d+_|fixed_"


def _times(line: dict[str, Any]) -> Times | None:
    """Return the times of an entry: those of a benchmark, where it has them, else the tuner's."""
    if beside := line.get("beside"):
        return Times(**beside)
    return Times(line["microseconds"]) if line.get("microseconds") else None


@functools.cache
def _winners(device: str) -> list[tuple[str, int, Times | None]]:
    """Return the names, rows and times of the shipped winners of `device`."""
    path = path_of(device)
    found: list[tuple[str, int, Times | None]] = []
    try:
        data: Any = json.loads(path.read_text())
        if data["schema"] != SCHEMA or data["device"] != device:
            return found
        found = [
            (str(each["variant"]), int(each["rows"]), _times(each)) for each in data["entries"]
        ]
    except FileNotFoundError:
        return found
    except (OSError, ValueError, KeyError, TypeError) as error:
        logs.warning("ignoring the table of tuned winners %s: %r", path, error)
        return found
    return found
