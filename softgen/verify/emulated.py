"""The launches of kernels on the CPU emulator, and what is wrong with each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from softgen.devices.emulator import SECONDS, Job, Program, Results, Work, build
from softgen.errors import CompileError, EmulationError
from softgen.problems.layouts import Columns
from softgen.problems.numerics import varied_inputs
from softgen.source.render import Source
from softgen.strategies.variants import Variant
from softgen.verify import sharded
from softgen.verify.inputs import inputs_of, offsets_of, rows_of
from softgen.verify.placements import placement_of
from softgen.verify.verdict import Verdict, judged

_TOGETHER = 12  # blocks that wait for each other


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
    jobs = [[] if _is_sharded(source) else jobs_of(source, seconds) for source in sources]
    flat = program.run_counted([job for some in jobs for job in some])
    return [
        _verdicts_on_shards(program, source, seconds)
        if _is_sharded(source)
        else verdicts_on(source.variant, some, [flat.pop(0) for _ in some])
        for source, some in zip(sources, jobs, strict=True)
    ]


def _is_sharded(source: Source) -> bool:
    return source.variant.problem.sharded


def _verdicts_on_shards(program: Program, source: Source, seconds: int) -> list[Verdict]:
    """Return the verdicts on a kernel's launches on several devices."""
    variant = source.variant
    x = rows_of(variant)[0]
    jobs = sharded.jobs_of(source, x, offsets_of(variant), seconds)
    # Of one row, for which nothing but its own launches holds a device back.
    short = sharded.jobs_of(source, x, offsets_of(variant), seconds, rows=1)
    lonely = sharded.without_one(jobs)
    try:
        verdicts = [*_launched(program, jobs), *_launched(program, short)]
        given_up, missed = program.run_sharded(lonely)
    except EmulationError as error:
        return [Verdict(None, str(error).removeprefix(f"{variant.name}: "))]
    if objection := sharded.objection_alone(lonely, given_up, missed):
        verdicts.append(Verdict(None, objection))
    return verdicts


def _launched(program: Program, jobs: Sequence[Job]) -> list[Verdict]:
    """Return the verdicts on launches on all devices."""
    variant = jobs[0].source.variant
    problem = variant.problem
    results, late = program.run_sharded(jobs)
    verdicts = []
    for launch in range(sharded.LAUNCHES):
        mine = slice(launch * sharded.DEVICES, (launch + 1) * sharded.DEVICES)
        shards, of_shards = [job.x for job in jobs[mine]], results[mine]
        others = sharded.others_of(problem, shards, launch)
        exponent = variant.strategy.exponent_error(problem)
        accuracy = sharded.accuracy_of(*(problem, shards, of_shards, exponent, others))
        how = f"launch {launch} on {sharded.DEVICES} devices: "
        verdicts.append(Verdict(accuracy, "" if accuracy.ok else how + accuracy.message))
        if not sharded.agree(problem, of_shards):
            verdicts.append(Verdict(None, f"{how}results differ in their bits"))
    if set(late) != {-1}:
        verdicts.append(Verdict(None, f"devices waited in vain for {list(late)}"))
    return verdicts


def jobs_of(source: Source, seconds: int) -> list[Job]:
    """Return the launches of a kernel, misaligned where its problem allows it.

    Out of place, x and y lie differently where rows may start anywhere, and further inputs once
    like x and once not; in place, columns start on 16 bytes, where tiles are moved in other ways,
    blocks that stride over the rows are two, there is one more of those that do not, and those that
    wait for others run before them. Where blocks share a row, there is a launch of one row too.
    The last launches have other numbers, where a function or a hook has some.
    """
    variant = source.variant
    (x, *others), (offset, y_offset) = inputs_of(variant), offsets_of(variant)
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
    varied = varied_inputs((x, *rest), problem)
    return [*jobs, *(replace(jobs[0], others=inputs[1:]) for inputs in varied)]


def verdicts_on(
    variant: Variant, jobs: Sequence[Job], results: Sequence[tuple[Results, Work] | EmulationError]
) -> list[Verdict]:
    """Return the verdicts on launches of a kernel."""
    verdicts = []
    for job, result in zip(jobs, results, strict=True):
        few = f" on {job.grid} blocks" if job.grid else ""
        how = f"in place{few}: " if job.in_place else ""
        again = len(job.x) == len(jobs[0].x) and job.others is jobs[0].others
        if not again:
            how = "other numbers: " if len(job.x) == len(jobs[0].x) else "one row: "
        if isinstance(result, EmulationError):
            # A report says the name itself.
            reason = str(result).removeprefix(f"{job.source.name}: ")
            verdicts.append(Verdict(None, f"{how}{reason}"))
            continue
        (arrays, work), first = result, results[0]
        alike = None
        if again and not isinstance(first, EmulationError):
            alike = _bytes(first[0]) == _bytes(arrays)
        # What float64 says of the same bits it has said.
        known = bool(alike and verdicts and not verdicts[0].objection)
        verdict = verdicts[0] if known else judged(variant, job.inputs, arrays, how)
        verdicts.append(replace(verdict, work=work))
        if alike is False:
            objection = f"{how}the result differs in its bits from the one out of place"
            verdicts.append(Verdict(None, objection))
    return verdicts


def _bytes(arrays: Results) -> list[bytes]:
    return [array.tobytes() for array in arrays]
