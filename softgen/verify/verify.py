"""Checks the numerics of the variant matrix against float64, on the CPU emulator or a GPU."""

from __future__ import annotations

import functools
import heapq
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from softgen.devices.emulator.processes import Crew
from softgen.errors import InvalidValueError, PluginError
from softgen.plugins import AUTHORS, told
from softgen.problems.dtypes import DType
from softgen.problems.functions.base import Function
from softgen.problems.numerics import unit_of
from softgen.source.render import Source, raise_added_fault, render
from softgen.strategies.variants import Variant
from softgen.verify.emulated import on_emulator
from softgen.verify.inputs import launched_problem
from softgen.verify.matrix import matrix
from softgen.verify.verdict import Verdict

if TYPE_CHECKING:
    from softgen.verify.gpu import Runner

# Kernels compiled as one unit: enough to share the headers, few enough for two workers to balance.
_BATCH = 24

# Measured on a machine of two x86 cores, with nothing compiled before: what `_expected` says of
# selections of 52, 275 and 8631 kernels is 0.91, 0.98 and 1.06 times what they took (59d16b72).
_START_SECONDS = 1.5
_COMPILE_SECONDS = 0.12
_COLS_PER_SECOND = 25_000  # of all rows and both launches of a variant

_ROWS = 60  # of all regimes, about


@dataclass(frozen=True)
class Step:
    """Progress.

    Attributes:
        done: the number of variants that are finished, 0 before the first.
        total: the number of all.
        failed: how many of those that are finished are wrong.
        variant: the last of them; empty before the first.
        seconds_left: about; at first by what other machines took, then by what this one did. None
            where nothing is known, as on a GPU before the first.
    """

    done: int
    total: int
    failed: int
    variant: str
    seconds_left: float | None


@dataclass
class Report:
    """What was verified.

    Attributes:
        checked: number of variants.
        failed: how many of them gave a wrong result, or none.
        wrong: the names of those.
        worst: largest error by the result's dtype: relative, or in ulp for 16 bits.
        by_strategy: number of variants by strategy.
        failures: one line for each that failed.
    """

    checked: int = 0
    failed: int = 0
    worst: dict[str, float] = field(default_factory=dict)
    by_strategy: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def add(self, variant: Variant, results: Sequence[Verdict]) -> None:
        """Record the results of one variant."""
        strategy, problem = variant.strategy.name, variant.problem
        self.checked += 1
        self.by_strategy[strategy] = self.by_strategy.get(strategy, 0) + 1
        for verdict in results:
            if (accuracy := verdict.accuracy) is not None:
                # A result of a kind of its own is in the type of the arithmetic.
                own = accuracy.unit != unit_of(problem.out_dtype)
                kind = (problem.compute_dtype if own else problem.out_dtype).value
                self.worst[kind] = max(self.worst.get(kind, 0.0), accuracy.worst)
        wrong = [verdict.objection for verdict in results if verdict.objection]
        if wrong:
            self.failed += 1
            self.failures.append(f"{variant.name}: {wrong[0]}")
            self.wrong.append(variant.name)


def verify(
    *,
    device: str = "cpu",
    all_variants: bool = False,
    variants: Sequence[str] | None = None,
    dtypes: Sequence[DType | str] | None = None,
    functions: Sequence[Function | str] | None = None,
    cols: Sequence[int] | None = None,
    progress: Callable[[Step], None] | None = None,
    runner: Runner | None = None,
) -> Report:
    """Run the variants of every strategy on hard rows and compare them with float64.

    Each variant gets one input with rows of every regime, misaligned where its problem allows it.
    On the CPU it gets the same input again in place, on two blocks where they stride over the rows,
    and must give the same bits.

    Args:
        device: "cpu" (the emulator) or "cuda".
        all_variants: verify candidates that cover every value of each knob, not the best guess
            of each strategy alone.
        variants: only these; all strategies by default. The name of a strategy, of a setting or a
            named choice stands for every problem that it can compute, a full name for one.
        dtypes: only these types of x; all by default.
        functions: only these; all by default.
        cols: contiguous rows of these widths; by default widths and layouts of every kind.
        progress: called before the first variant and after each.
        runner: runs a kernel for "cuda"; by default on CuPy's current device.

    Raises MissingDependencyError where the emulator has no compiler, NoDeviceError without a GPU.
    """
    if device not in ("cpu", "cuda"):
        raise InvalidValueError(f"device must be 'cpu' or 'cuda', got {device!r}")
    chosen = matrix(all_variants, variants, dtypes, functions, cols)
    batches = [chosen[i : i + _BATCH] for i in range(0, len(chosen), _BATCH)]
    if device == "cpu":
        outcomes = _in_parallel(batches)
    else:
        prepare = _preparation(runner)
        outcomes = (_on_gpu(batch, prepare) for batch in batches)
    report = Report()
    started, work, worked = time.monotonic(), sum(map(_work, chosen)), 0.0
    # Batches that other cores are at are half done.
    cores = (os.cpu_count() or 1) if device == "cpu" else 1
    running = (cores - 1) * work / max(1, len(batches)) / 2
    if progress:
        guess = _expected(batches) if device == "cpu" else None
        progress(Step(0, len(chosen), 0, "", guess))
    for outcome in outcomes:
        for variant, results in outcome:
            report.add(variant, results)
            worked += _work(variant)
            if progress:
                seen = min(work, worked + running) if worked < work else work
                left = (time.monotonic() - started) * (work - seen) / seen
                progress(Step(report.checked, len(chosen), report.failed, variant.name, left))
    report.failures.sort()
    report.wrong.sort()
    return report


