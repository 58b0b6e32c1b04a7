"""Checks the numerics of the variant matrix against float64, on the CPU emulator or a GPU."""

from __future__ import annotations

import functools
import heapq
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace

import numpy as np

from softgen.devices.emulator import SECONDS, Job, Program, Results, Work, build
from softgen.devices.emulator.processes import Crew
from softgen.errors import (
    CompileError,
    EmulationError,
    InvalidValueError,
    PluginError,
    SoftgenError,
)
from softgen.plugins import AUTHORS, told
from softgen.source.render import Source, raise_added_fault, render
from softgen.spec.dtypes import DType
from softgen.spec.functions.base import Function
from softgen.spec.layouts import Columns
from softgen.spec.numerics import Accuracy, Storage, check, other_inputs
from softgen.spec.problem import Problem
from softgen.strategies.variants import Variant
from softgen.verify import sharded
from softgen.verify.matrix import matrix
from softgen.verify.placements import placement_of, rows_for
from softgen.verify.problems import ANY_WIDTH
from softgen.verify.regimes import REGIMES, Slices

# run(source, inputs, x_offset, y_offset) returns the results. Inputs are in storage form; x and y
# start so many elements behind a boundary of 16 bytes.
Runner = Callable[[Source, Sequence[Storage], int, int], Results]

# Kernels compiled as one unit: enough to share the headers, few enough for two workers to balance.
_BATCH = 24

# Measured on a machine of two x86 cores, with nothing compiled before: what `_expected` says of
# six selections, of 21 to 245 kernels, is 0.7 to 1.2 times what they took.
_START_SECONDS = 1.5
_COMPILE_SECONDS = 0.25
_COLS_PER_SECOND = 30_000  # of all rows and both launches of a variant

_ROWS = 60  # of all regimes, about
_TOGETHER = 12  # blocks that wait for each other
_WIDE = 4096  # columns from which a regime has fewer rows


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


@dataclass(frozen=True)
class Verdict:
    """What became of one launch: its accuracy, if it gave a result, and what is wrong with it.

    On the emulator also what it did, and whether the compiler took it at all.
    """

    accuracy: Accuracy | None
    objection: str = ""
    work: Work | None = None
    compiled: bool = True


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
        strategy, dtype = variant.strategy.name, variant.problem.out_dtype.value
        self.checked += 1
        self.by_strategy[strategy] = self.by_strategy.get(strategy, 0) + 1
        for verdict in results:
            if verdict.accuracy is not None:
                self.worst[dtype] = max(self.worst.get(dtype, 0.0), verdict.accuracy.worst)
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
        (verdicts,) = _judge_gpu(_preparation(None), [source])
    report = Report()
    report.add(source.variant, verdicts)
    return report


def _work(variant: Variant) -> float:
    """Return the seconds of a core that a variant takes on the emulator, to compile and to run."""
    problem = _problem(variant)
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


def on_emulator(sources: Sequence[Source], seconds: int = SECONDS) -> list[list[Verdict]]:
    """Return the verdicts on each source's launches, each of which may take so many seconds."""
    try:
        program = build(sources)
    except CompileError as error:
        if len(sources) == 1:
            return [[Verdict(None, str(error), compiled=False)]]
        # Those that the compiler names go alone; if it names none, all do.
        named = [source.name for source in sources if f"\n{source.name}.cu:" in str(error)]
        alone = [not named or source.name in named for source in sources]
        others = [source for source, is_alone in zip(sources, alone, strict=True) if not is_alone]
        together = iter(on_emulator(others, seconds) if others else ())
        return [
            on_emulator([source], seconds)[0] if is_alone else next(together)
            for source, is_alone in zip(sources, alone, strict=True)
        ]
    jobs = [[] if _is_sharded(source) else _jobs(source, seconds) for source in sources]
    flat = program.run_counted([job for some in jobs for job in some])
    return [
        _judge_shards(program, source, seconds)
        if _is_sharded(source)
        else _judge_cpu(source.variant, some, [flat.pop(0) for _ in some])
        for source, some in zip(sources, jobs, strict=True)
    ]


