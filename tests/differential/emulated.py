"""Cases on the CPU emulator: many kernels a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from softgen.devices.emulator import Job, Program, Results, build
from softgen.devices.emulator.shard import Shard
from softgen.errors import CompileError, EmulationError
from softgen.problems.operands import Extent
from softgen.verify.placements import placement_of
from tests.differential.cases import Case, Kernel
from tests.differential.storage import Stored

SECONDS = 60  # of a launch; the slowest takes one

Outcome = Results | str


class Emulator:
    """Runs kernels that were built together."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self._programs: dict[int, Program | str] = {}
        try:
            program = build([drawn.source for drawn in kernels])
            self._programs = {drawn.number: program for drawn in kernels}
        except CompileError:
            for drawn in kernels:
                self._programs[drawn.number] = _alone(drawn)

    def run(self, drawn: Kernel, cases: Sequence[Case]) -> list[Outcome]:
        """Return the results of each case, or what stopped it."""
        program = self._programs[drawn.number]
        if isinstance(program, str):
            return [program] * len(cases)
        if drawn.shards > 1:
            return _run_shards(program, drawn, cases)
        found = program.run_counted([_job(drawn, case) for case in cases])
        return [str(each) if isinstance(each, EmulationError) else each[0] for each in found]


def _alone(drawn: Kernel) -> Program | str:
    try:
        return build([drawn.source])
    except CompileError as error:
        return f"does not compile: {error}"


def _job(drawn: Kernel, case: Case) -> Job:
    problem, launch = drawn.problem, drawn.source.variant.launch
    x, *others = case.inputs
    job = Job(
        *(drawn.source, x, tuple(others)),
        in_place=case.in_place,
        x_offset=case.offsets[0],
        y_offset=case.offsets[0] if case.in_place else case.offsets[1],
        seconds=SECONDS,
        placement=placement_of(problem, len(x), in_place=case.in_place),
    )
    if launch.strides and not launch.cooperative and case.random.random() < 0.5:
        job = replace(job, grid=int(case.random.integers(1, 4)))
    return job


def _run_shards(program: Program, drawn: Kernel, cases: Sequence[Case]) -> list[Outcome]:
    """Run launches one after another, on as many devices as there are shards."""
    problem, shards, jobs = drawn.problem, drawn.shards, []
    room = max(len(case.inputs[0]) for case in cases) + 1
    for case in cases:
        late = case.random.integers(0, 4, shards)
        for device in range(shards):
            first = device * problem.cols
            mine = slice(first, first + problem.cols)
            x, *others = (
                each[:, mine] if operand.extent is Extent.ELEMENT else each
                for each, operand in zip(case.inputs, problem.inputs, strict=True)
            )
            where = Shard(device, shards, room, late=int(late[device]), first=first)
            jobs.append(
                Job(
                    *(drawn.source, x, tuple(others)),
                    in_place=case.in_place,
                    x_offset=case.offsets[0],
                    y_offset=case.offsets[0] if case.in_place else case.offsets[1],
                    seconds=SECONDS,
                    shard=where,
                )
            )
    try:
        found, waited = program.run_sharded(jobs)
    except EmulationError as error:
        return [str(error)] * len(cases)
    if set(waited) != {-1}:
        return [f"devices waited in vain: {waited}"] * len(cases)
    return [joined(drawn, found[i * shards : (i + 1) * shards]) for i in range(len(cases))]


def joined(drawn: Kernel, shards: Sequence[Results]) -> Outcome:
    """Return results of whole rows; of rows' numbers all devices must have the same bits."""
    found: list[Stored] = []
    for i, operand in enumerate(drawn.problem.results):
        if operand.extent is Extent.ELEMENT:
            found.append(np.concatenate([each[i] for each in shards], axis=1))
            continue
        if any(each[i].tobytes() != shards[0][i].tobytes() for each in shards):
            return f"{operand.name}: devices differ in their bits"
        found.append(shards[0][i])
    return tuple(found)
