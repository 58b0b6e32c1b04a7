"""Tuned winners that come with softgen: a JSON file a device, for what the user's cache lacks.

A winner is kept by the name of its variant, and counts as long as the name parses and is legal. It
is not tied to the code that was timed, as entries of the cache are: edits rarely change which
variant is fastest, and would throw away what only a maintainer with that GPU can make again.

Where a device has no table, or its table lacks a shape, `near` returns a first guess from the table
of the most similar device, and of a similar shape there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softgen import logs
from softgen.errors import SoftgenError
from softgen.problems.arch import KNOWN, MIB, Arch
from softgen.problems.functions.base import Function
from softgen.problems.problem import Problem, rows_bucket
from softgen.strategies.base import NO_PDL, PDL_NEEDS, Strategy
from softgen.strategies.registry import shipped_named
from softgen.strategies.variants import Variant, parse_label

SCHEMA = 1
DIRECTORY = Path(__file__).resolve().parent / "tables"

# From so many bytes read and written on, more rows of a width have the same winner, but for noise.
# At float32 128 x 4096 (4 MB) and 4096 x 4096 the winners differ, at 128 x 131072 they do not.
LARGE = 128 * MIB

# Where hooks take at least so many instructions an element, a setting that was tuned without hooks
# says nothing about one with them.
HEAVY = 2

# The winner of a width within the first factor and of rows within the second, or of many rows where
# many are asked for, is a better guess than the model's. At 62 shapes on an H200 that have both
# times it takes 1.000 of the tuned time in the median and 1.033 at most, the model's guess 1.016
# and 1.101 (tests/first_guesses.py). Eight times the rows are too many: bfloat16 1 x 128256 takes
# 1.31 with the winner of 8 rows.
NEAR_WIDTH = 1.1
NEAR_ROWS = 4
FEWER_SMS = 4  # times: a part of a GPU with fewer is too unlike, and may hold no cluster
SAME_ROWS = 0.5  # doublings between numbers of rows that are one, but for the number of SMs


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


@dataclass(frozen=True)
class Near:
    """A first guess from a table: of another device, or of another shape.

    Attributes:
        variant: the setting, for the problem that was asked for.
        device: the device whose table it is from.
        rows: how many rows it was tuned for, a bucket.
        cols: how many columns it was tuned for.
    """

    variant: Variant
    device: Arch
    rows: int
    cols: int

    @property
    def origin(self) -> str:
        """Where it is from, in the words of the command line."""
        return f"from the table of {named(self.device)}, tuned for {self.rows} x {self.cols}"


def named(device: Arch) -> str:
    """Return a device in the words of the command line, for example NVIDIA H200, 132 SMs."""
    return f"{device.device}, {device.multiprocessors} SMs"


def winner(problem: Problem, rows: int, arch: Arch) -> Variant | None:
    """Return the shipped winner for `rows` rows on the device of `arch`; None if there is none.

    A function that moves the same bytes with the same launch as another takes the other's winner
    where it has none of its own, and before that its twin's; so does a problem of views, or with
    hooks that cost little, that of the same without.
    """
    bucket = rows_bucket(rows)
    for wanted in _alike(problem):
        setting = _settings(wanted, arch.device).get((bucket, wanted.cols))
        if setting is not None and (found := fitting(setting, problem, arch)):
            return found
    return None


def winner_for_any_rows(problem: Problem, arch: Arch) -> Variant | None:
    """Return the shipped winner of the most rows, if they are so many that the memory decides."""
    for wanted in _alike(problem):
        known = _settings(wanted, arch.device)
        large = [shape for shape in known if shape[0] * wanted.bytes_per_row >= LARGE]
        setting = known[max(large)] if large else None
        if setting is not None and (found := fitting(setting, problem, arch)):
            return found
    return None


def near(problem: Problem, rows: int, arch: Arch) -> Near | None:
    """Return the guess for `rows` rows that the nearest table has; None if it has none.

    Of several shapes within NEAR_WIDTH and NEAR_ROWS it is the nearest whose setting is legal, and
    of another function, as in `winner`, the very shape. Rows count by SM: 128 on 132 SMs are as
    many as 64 on 66. A grid that was sized for another number of SMs is no guess: the strategy
    sizes its own.
    """
    device = nearest(arch)
    if device is None:
        return None
    alike = rows_bucket(rows) * device.multiprocessors / arch.multiprocessors
    for wanted in _alike(problem):
        same = wanted.function == problem.function
        known = _settings(wanted, device.device, NEAR_WIDTH if same else 1)
        distances = [(_far(wanted, alike, *shape), shape) for shape in known]
        most = math.inf if same else SAME_ROWS
        for _, shape in sorted(each for each in distances if each[0] < most):
            found = fitting(known[shape], problem, arch)
            sized = found is not None and found.launch.multiprocessors > 0
            if found and (not sized or arch.multiprocessors == device.multiprocessors):
                return Near(found, device, *shape)
    return None


def _far(problem: Problem, wanted: float, rows: int, cols: int) -> float:
    """Return how far a tuned shape is from `wanted` rows of `problem`; infinity if too far.

    A width that is twice another counts as much as 16 times the rows.
    """
    apart = abs(math.log2(rows / wanted))
    both_large = min(rows, wanted) * problem.bytes_per_row >= LARGE
    if apart > math.log2(NEAR_ROWS) and not both_large:
        return math.inf
    return apart + 4 * abs(math.log2(cols / problem.cols))


def nearest(arch: Arch) -> Arch | None:
    """Return the device whose table is read for `arch`: itself, else the most similar that has one.

    None if no table is there, or if that device has more than FEWER_SMS times the SMs.
    """
    if path_of(arch.device).exists():
        return arch
    found = min(with_tables(), key=functools.partial(_unlike, arch), default=None)
    if found and found.multiprocessors > FEWER_SMS * arch.multiprocessors:
        return None
    return found


def with_tables() -> list[Arch]:
    """Return the known devices that have a table."""
    return [known for known in KNOWN.values() if path_of(known.device).exists()]


def _unlike(arch: Arch, other: Arch) -> float:
    """Return how unlike two devices are: what they can do, what an SM holds, how many SMs.

    Each doubling counts as much as a feature: copies into shared memory, clusters.
    """
    features = sum(
        (arch.compute_capability >= first) != (other.compute_capability >= first)
        for first in ((8, 0), (9, 0))
    )
    sizes = (
        (arch.threads_per_multiprocessor, other.threads_per_multiprocessor),
        (arch.registers_per_multiprocessor, other.registers_per_multiprocessor),
        (arch.shared_per_block, other.shared_per_block),
        (arch.multiprocessors, other.multiprocessors),
    )
    return features + sum(abs(math.log2(mine / others)) for mine, others in sizes)


def fitting(setting: Strategy, problem: Problem, arch: Arch) -> Variant | None:
    """Return `problem` with the setting of a similar one; None if that is not legal for it.

    With hooks, or a third sum, fewer blocks may fit an SM. Elements that stay packed are unpacked
    where they must be or where hooks take arithmetic, as packed ones take a second exponential.
    Without hooks, views take a setting as it is. Before compute capability 9.0 none waits for the
    launch before it.
    """
    if arch.compute_capability < PDL_NEEDS:
        setting = setting.with_knobs(pdl=NO_PDL)
    found, knobs = [setting], setting.knobs
    if "min_blocks" in knobs and (problem.modifiers or problem.layout.starts_alike):
        stays = knobs.get("packed", False) and problem.hook_instructions < HEAVY
        found = [setting] if stays or not knobs.get("packed", False) else []
        for packed in dict.fromkeys((stays, False)):
            for blocks in range(knobs["min_blocks"], 0, -1):
                other: dict[str, Any] = {"min_blocks": blocks}
                other |= {"packed": packed} if "packed" in knobs else {}
                found.append(setting.with_knobs(**other))
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
    setting = _settings(problem, arch.device).get((rows_bucket(rows), problem.cols))
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


def _settings(problem: Problem, device: str, within: float = 1) -> dict[tuple[int, int], Strategy]:
    """Return the shipped settings of `device` for `problem`, by bucket of rows and columns.

    Columns are those of `problem`, and others within a factor, which start alike in packs. Names of
    other problems are not read: that would import every function and every strategy.
    """
    found: dict[tuple[int, int], Strategy] = {}
    stem = f"{problem.stem}_"
    for name, rows, _ in _winners(device):
        digits = name.removeprefix(stem).partition("_")[0] if name.startswith(stem) else ""
        cols = int(digits) if digits.isdecimal() else 0
        if not problem.cols / within <= cols <= problem.cols * within:
            continue
        begin, _, label = name.partition(f"{dataclasses.replace(problem, cols=cols).label}_")
        # What comes before the strategy is a layout, an alignment or hooks, of another problem.
        if begin or shipped_named(label.partition("_")[0]) is None:
            continue
        with contextlib.suppress(SoftgenError):  # its strategy or a knob has changed since
            found[rows, cols] = parse_label(label)
    return found


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
