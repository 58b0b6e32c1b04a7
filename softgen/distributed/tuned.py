"""Which kernel sends parts of rows, or whether they are gathered: timed by all processes together.

A kernel that waits for other GPUs takes as long as the slowest, so that no process can time its
own. All take the same candidates in turn, each for its own columns, and see the same times: of
each launch the longest. So all choose the same one, and nobody has to be told.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from softgen import logs
from softgen.devices.gpu.compile import compile_many
from softgen.devices.gpu.device import arch_of, environment
from softgen.devices.gpu.kernel import LoadedKernel
from softgen.distributed.clock import Clock, Replay, tensors
from softgen.errors import CompileError
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.base import NO_PDL, TRIGGERS
from softgen.strategies.select import untimed
from softgen.strategies.variants import Variant, candidates
from softgen.tuning import cache
from softgen.tuning.entry import Entry, Key, Timing
from softgen.tuning.gate import differing
from softgen.tuning.policy import tune_budget, tune_mode
from softgen.tuning.tune import BUDGET_FOR_SCREENING

# Of the candidates, best guess first. At 50257 and 151937 columns on two H200s the fastest were the
# sixth and the third.
MOST_CANDIDATES = 16
FINALISTS = 3
ROUNDS = 6
NOISE = 0.005  # candidates this close are equals, and the one that comes first as a guess wins

# What a timing of the all-gather is called among those of kernels.
GATHERED = "all-gather"


class Asked(NamedTuple):
    """A call whose choice is open.

    Attributes:
        group: the process group.
        x: the shard.
        rows: how many there are.
        problem: what the kernel of this shard computes; None where none holds it.
        use: has `run` launch a kernel; None for the one that nobody timed.
        run: returns what mailboxes give for a shard like x.
        gather: returns what an all-gather gives.
        send: does what an all-gather does beside its kernels.
        passes: how often the kernels of the all-gather read or write the shard.
    """

    group: Any
    x: Any
    rows: int
    problem: Problem | None
    use: Callable[[LoadedKernel | None], None]
    run: Callable[[Any], Any]
    gather: Callable[[Any], Any]
    send: Callable[[Any], Any]
    passes: int

    @property
    def device(self) -> int:
        """The number of the GPU."""
        number: int = self.x.device.index
        return number

    @property
    def size(self) -> int:
        """How many processes there are."""
        count: int = dist.get_world_size(self.group)
        return count

    def largest(self, *numbers: float) -> list[float]:
        """Return the largest of each number over all processes."""
        found = torch.tensor(numbers, dtype=torch.float64, device=self.x.device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self.group)
        return [float(each) for each in found.tolist()]


def gathers(asked: Asked) -> bool:
    """Return whether rows like these are gathered; else have `asked` use its best kernel.

    All processes call this for the same rows: it is a collective. Where one of them has no stored
    choice and all may time, they time for about as long as SOFTGEN_TUNE_BUDGET says.
    """
    mode = tune_mode(None)
    stored = stored_choice(asked.problem, asked.rows, asked.device, asked.size)
    gathered = stored is not None and [t.variant for t in stored.timings[:1]] == [GATHERED]
    lacks = asked.problem is not None and (stored is None or mode == "force")
    someone_lacks, refuses, exchanges, gathering = asked.largest(
        lacks, mode not in ("on", "force"), stored is not None and not gathered, gathered
    )
    if someone_lacks and not refuses:
        return _Contest(asked).run()
    return bool(gathering and not exchanges and not someone_lacks)


def choice(problem: Problem, rows: int, device: int, size: int) -> Variant:
    """Return what this process launches: what was stored, else what softgen ships or guesses."""
    stored = stored_choice(problem, rows, device, size)
    return stored.winner if stored is not None else guess(problem, rows, device)


def stored_choice(problem: Problem | None, rows: int, device: int, size: int) -> Entry | None:
    """Return what the processes chose before; None where they did not, or SOFTGEN_TUNE is off."""
    if problem is None or tune_mode(None) == "off":
        return None
    return cache.load(_key(problem, rows, device, size), arch_of(device))


def guess(problem: Problem, rows: int, device: int) -> Variant:
    """Return the choice where nothing was timed."""
    return _triggering(untimed(problem, rows, arch_of(device)).variant)


def _triggering(variant: Variant) -> Variant:
    """Return a variant that lets what comes next start while it waits for other GPUs.

    bfloat16 64 x 64128 took 7.41 us on two H200s so, and 7.67 otherwise.
    """
    pdl = TRIGGERS if variant.strategy.pdl else NO_PDL
    return Variant(variant.problem, dataclasses.replace(variant.strategy, pdl=pdl))


def _key(problem: Problem, rows: int, device: int, size: int) -> Key:
    return Key.of(problem, rows, {**environment(device), "shards": size})


class _Look(NamedTuple):
    """A candidate that all processes can run, and agree in.

    Attributes:
        kernel: this process's; None where none holds its shard.
        replay: times it.
        samples: microseconds of the slowest process.
    """

    kernel: LoadedKernel | None
    replay: Replay
    samples: list[float]

    @property
    def microseconds(self) -> float:
        """The median."""
        return statistics.median(self.samples)


class _Contest:
    """Candidates that all processes time, in the same order and for as long."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.start = 0.0
        self.budget = tune_budget()
        self.failures: dict[str, str] = {}
        self.clock = Clock(asked.x)

    def run(self) -> bool:
        """Return whether rows are gathered; `use` the fastest kernel, and store it."""
        asked = self.asked
        right = tensors(asked.run(asked.x))  # of what nobody timed; it loads what is loaded late
        self.start = time.perf_counter()
        looks = self._screened(right)
        if not looks:
            asked.use(None)
            return False
        best = sorted(looks, key=lambda look: look.microseconds)[:FINALISTS]
        for count in range(ROUNDS):
            for look in best:
                look.samples.extend(asked.largest(look.replay.microseconds()))
            if asked.largest(time.perf_counter() - self.start)[0] > self.budget and count:
                break
        limit = min(look.microseconds for look in best) * (1 + NOISE)
        winner = next(look for look in looks if look in best and look.microseconds <= limit)
        if winner.kernel is not None:
            asked.use(winner.kernel)
        gathered = self._gathered(winner.microseconds)
        self._store(winner, looks, gathered)
        return gathered is not None and gathered < winner.microseconds

    def _screened(self, right: Sequence[Any]) -> list[_Look]:
        """Return the candidates that work, each with a first time."""
        asked, looks = self.asked, list[_Look]()
        variants = self._variants()
        compiled = compile_many(map(render, variants))
        kernel: LoadedKernel | CompileError | None = None
        for _ in range(int(asked.largest(max(1, len(variants)))[0])):
            kernel = next(compiled, kernel)  # who has fewer takes the last one again
            replay = self._replay(kernel, asked.run)
            failed, spent = asked.largest(replay is None, time.perf_counter() - self.start)
            if spent > self.budget * BUDGET_FOR_SCREENING and looks:
                break
            if failed or replay is None or isinstance(kernel, CompileError):
                continue
            for result in replay.results:  # which lies where the last candidate's was
                result.fill_(torch.nan)
            us = replay.microseconds()
            wrong = self._wrong(kernel, replay, right)
            slowest, someone_is_wrong = asked.largest(us, wrong)
            if not someone_is_wrong:
                looks.append(_Look(kernel, replay, [slowest]))
            replay.results = ()  # whose memory the next one takes
        return looks

    def _variants(self) -> list[Variant]:
        """Return the candidates of this shard, the one that nobody timed first."""
        asked, problem = self.asked, self.asked.problem
        if problem is None:
            return []
        first = guess(problem, asked.rows, asked.device)
        others = map(_triggering, candidates(problem, asked.rows, arch_of(asked.device)))
        return list(dict.fromkeys([first, *others]))[:MOST_CANDIDATES]

    def _replay(
        self, kernel: LoadedKernel | CompileError | None, run: Callable[[Any], Any]
    ) -> Replay | None:
        """Return what times a kernel, or None where this process cannot; nothing is launched."""
        if isinstance(kernel, CompileError):
            return None
        if kernel is not None:
            if kernel.local_bytes:
                self.failures[kernel.variant.name] = f"spills {kernel.local_bytes} bytes a thread"
                return None
            self.asked.use(kernel)
        try:
            return self.clock.replay(run)
        except RuntimeError as error:  # as where memory is short
            logs.warning("a candidate of the direct exchange cannot be timed: %s", error)
            return None

    def _wrong(self, kernel: Any, replay: Replay, right: Sequence[Any]) -> int:
        """Return how many results of a replay are not those of what nobody timed."""
        if kernel is None:
            return 0
        wrong = 0
        results = kernel.variant.problem.results
        for got, wanted, operand in zip(replay.results, right, results, strict=True):
            places = got.data_ptr(), wanted.data_ptr(), got.numel()
            wrong += differing(*places, operand, kernel) if got.numel() else 0
        if wrong:
            self.failures[kernel.variant.name] = f"{wrong} results differ from the best guess's"
        return wrong

    def _gathered(self, direct: float) -> float | None:
        """Return the microseconds of the all-gather; None where it cannot be faster.

        Its kernels would have to be tuned before they are timed. So a copy of as many bytes, and
        what it sends, are timed first.
        """
        asked = self.asked
        if "nccl" not in str(dist.get_backend_config(asked.group)):
            return None  # no other can be captured
        # A graph of copies of nothing has nothing in it.
        copying = self._slowest(torch.clone if asked.x.numel() else asked.send)
        sending = self._slowest(asked.send)
        if copying is None or sending is None or direct < copying / 2 * asked.passes + sending:
            return None
        asked.gather(asked.x)
        return self._slowest(asked.gather)

    def _slowest(self, run: Callable[[Any], Any]) -> float | None:
        """Return the microseconds of the slowest process; None where one cannot capture it."""
        replay = self._replay(None, run)
        if self.asked.largest(replay is None)[0] or replay is None:
            return None
        rounds = [self.asked.largest(replay.microseconds())[0] for _ in range(ROUNDS)]
        return statistics.median(rounds)

    def _store(self, winner: _Look, looks: Sequence[_Look], gathered: float | None) -> None:
        """Store the choice of this process's columns."""
        asked, kernel = self.asked, winner.kernel
        if kernel is None or asked.problem is None:
            return
        found = {look.kernel.variant.name: look.samples for look in looks if look.kernel}
        timings = [Timing.of(name, samples) for name, samples in found.items()]
        if gathered is not None:
            timings.append(Timing(GATHERED, gathered, gathered, gathered))
        # The all-gather is the first where it won alone.
        lost = gathered is not None and gathered >= winner.microseconds
        timings.sort(key=lambda each: (lost and each.variant == GATHERED, each.microseconds))
        key = _key(asked.problem, asked.rows, asked.device, asked.size)
        failures = tuple(sorted(self.failures.items()))
        cache.store(Entry(key, kernel.variant, tuple(timings), failures, rows=asked.rows))
        logs.info(
            "tuned %s for %d rows of %d processes in %.1f s: %s (%d candidates timed)",
            *(asked.problem.label, asked.rows, asked.size, time.perf_counter() - self.start),
            *(timings[0].variant, len(timings)),
        )
