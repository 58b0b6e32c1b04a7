"""The run: kernels are drawn, run and compared; a line on what is wrong says how to run it."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from softgen.problems.arch import Arch
from tests.differential.cases import Case, Kernel, case, kernels, labels, to_cover
from tests.differential.emulated import Emulator, Outcome
from tests.differential.reference import objections

if TYPE_CHECKING:
    from tests.differential.calls import Library

TOGETHER = 16  # kernels of a program

# Strategies that are OneFlow's kernels, of whose softmax docs/numerics.md allows more.
FUSED = ("oneflowwarp", "oneflowblock")

Say = Callable[[str], None]


class Runner(Protocol):
    """What runs some kernels."""

    def run(self, drawn: Kernel, cases: Sequence[Case]) -> list[Outcome]:
        """Return the results of each case, or what stopped it."""


@dataclass
class Report:
    """What was run.

    Attributes:
        results: how many launches of kernels were compared, of each all that it wrote.
        kernels: of how many kernels.
        calls: how many public calls were compared.
        refused: how many of them a page says are refused.
        wrong: a line for each that is wrong.
        covered: how many results there are of each function, strategy and so on.
        seconds: how long it took.
    """

    results: int = 0
    kernels: int = 0
    calls: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)
    covered: dict[str, Counter[str]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def missing(self) -> list[str]:
        """What no kernel had."""
        return [
            f"{kind} {name}"
            for kind, names in to_cover().items()
            for name in names
            if name not in self.covered.get(kind, {})
        ]

    def __str__(self) -> str:
        lines = [
            f"{kind}: " + ", ".join(f"{name} {count}" for name, count in sorted(found.items()))
            for kind, found in self.covered.items()
        ]
        if self.missing:
            lines.append(f"never drawn: {', '.join(self.missing)}")
        calls = f" and {self.calls} calls ({self.refused} refused)" if self.calls else ""
        lines.append(
            f"{self.results} results of {self.kernels} kernels{calls} in {self.seconds:.0f} s: "
            f"{len(self.wrong)} wrong"
        )
        return "\n".join(lines)


def differential(
    report: Report,
    results: int,
    seed: int,
    arch: Arch,
    *,
    runner: Callable[[Sequence[Kernel]], Runner] = Emulator,
    drawn: Iterable[Kernel] | None = None,
    only: int | None = None,
    say: Say = lambda line: None,
) -> None:
    """Run kernels of a seed, compare their results, and add them to a report.

    Args:
        report: of what was run.
        results: at least so many.
        seed: what is drawn by.
        arch: what kernels are for.
        runner: makes some kernels ready to run.
        drawn: these kernels, and not so many of the seed.
        only: of each kernel only this input; of shards all, as one launch follows another.
        say: called with each line on what is wrong, and now and then.
    """
    started = time.monotonic() - report.seconds
    for batch in _batches(kernels(seed, results, arch) if drawn is None else drawn):
        ready = runner(batch)
        for one in batch:
            numbers = range(one.runs) if only is None or one.shards > 1 else (only,)
            inputs = [case(seed, one, number) for number in numbers]
            for given, outcome in zip(inputs, ready.run(one, inputs), strict=True):
                for line in _judged(one, given, outcome):
                    at = f"--seed {seed} --only {one.number}.{given.number}"
                    report.wrong.append(f"{at}: {one.source.name}: {line}")
                    say(report.wrong[-1])
            report.results += len(inputs)
            report.kernels += 1
            for kind, names in labels(one).items():
                counter = report.covered.setdefault(kind, Counter())
                counter.update({name: len(inputs) for name in names})
        report.seconds = time.monotonic() - started
        say(f"... {report.results} results, {report.seconds:.0f} s")


def public_calls(
    report: Report,
    numbers: Iterable[int],
    seed: int,
    library: Library,
    *,
    say: Say = lambda line: None,
) -> None:
    """Make calls of a seed, compare their results, and add them to a report."""
    from tests.differential.calls import call

    started = time.monotonic() - report.seconds
    for number in numbers:
        found = call(seed, number, library).wrong()
        report.calls += 1
        if found is None:
            report.refused += 1
            continue
        for line in found:
            report.wrong.append(f"--seed {seed} --only call{number}: {line}")
            say(report.wrong[-1])
        report.seconds = time.monotonic() - started
        if number % 100 == 99:
            say(f"... {report.calls} calls, {report.seconds:.0f} s")


def _judged(drawn: Kernel, one: Case, outcome: Outcome) -> list[str]:
    """Return what is wrong with what a kernel gave."""
    if isinstance(outcome, str):
        return [outcome]
    problem = drawn.problem
    got = {
        operand.name: (array, str(operand.dtype))
        for operand, array in zip(problem.results, outcome, strict=True)
    }
    compute, fused = str(problem.compute_dtype), drawn.strategy in FUSED
    return objections(one.results, one.rows, got, one.hooks, compute, fused=fused)


def _batches(drawn: Iterable[Kernel]) -> Iterator[list[Kernel]]:
    left = iter(drawn)
    while batch := list(itertools.islice(left, TOGETHER)):
        yield batch
