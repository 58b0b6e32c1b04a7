"""Why a variant was chosen: the candidates, what was expected of each and what it took."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from softgen.devices.gpu.device import arch_of, environment, require_device
from softgen.errors import SoftgenError
from softgen.problems.arch import Arch
from softgen.problems.problem import Problem, rows_bucket
from softgen.problems.roofline import Peaks, data_sheet_peaks
from softgen.strategies.base import Strategy
from softgen.strategies.variants import Variant, candidates, parse_name
from softgen.tuning import cache
from softgen.tuning.cost import cost, worth_timing
from softgen.tuning.entry import Entry, Key, Timing


@dataclass(frozen=True)
class Candidate:
    """A setting that the cost model lets through, that was timed, or that is the choice.

    Attributes:
        expected: about its time over that of a copy, by the cost model.
        timing: what it took; None if it was not timed.
        failure: why it was not timed, where the tuner says so.
    """

    variant: Variant
    expected: float
    timing: Timing | None = None
    failure: str = ""

    @property
    def microseconds(self) -> float | None:
        """The median device time, if it was timed."""
        return self.timing.microseconds if self.timing else None


@dataclass(frozen=True)
class Row:
    """A strategy among the candidates.

    Attributes:
        expected: the time of its best guess over that of a copy, by `Strategy.estimate`.
        legal: how many settings it offers for the problem.
        considered: how many of them the table has.
        best: the fastest of those that were timed, if any.
    """

    name: str
    expected: float
    legal: int
    considered: int
    best: Candidate | None


@dataclass(frozen=True)
class Knob:
    """A knob of the winner's strategy, and the values that its settings have.

    Attributes:
        value: the winner's.
        best: the least time in microseconds of the settings with each value; None where none of
            them was timed.
    """

    name: str
    meaning: str
    value: int | bool
    best: dict[int | bool, float | None]


@dataclass(frozen=True)
class Explanation:
    """What there was to choose from, for one number of rows on one device.

    Attributes:
        guess: the best guess, which stands where nothing is known.
        legal: how many settings the strategies offer, those that were not considered too.
        table: the candidates and the winner, those that were timed first, fastest first, then by
            what is expected.
        strategies: best first as a guess.
        knobs: those of the winner's strategy.
    """

    winner: Variant
    guess: Variant
    legal: int
    table: tuple[Candidate, ...]
    strategies: tuple[Row, ...]
    knobs: tuple[Knob, ...]

    @property
    def timed(self) -> bool:
        """Whether there is a time of any candidate."""
        return any(candidate.timing for candidate in self.table)


def explain(
    problem: Problem, rows: int, arch: Arch, winner: Variant, entry: Entry | None = None
) -> Explanation:
    """Return what `winner` was chosen from.

    Args:
        problem: the request.
        rows: number of rows.
        arch: the device.
        winner: what a call runs.
        entry: the choice in the cache, if there is one.
    """
    # As the tuner looked at them; a guess is made for the bucket.
    sized = entry.rows if entry else rows_bucket(max(1, rows))
    # The tuner tries more than the candidates, its fastest with other values of pdl: what it found
    # and what is shipped need not be among them.
    table = candidate_table(problem, sized, arch, entry, winner)
    every = [*candidates(problem, sized, arch), *(each.variant for each in table)]
    found = list(dict.fromkeys(every))
    kinds = list(dict.fromkeys(type(variant.strategy) for variant in found))
    return Explanation(
        winner,
        found[0],
        len(found),
        table,
        tuple(_row(kind, found, table, sized, arch) for kind in kinds),
        _knobs(winner.strategy, found, table),
    )


def candidate_table(
    problem: Problem,
    rows: int,
    arch: Arch,
    entry: Entry | None = None,
    winner: Variant | None = None,
) -> tuple[Candidate, ...]:
    """Return the candidates for `rows` rows, and `winner`, with what `entry` keeps of them.

    Those that were timed come first, fastest first, then the others by what is expected of them.
    """
    timings = {timing.variant: timing for timing in entry.timings} if entry else {}
    failures = dict(entry.failures) if entry else {}
    found = {variant.name: variant for variant in worth_timing(problem, rows, arch)}
    for name in timings:
        with contextlib.suppress(SoftgenError):  # of a strategy that has changed since
            found.setdefault(name, parse_name(name))
    if winner is not None:
        found.setdefault(winner.name, winner)
    table = [
        Candidate(*(variant, cost(variant, rows, arch)), timings.get(name), failures.get(name, ""))
        for name, variant in found.items()
    ]
    return tuple(
        sorted(table, key=lambda c: (c.timing is None, c.microseconds or c.expected, c.expected))
    )


def _row(
    kind: type[Strategy],
    found: Sequence[Variant],
    table: Sequence[Candidate],
    rows: int,
    arch: Arch,
) -> Row:
    mine = [candidate for candidate in table if type(candidate.variant.strategy) is kind]
    return Row(
        kind.name,
        kind.estimate(found[0].problem, rows, arch),
        sum(type(variant.strategy) is kind for variant in found),
        len(mine),
        next((candidate for candidate in mine if candidate.timing), None),
    )


def _knobs(
    strategy: Strategy, found: Sequence[Variant], table: Sequence[Candidate]
) -> tuple[Knob, ...]:
    mine = [variant for variant in found if type(variant.strategy) is type(strategy)]
    times = {candidate.variant: candidate.microseconds for candidate in table}
    knobs = []
    for field in strategy.fields():
        best: dict[int | bool, float | None] = {}
        for variant in mine:
            value, time = variant.strategy.knobs[field.name], times.get(variant)
            least = best.get(value)
            best[value] = time if least is None or (time is not None and time < least) else least
        knobs.append(
            Knob(
                field.name,
                field.metadata["meaning"],
                strategy.knobs[field.name],
                dict(sorted(best.items())),
            )
        )
    return tuple(knobs)


@dataclass(frozen=True)
class Here:
    """The GPU of this machine, as far as choices are concerned."""

    arch: Arch
    peaks: Peaks | None
    entry: Entry | None


def look_here(problem: Problem, rows: int) -> Here:
    """Return what the current GPU is, and what is stored for it; NoDeviceError if there is none."""
    runtime = require_device().cuda.runtime
    device = int(runtime.getDevice())
    arch = arch_of(device)
    key = Key.of(problem, rows, environment(device))
    return Here(arch, peaks_of(device, arch), cache.load(key, arch))


def peaks_of(device: int, arch: Arch) -> Peaks | None:
    """Return the peaks that the driver tells of device number `device`.

    Where it does not tell the clock of the memory they are the data sheet's.
    """
    runtime = require_device().cuda.runtime
    kilohertz, bits, of_memory = (
        runtime.deviceGetAttribute(getattr(runtime, f"cudaDevAttr{name}"), device)
        for name in ("ClockRate", "GlobalMemoryBusWidth", "MemoryClockRate")
    )
    if not (kilohertz and bits and of_memory):
        return data_sheet_peaks(arch)
    # Two transfers a clock, of `bits` bits each.
    return Peaks(2 * of_memory * bits / 8 / 1e6, kilohertz / 1e3)