def _is_sharded(source: Source) -> bool:
    return source.variant.problem.sharded


def _judge_shards(program: Program, source: Source, seconds: int) -> list[Verdict]:
    """Return the verdicts on a kernel's launches on several devices."""
    variant = source.variant
    problem, x = variant.problem, _input(variant)[0]
    jobs = sharded.jobs_of(source, x, _offsets(variant), seconds)
    try:
        results, late = program.run_sharded(jobs)
    except EmulationError as error:
        return [Verdict(None, str(error).removeprefix(f"{variant.name}: "))]
    verdicts = []
    for launch in range(sharded.LAUNCHES):
        mine = slice(launch * sharded.DEVICES, (launch + 1) * sharded.DEVICES)
        shards, of_shards = [job.x for job in jobs[mine]], results[mine]
        others = sharded.others_of(problem, shards)
        exponent = variant.strategy.exponent_error(problem)
        accuracy = sharded.accuracy_of(*(problem, shards, of_shards, exponent, others))
        how = f"launch {launch} on {sharded.DEVICES} devices: "
        verdicts.append(Verdict(accuracy, "" if accuracy.ok else how + accuracy.message))
        if not sharded.agree(problem, of_shards):
            verdicts.append(Verdict(None, f"{how}results differ in their bits"))
    if set(late) != {-1}:
        verdicts.append(Verdict(None, f"devices waited in vain for {list(late)}"))
    return verdicts


def _jobs(source: Source, seconds: int) -> list[Job]:
    """Return the launches of a kernel, misaligned where its problem allows it.

    Out of place, x and y lie differently where rows may start anywhere, and further inputs once
    like x and once not; in place, columns start on 16 bytes, where tiles are moved in other ways,
    blocks that stride over the rows are two, there is one more of those that do not, and those that
    wait for others run before them. Where blocks share a row, there is a launch of one row too.
    """
    variant = source.variant
    (x, *others), (offset, y_offset) = _inputs(variant), _offsets(variant)
    problem, rest = variant.problem, tuple(others)
    where = placement_of(problem, len(x))
    job = Job(source, x, rest, x_offset=offset, y_offset=offset, seconds=seconds, placement=where)
    jobs = [replace(job, y_offset=y_offset)]
    if problem.replacing:
        launch = variant.launch
        grid = 2 if launch.strides else None
        if not launch.strides and not launch.workspace_bytes_per_row:
            grid = launch.grid(len(x)) + launch.cluster_size
        # Blocks that wait for others find them not there yet, as on a GPU they may.
        waits = launch.workspace_bytes_per_row and not launch.cooperative
        together = _TOGETHER if waits else None
        where = placement_of(problem, len(x), in_place=True)
        twin = replace(job, in_place=True, grid=grid, together=together, placement=where)
        # The order of their sums does not depend on where columns lie, and GPUs' arrays start so.
        aligned = isinstance(problem.layout, Columns)
        jobs.append(replace(twin, x_offset=0, y_offset=0) if aligned else twin)
    elif y_offset != offset:
        jobs.append(job)
    if y_offset != offset and len(problem.element_inputs) > 1:
        jobs.append(replace(job, others_offset=y_offset))
    if variant.launch.workspace_bytes_per_row:  # what follows the last row comes early
        step = problem.layout.step
        one = tuple(o[:step] if o.ndim else o for o in rest)
        jobs.append(replace(job, x=x[:step], others=one, placement=placement_of(problem, step)))
    return jobs


