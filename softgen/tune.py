"""Find the fastest variant for a shape on this GPU: verify, time, time finalists again, choose."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from softgen import cache
from softgen.compile import compile_many
from softgen.device import arch_of, environment, require_device
from softgen.entry import Entry, Key, Timing
from softgen.errors import CompileError, VerificationError
from softgen.gate import Gate
from softgen.kernel import Kernel
from softgen.measure import Buffers, Stopwatch, summarize
from softgen.problem import Problem
from softgen.render import render
from softgen.variants import Variant, candidates

SCREENING_SECONDS = 0.01  # host time that each candidate is timed for at first
FINALISTS = 4
FINAL_ROUNDS = 8
FINAL_SECONDS = 0.005
# The best guess keeps its place unless it is beaten by more than this: repeated runs of one kernel
# differ by up to 1% on an idle H200.
NOISE = 0.01
BUDGET_FOR_SCREENING = 0.7  # of the budget; the finals get the rest


@dataclass(frozen=True)
class Progress:
    """Where a tuning stands.

    Attributes:
        done: candidates looked at.
        total: candidates in all.
        variant: the last one.
        best: the fastest so far, if any.
        gigabytes_per_second: of the fastest, counting one read and one write of each element.
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

    Args:
        problem: the request.
        rows: number of rows; where memory is short, fewer are timed.
        budget: seconds to spend, about; at least the best guess is timed. No limit by default.
        progress: called after each candidate.

    Raises NoDeviceError without a GPU, and VerificationError if no candidate agrees with the safe
    kernel, which would be a bug of softgen.
    """
    cupy = require_device()
    device = cupy.cuda.runtime.getDevice()
    start = time.perf_counter()
    deadline = start + budget if budget is not None else float("inf")
    screening_end = start + budget * BUDGET_FOR_SCREENING if budget is not None else float("inf")

    arch = arch_of(device)
    buffers = Buffers.allocate(problem, rows, arch)
    found = list(candidates(problem, rows, arch))
    screen = _Screen(problem, buffers, len(found), progress)
    for kernel in _compiled(found, screen.failures):
        screen.look_at(kernel)
        if time.perf_counter() > screening_end:
            break
    if not screen.timings:
        raise VerificationError(
            f"no candidate for {problem.label} on {arch.device} works: {screen.failures}"
        )
    winner, timings = _finals(screen, deadline)
    key = Key.of(problem, rows, environment(device))
    entry = Entry(key, winner.variant, timings, tuple(sorted(screen.failures.items())))
    cache.store(entry)
    return entry


def _compiled(found: list[Variant], failures: dict[str, str]) -> Iterator[Kernel]:
    """Compile the candidates in parallel and yield, in order, what can be timed."""
    for variant, made in zip(found, compile_many(map(render, found)), strict=True):
        if isinstance(made, CompileError):
            failures[variant.name] = str(made)
        elif made.local_bytes:
            failures[variant.name] = f"spills {made.local_bytes} bytes of registers a thread"
        else:
            yield made


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
        self.kernels: dict[str, Kernel] = {}
        self.timings: dict[str, Timing] = {}
        self.failures: dict[str, str] = {}
        self.total = total
        self.progress = progress

    def look_at(self, kernel: Kernel) -> None:
        """Check and time one candidate."""
        name = kernel.variant.name
        objection = self.gate.objection(kernel)
        if objection:
            self.failures[name] = objection
        else:
            if not self.timings:
                self.stopwatch.warm_up(kernel)
            self.kernels[name] = kernel
            self.timings[name] = summarize(
                kernel, self.stopwatch.samples(kernel, SCREENING_SECONDS)
            )
        if self.progress:
            best = min(self.timings.values(), key=lambda t: t.microseconds, default=None)
            rate = self.bytes / best.microseconds / 1e3 if best else None
            done = len(self.timings) + len(self.failures)
            self.progress(Progress(done, self.total, name, best.variant if best else None, rate))


def _finals(screen: _Screen, deadline: float) -> tuple[Kernel, tuple[Timing, ...]]:
    """Time the fastest few again, taking turns, so that drift of the clocks meets all alike."""
    order = sorted(screen.timings.values(), key=lambda timing: timing.microseconds)
    first = next(iter(screen.timings))  # candidates come best guess first
    names = list(dict.fromkeys([*(t.variant for t in order[:FINALISTS]), first]))
    samples: dict[str, list[float]] = {name: [] for name in names}
    for round_number in range(FINAL_ROUNDS):
        if round_number >= 2 and time.perf_counter() > deadline:
            break
        for name in names:
            samples[name] += screen.stopwatch.samples(screen.kernels[name], FINAL_SECONDS, least=2)
    final = {name: summarize(screen.kernels[name], samples[name]) for name in names}
    fastest = min(final.values(), key=lambda timing: timing.microseconds)
    keeps = final[first].microseconds <= fastest.microseconds * (1 + NOISE)
    winner = screen.kernels[first if keeps else fastest.variant]
    timings = {**screen.timings, **final}
    return winner, tuple(sorted(timings.values(), key=lambda timing: timing.microseconds))