def verify_source(source: Source, device: str = "cpu") -> Report:
    """Run one text, as somebody edited it, as `verify` runs those of variants.

    Args:
        source: the text, and the variant that it is to be.
        device: "cpu" (the emulator) or "cuda".
    """
    if device == "cpu":
        (verdicts,) = on_emulator([source])
    else:
        from softgen.verify.gpu import on_gpu

        (verdicts,) = on_gpu(_preparation(None), [source])
    report = Report()
    report.add(source.variant, verdicts)
    return report


def _work(variant: Variant) -> float:
    """Return the seconds of a core that a variant takes on the emulator, to compile and to run."""
    problem = launched_problem(variant)
    many = max(1.0, problem.layout.step / _ROWS)
    return _COMPILE_SECONDS + many * problem.cols / _COLS_PER_SECOND


def _expected(batches: Sequence[Sequence[Variant]]) -> float:
    """Return the seconds that batches take where each core takes the next when it is done."""
    cores = [0.0] * (os.cpu_count() or 1)
    for batch in batches:
        heapq.heapreplace(cores, cores[0] + sum(map(_work, batch)))
    return _START_SECONDS + max(cores)


def _preparation(runner: Runner | None) -> Callable[[Sequence[Source]], Runner]:
    """Return what makes a batch ready to run."""
    if runner:
        return lambda sources: runner
    from softgen.devices.gpu.device import require_device
    from softgen.verify.gpu import compiled

    require_device()
    return compiled


_Outcome = list[tuple[Variant, list[Verdict]]]


def _in_parallel(batches: list[list[Variant]]) -> Iterator[_Outcome]:
    """Compilers and emulators are processes of their own, so threads are enough to fill the CPU.

    They are killed where nobody waits for them any more, as after Ctrl-C.
    """
    crew = Crew()
    with ThreadPoolExecutor(os.cpu_count(), initializer=crew.join) as pool:
        futures = [pool.submit(_on_cpu, batch) for batch in batches]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            crew.stop()
            pool.shutdown(cancel_futures=True)


def _on_cpu(batch: list[Variant]) -> _Outcome:
    return _judged(batch, on_emulator)


def _judged(
    batch: list[Variant], judge: Callable[[Sequence[Source]], list[list[Verdict]]]
) -> _Outcome:
    """Return the verdicts of `judge` on a batch, and an error where it gets none.

    One variant fails alone where its template does, of softgen's own too, or the Python of a
    function or strategy that was added.
    """
    sources: dict[Variant, Source] = {}
    found: dict[Variant, list[Verdict]] = {}
    for variant in batch:
        try:
            sources[variant] = render(variant)
        except Exception as error:  # whatever the author of a template got wrong
            found[variant] = [Verdict(None, _said(error), compiled=False)]
    try:
        verdicts = judge(list(sources.values())) if sources else []
        found |= zip(sources, verdicts, strict=True)
    except AUTHORS as error:
        if len(batch) > 1:
            return [each for variant in batch for each in _judged([variant], judge)]
        try:
            raise_added_fault(batch[0], error)
        except PluginError as fault:
            return [(batch[0], [Verdict(None, str(fault))])]
        raise
    return [(variant, found[variant]) for variant in batch]


def _said(error: Exception) -> str:
    """Return an error in words, with the line of the template that it is from."""
    if isinstance(error, PluginError):
        return str(error)
    place, reason = told(error, lambda path: path.suffix == ".j2")
    return f"{place}: {reason}" if place else reason


def _on_gpu(batch: list[Variant], prepare: Callable[[Sequence[Source]], Runner]) -> _Outcome:
    from softgen.verify.gpu import on_gpu

    return _judged(batch, functools.partial(on_gpu, prepare))
