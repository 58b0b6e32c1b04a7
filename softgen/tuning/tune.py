"""Find the fastest variant for a shape on this GPU: verify, time, time finalists again, choose."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from softgen.devices.gpu.compile import compile_many
from softgen.devices.gpu.device import arch_of, environment, require_device
from softgen.devices.gpu.driver import primary_context
from softgen.devices.gpu.kernel import LoadedKernel
from softgen.errors import CompileError, VerificationError
from softgen.problems.arch import Arch
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies import winners
from softgen.strategies.base import TRIGGERS, TRIGGERS_FIRST, WAITS
from softgen.strategies.variants import Variant
from softgen.tuning import cache
from softgen.tuning.cost import worth_timing
from softgen.tuning.entry import Entry, Key, Timing
from softgen.tuning.gate import Gate
from softgen.tuning.measure import Buffers, Stopwatch

SCREENING_SECONDS = 0.01  # host time that each candidate is timed for at first
# Who comes to the finals: all within the noise of so short a look, while the clocks still rise.
SCREENING_NOISE = 0.05
LEAST_FINALISTS, MOST_FINALISTS = 4, 8
MOST_TRIGGERING = 5  # of the fastest are timed with the other values of pdl as well
FINAL_ROUNDS = 16
FINAL_SECONDS = 0.005
# Below this a difference of 0.1 us between two kernels counts, so there are twice the rounds.
TINY_MICROSECONDS = 10.0
# Candidates this close are equals, and the one that comes first as a guess wins, so that the next
# tuning chooses it too. Repeated runs of one kernel differ by up to 1% on an idle H200, but
# finalists take turns: what all of a round share falls out.
NOISE = 0.003
BUDGET_FOR_SCREENING = 0.7  # of the budget; the finals get the rest


@dataclass(frozen=True)
class Progress:
    """Where a tuning stands.

    Attributes:
        done: candidates looked at.
        total: candidates in all, those that the cost model lets through.
        variant: the last one.
        best: the fastest so far, if any.
        gigabytes_per_second: of the fastest, counting each array once.
    """

    done: int
    total: int
    variant: str
    best: str | None
    gigabytes_per_second: float | None


def tune(
    problem: Problem,
    rows: int,
    *,
    budget: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Entry:
    """Time the candidates for `rows` rows on the current device, store the winner and return it.

    Those that the cost model rules out are not compiled.

    Args:
        problem: the request.
        rows: number of rows; where memory is short, fewer are timed.
        budget: seconds to spend, about; at least the first guess is timed. No limit by default.
        progress: called after each candidate.

    Raises NoDeviceError without a GPU, and VerificationError if no candidate agrees with the safe
    kernel, which would be a bug of softgen.
    """
    # On all SMs, also where the caller has but some: the choice is for the GPU.
    with primary_context():
        return _tune(problem, rows, budget, progress)


def _tune(
    problem: Problem,
    rows: int,
    budget: float | None,
    progress: Callable[[Progress], None] | None,
) -> Entry:
    device = require_device().cuda.runtime.getDevice()
    start = time.perf_counter()
    deadline = start + budget if budget is not None else float("inf")
    screening_end = start + budget * BUDGET_FOR_SCREENING if budget is not None else float("inf")

    arch = arch_of(device)
    buffers = Buffers.allocate(problem, rows)
    found = _worth_timing(problem, rows, arch)
    screen = _Screen(problem, buffers, len(found), progress)
    for kernel in _compiled(found, screen.failures):
        screen.look_at(kernel)
        if time.perf_counter() > screening_end:
            break
    if not screen.timings:
        raise VerificationError(
            f"no candidate for {problem.label} on {arch.device} works: {screen.failures}"
        )
    if time.perf_counter() < deadline:
        for kernel in _compiled(_triggering(screen), screen.failures):
            screen.look_at(kernel)
    winner, timings = _finals(screen, deadline)
    if buffers.rows < rows:
        timings = tuple(timing.times(rows / buffers.rows) for timing in timings)
    key = Key.of(problem, rows, environment(device))
    failures = tuple(sorted(screen.failures.items()))
    entry = Entry(key, winner.variant, timings, failures, rows=rows)
    cache.store(entry)
    return entry


def _worth_timing(problem: Problem, rows: int, arch: Arch) -> list[Variant]:
    """Return the candidates, first what the nearest table has for a similar shape."""
    found, near = worth_timing(problem, rows, arch), winners.near(problem, rows, arch)
    return [near.variant, *(v for v in found if v != near.variant)] if near else found


def _compiled(found: list[Variant], failures: dict[str, str]) -> Iterator[LoadedKernel]:
    """Compile the candidates in parallel and yield, in order, what can be timed."""
    for variant, made in zip(found, compile_many(map(render, found)), strict=True):
        if isinstance(made, CompileError):
            failures[variant.name] = str(made)
        elif made.local_bytes:
            failures[variant.name] = f"spills {made.local_bytes} bytes of registers a thread"
        else:
            yield made


def _triggering(screen: _Screen) -> list[Variant]:
    """Return the fastest few so far, letting the next launch go elsewhere than they do.

    On an H200 doing so before their stores is worth up to 9% of a short kernel, and cost 3% at
    float32 128 x 4096. At once it took float32 128 x 1024 from 2.17 to 1.76 us, and bfloat16
    8 x 128256 from 3.47 to 3.55.
    """
    order = sorted(screen.timings.values(), key=lambda timing: timing.microseconds)
    found = [screen.kernels[timing.variant].variant for timing in order]
    waiting = [v for v in found if v.strategy.pdl and v.strategy.triggers]
    return [
        Variant(v.problem, dataclasses.replace(v.strategy, pdl=pdl))
        for v in waiting[:MOST_TRIGGERING]
        for pdl in (WAITS, TRIGGERS, TRIGGERS_FIRST)
        if pdl != v.strategy.pdl
    ]


class _Screen:
    """The first look at every candidate: does it agree, and about how long does it take."""

    def __init__(
        self,
        problem: Problem,
        buffers: Buffers,
        total: int,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.gate = Gate(problem, buffers)
        self.stopwatch = Stopwatch(buffers)
        self.bytes = buffers.rows * problem.bytes_per_row
        self.kernels: dict[str, LoadedKernel] = {}
        self.timings: dict[str, Timing] = {}
        self.failures: dict[str, str] = {}
        self.total = total
        self.progress = progress

    def look_at(self, kernel: LoadedKernel) -> None:
        """Check and time one candidate."""
        name = kernel.variant.name
        objection = self.gate.objection(kernel)
        if objection:
            self.failures[name] = objection
        else:
            if not self.timings:
                self.stopwatch.warm_up(kernel)
            self.kernels[name] = kernel
            samples = self.stopwatch.samples(kernel, SCREENING_SECONDS)
            self.timings[name] = Timing.of(name, samples)
        if self.progress and len(self.timings) + len(self.failures) <= self.total:
            best = min(self.timings.values(), key=lambda t: t.microseconds, default=None)
            rate = self.bytes / best.microseconds / 1e3 if best else None
            done = len(self.timings) + len(self.failures)
            self.progress(Progress(done, self.total, name, best.variant if best else None, rate))


def _finals(screen: _Screen, deadline: float) -> tuple[LoadedKernel, tuple[Timing, ...]]:
    """Time the fastest few again, taking turns, and choose."""
    names = _finalists(screen.timings)
    tiny = min(screen.timings[name].microseconds for name in names) < TINY_MICROSECONDS
    samples: dict[str, list[list[float]]] = {name: [] for name in names}
    for round_number in range(FINAL_ROUNDS * 2 if tiny else FINAL_ROUNDS):
        if round_number >= 2 and time.perf_counter() > deadline:
            break
        for name in names:
            kernel = screen.kernels[name]
            samples[name].append(screen.stopwatch.samples(kernel, FINAL_SECONDS, least=2))
    final = {name: Timing.of(name, [*itertools.chain(*samples[name])]) for name in names}
    timings = {**screen.timings, **final}
    winner = screen.kernels[choose_finalist(samples)]
    return winner, tuple(sorted(timings.values(), key=lambda timing: timing.microseconds))


def _finalists(timings: dict[str, Timing]) -> list[str]:
    """Return the fastest of the screening, and the first guess, in the order of the candidates."""
    order = sorted(timings.values(), key=lambda timing: timing.microseconds)
    limit = order[0].microseconds * (1 + SCREENING_NOISE)
    near = [t for t in order[:MOST_FINALISTS] if t.microseconds <= limit]
    chosen = {timing.variant for timing in [*near, *order[:LEAST_FINALISTS]]}
    return [name for i, name in enumerate(timings) if i == 0 or name in chosen]


def choose_finalist(samples: dict[str, list[list[float]]]) -> str:
    """Return the first finalist that is as fast as the fastest, but for the noise.

    Args:
        samples: the times in each round, by name, best guess first.

    What is compared is the median over the rounds of a finalist's time over the mean of all in that
    round. When the clocks step half way, medians of plain times fall on either side of the step.
    """
    rounds = {name: [statistics.median(each) for each in found] for name, found in samples.items()}
    means = [statistics.fmean(times) for times in zip(*rounds.values(), strict=True)]
    relative = {
        name: statistics.median(t / mean for t, mean in zip(times, means, strict=True))
        for name, times in rounds.items()
    }
    limit = min(relative.values()) * (1 + NOISE)
    return next(name for name, time_over_mean in relative.items() if time_over_mean <= limit)