def _judge_cpu(
    variant: Variant, jobs: Sequence[Job], results: Sequence[tuple[Results, Work] | EmulationError]
) -> list[Verdict]:
    verdicts = []
    for job, result in zip(jobs, results, strict=True):
        few = f" on {job.grid} blocks" if job.grid else ""
        how = f"in place{few}: " if job.in_place else ""
        whole = len(job.x) == len(jobs[0].x)
        if not whole:
            how = "one row: "
        if isinstance(result, EmulationError):
            # A report says the name itself.
            reason = str(result).removeprefix(f"{job.source.name}: ")
            verdicts.append(Verdict(None, f"{how}{reason}"))
            continue
        (arrays, work), first = result, results[0]
        alike = None
        if whole and not isinstance(first, EmulationError):
            alike = _bytes(first[0]) == _bytes(arrays)
        # What float64 says of the same bits it has said.
        known = bool(alike and verdicts and not verdicts[0].objection)
        verdict = verdicts[0] if known else _judge(variant, job.inputs, arrays, how)
        verdicts.append(replace(verdict, work=work))
        if alike is False:
            objection = f"{how}the result differs in its bits from the one out of place"
            verdicts.append(Verdict(None, objection))
    return verdicts


def _bytes(arrays: Results) -> list[bytes]:
    return [array.tobytes() for array in arrays]


def _judge(variant: Variant, inputs: Sequence[Storage], results: Results, how: str = "") -> Verdict:
    error = variant.strategy.exponent_error(variant.problem)
    accuracy = check(results, inputs, variant.problem, error)
    if accuracy.ok or accuracy.index is None:
        return Verdict(accuracy)
    regime = _input(variant)[1][accuracy.index[0]]
    return Verdict(accuracy, f"{how}regime {regime}: {accuracy.message}")


def _on_gpu(batch: list[Variant], prepare: Callable[[Sequence[Source]], Runner]) -> _Outcome:
    return _judged(batch, functools.partial(_judge_gpu, prepare))


def _judge_gpu(
    prepare: Callable[[Sequence[Source]], Runner], sources: Sequence[Source]
) -> list[list[Verdict]]:
    runner = prepare(sources)
    found = []
    for source in sources:
        variant = source.variant
        inputs, (offset, y_offset) = _inputs(variant), _offsets(variant)
        verdicts = []
        for other in dict.fromkeys((y_offset, offset)):
            try:
                verdicts.append(_judge(variant, inputs, runner(source, inputs, offset, other)))
            except SoftgenError as error:
                verdicts.append(Verdict(None, str(error)))
        found.append(verdicts)
    return found


def _offsets(variant: Variant) -> tuple[int, int]:
    """Return how many elements x and y start behind a 16-byte boundary: as few as may be.

    They differ where rows may start anywhere.
    """
    problem = variant.problem
    offset = problem.alignment if problem.alignment < problem.dtype.max_pack else 0
    return offset, 3 * offset if problem.alignment == 1 else offset


def _inputs(variant: Variant) -> tuple[Storage, ...]:
    """Return the function's inputs: x with rows of every regime, and what belongs to it."""
    x = _input(variant)[0]
    return (x, *other_inputs(x, _problem(variant)))


def _problem(variant: Variant) -> Problem:
    """Return the problem, of one width where a launch says which."""
    return variant.problem.launched_on(ANY_WIDTH)


def _input(variant: Variant) -> tuple[Storage, tuple[str, ...]]:
    """Return x and the regime of each of its rows.

    Their number is odd; in a layout that has rows side by side, two outer indices or more.
    """
    problem = _problem(variant)
    x, names = _stacked(problem.cols, problem.dtype, Slices.of(variant.strategy, problem))
    step = problem.layout.step
    if step == 1:
        rows = rows_for(problem, len(x))
        return x[:rows], names[:rows]
    rows = max(2, -(-len(x) // step)) * step
    order = np.arange(rows)[::-1] % len(x)  # the last are random ones, of which no two are alike
    return x[order], tuple(names[i] for i in order)


@functools.lru_cache(maxsize=64)
def _stacked(cols: int, dtype: DType, slices: Slices) -> tuple[Storage, tuple[str, ...]]:
    parts, names = [], []
    for name, regime in REGIMES.items():
        if regime.applies(cols):
            count = regime.rows_if_wide if cols >= _WIDE else regime.rows
            parts.append(regime.array(count, cols, dtype, slices))
            names += [name] * count
    x = np.concatenate(parts)
    rows = len(names) - (len(names) + 1) % 2
    return x[:rows], tuple(names[:rows])
