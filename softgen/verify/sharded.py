"""Launches of a kernel of sharded rows on several emulated devices, against float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from softgen.devices.emulator import Job, Results
from softgen.devices.emulator.shard import Shard
from softgen.source.render import Source
from softgen.spec.numerics import Accuracy, Storage, check
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
    for launch in range(LAUNCHES):
        for device in range(DEVICES):
            late = 3 if device == launch else 0
            shard = Shard(device, DEVICES, room=len(x) + 1, late=late)
            rows = np.roll(x, _TURN * device, axis=0) if launch == 0 else x
            in_place = bool(launch) and bool(source.variant.problem.replacing)
            job = Job(source, rows, shard=shard, in_place=in_place, seconds=seconds)
            found.append(replace(job, x_offset=offsets[0], y_offset=offsets[1]))
    return found


def joined(
    problem: Problem, shards: list[Storage], results: list[Results]
) -> tuple[Problem, Storage, Results]:
    """Return the problem of whole rows, its input, and its results from those of devices.

    A number a row is of the first device; the others must have the same bits: see `agree`.
    """
    whole = Problem.of(
        *(problem.function, problem.dtype, sum(x.shape[1] for x in shards)),
        out_dtype=problem.out_dtype,
    )
    arrays = tuple(
        np.concatenate([each[i] for each in results], axis=1)
        if operand.extent is Extent.ELEMENT
        else results[0][i]
        for i, operand in enumerate(problem.results)
    )
    return whole, np.concatenate(shards, axis=1), arrays


def agree(problem: Problem, results: list[Results]) -> bool:
    """Return whether devices have the same bits in what there is one of a row."""
    of_rows = [i for i, o in enumerate(problem.results) if o.extent is Extent.ROW]
    return all(each[i].tobytes() == results[0][i].tobytes() for each in results for i in of_rows)


def accuracy_of(
    problem: Problem, shards: list[Storage], results: list[Results], exponent_error: float = 0.0
) -> Accuracy:
    """Return how far the results of devices are from those of whole rows in float64."""
    whole, x, arrays = joined(problem, shards, results)
    return check(arrays, (x,), whole, exponent_error)
