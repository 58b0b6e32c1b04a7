"""Launches of a kernel of sharded rows on several emulated devices, against float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from softgen.devices.emulator import Job, Results
from softgen.devices.emulator.shard import Shard
from softgen.problems.numerics import Accuracy, Storage, check, decode, other_inputs, varied_inputs
from softgen.problems.operands import Extent
from softgen.problems.problem import Problem
from softgen.source.render import Source

DEVICES = 3
LAUNCHES = 5  # over two buffers of mailboxes, so that each is used again
ABSENT = 1  # the device that does not come
PATIENCE = 40  # looks at the clock, where a device does not come
_TURN = 7  # rows by which devices differ


def jobs_of(
    source: Source, x: Storage, offsets: tuple[int, int], seconds: int, rows: int | None = None
) -> list[Job]:
    """Return launches on all devices, each of which is late at times.

    Other rows of x meet on each device and in each launch; in the last one the same do, in place
    where that may be. A launch has so many `rows`, by default all. `offsets` are how many elements
    x and y start behind a 16-byte boundary.
    """
    found = []
    problem, cols = source.variant.problem, x.shape[1]
    for launch in range(LAUNCHES):
        last = launch == LAUNCHES - 1
        turns = [0 if last else _TURN * device + launch for device in range(DEVICES)]
        shards = [np.roll(x, turn, axis=0)[:rows] for turn in turns]
        others = others_of(problem, shards, launch)
        for device, shard_of_x in enumerate(shards):
            late = 3 if device == launch % DEVICES else 0
            shard = Shard(device, DEVICES, room=len(x) + 1, late=late, first=device * cols)
            in_place = last and bool(problem.replacing)
            mine = share_of(problem, others, shards, device)
            job = Job(source, shard_of_x, mine, shard=shard, in_place=in_place, seconds=seconds)
            found.append(replace(job, x_offset=offsets[0], y_offset=offsets[1]))
    return found


def whole_of(problem: Problem, shards: list[Storage]) -> Problem:
    """Return the problem of whole rows."""
    return Problem.of(
        *(problem.function, problem.dtype, sum(x.shape[1] for x in shards)),
        out_dtype=problem.out_dtype,
    )


def others_of(problem: Problem, shards: list[Storage], launch: int = 0) -> tuple[Storage, ...]:
    """Return inputs beside x that belong to whole rows; other numbers for each launch by turns."""
    x, whole = np.concatenate(shards, axis=1), whole_of(problem, shards)
    inputs = (x, *other_inputs(x, whole))
    numbers = (inputs, *varied_inputs(inputs, whole))
    return numbers[launch % len(numbers)][1:]


def share_of(
    problem: Problem, others: tuple[Storage, ...], shards: list[Storage], device: int
) -> tuple[Storage, ...]:
    """Return what a device takes of inputs beside x: its columns, where there is one a column."""
    start = sum(x.shape[1] for x in shards[:device])
    mine = slice(start, start + shards[device].shape[1])
    pairs = zip(problem.inputs[1:], others, strict=True)
    return tuple(each[:, mine] if o.extent is Extent.ELEMENT else each for o, each in pairs)


def joined(
    problem: Problem, shards: list[Storage], results: list[Results]
) -> tuple[Problem, Storage, Results]:
    """Return the problem of whole rows, its input, and its results from those of devices.

    A number a row is of the first device; the others must have the same bits: see `agree`.
    """
    arrays = tuple(
        np.concatenate([each[i] for each in results], axis=1)
        if operand.extent is Extent.ELEMENT
        else results[0][i]
        for i, operand in enumerate(problem.results)
    )
    return whole_of(problem, shards), np.concatenate(shards, axis=1), arrays


def agree(problem: Problem, results: list[Results]) -> bool:
    """Return whether devices have the same bits in what there is one of a row."""
    of_rows = [i for i, o in enumerate(problem.results) if o.extent is Extent.ROW]
    return all(each[i].tobytes() == results[0][i].tobytes() for each in results for i in of_rows)


def accuracy_of(
    problem: Problem,
    shards: list[Storage],
    results: list[Results],
    exponent_error: float = 0.0,
    others: tuple[Storage, ...] = (),
) -> Accuracy:
    """Return how far the results of devices are from those of whole rows in float64."""
    whole, x, arrays = joined(problem, shards, results)
    return check(arrays, (x, *others), whole, exponent_error)


def without_one(jobs: Sequence[Job]) -> list[Job]:
    """Return the first launch on the devices but one, which do not wait for it long."""
    found = []
    for job in jobs[:DEVICES]:
        assert job.shard is not None, job.source.name
        if job.shard.shard != ABSENT:
            found.append(replace(job, shard=replace(job.shard, late=0, patience=PATIENCE)))
    return found


def objection_alone(
    jobs: Sequence[Job], results: Sequence[Results], missed: tuple[int, ...]
) -> str:
    """Return what is wrong where a device does not come, or "".

    Those that wait have to name it, and write NaN. What one number of a row decides it may still
    be: 0 or -inf of a row that is ignored, and +inf.
    """
    names = tuple(-1 if device == ABSENT else ABSENT for device in range(DEVICES))
    if missed != names:
        return f"without device {ABSENT}: devices waited in vain for {list(missed)}"
    for job, arrays in zip(jobs, results, strict=True):
        for operand, array in zip(job.problem.results, arrays, strict=True):
            values = decode(array, operand.dtype)
            wrong = ~np.isnan(values)
            if operand.extent is Extent.ROW:
                wrong = np.isfinite(values) & (values != 0)
            if wrong.any():
                row = int(np.argwhere(wrong)[0][0])
                return f"without device {ABSENT}: {operand.name} of row {row} is not NaN"
    return ""
