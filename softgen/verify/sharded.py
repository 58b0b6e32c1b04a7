"""Launches of a kernel of sharded rows on several emulated devices, against float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from softgen.devices.emulator import Job, Results
from softgen.devices.emulator.shard import Shard
from softgen.source.render import Source
from softgen.spec.numerics import Accuracy, Storage, check, other_inputs
from softgen.spec.operands import Extent
from softgen.spec.problem import Problem

DEVICES = 3
LAUNCHES = 2
_TURN = 7  # rows by which devices differ


def jobs_of(source: Source, x: Storage, offsets: tuple[int, int], seconds: int) -> list[Job]:
    """Return launches on all devices, each of which is late once.

    At first other rows of x meet on each device, then the same ones do, in place where that may be.
    `offsets` are how many elements x and y start behind a 16-byte boundary.
    """
    found = []
    problem, cols = source.variant.problem, x.shape[1]
    for launch in range(LAUNCHES):
        shards = [x if launch else np.roll(x, _TURN * device, axis=0) for device in range(DEVICES)]
        others = others_of(problem, shards)
        for device, rows in enumerate(shards):
            late = 3 if device == launch else 0
            shard = Shard(device, DEVICES, room=len(x) + 1, late=late, first=device * cols)
            in_place = bool(launch) and bool(problem.replacing)
            mine = share_of(problem, others, shards, device)
            job = Job(source, rows, mine, shard=shard, in_place=in_place, seconds=seconds)
            found.append(replace(job, x_offset=offsets[0], y_offset=offsets[1]))
    return found


def whole_of(problem: Problem, shards: list[Storage]) -> Problem:
    """Return the problem of whole rows."""
    return Problem.of(
        *(problem.function, problem.dtype, sum(x.shape[1] for x in shards)),
        out_dtype=problem.out_dtype,
    )


def others_of(problem: Problem, shards: list[Storage]) -> tuple[Storage, ...]:
    """Return inputs beside x that belong to whole rows."""
    return other_inputs(np.concatenate(shards, axis=1), whole_of(problem, shards))


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
