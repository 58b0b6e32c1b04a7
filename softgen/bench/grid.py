"""A search: every legal setting of one strategy at a shape, checked and timed one after another."""

from __future__ import annotations

from collections.abc import Callable

from softgen.bench.buffers import SharedBuffers
from softgen.bench.knobs import every_variant
from softgen.bench.machine import machine
from softgen.bench.peers import entrant_of
from softgen.bench.race import Race, Settings, first_line
from softgen.bench.record import Finding, Record, Status, records_of
from softgen.bench.shape import Shape
from softgen.devices.gpu.compile import compile_many
from softgen.devices.gpu.kernel import LoadedKernel
from softgen.errors import CompileError, InvalidValueError
from softgen.source.render import render

SECONDS = 0.03  # that each setting is timed for, and the copies together four times that


def search(
    shape: Shape,
    strategy: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Record]:
    """Return the times of the fastest copy and of every legal setting of `strategy` at `shape`.

    A setting that spills registers is absent, with that reason.

    Args:
        shape: a shape of the suite GRID.
        strategy: its name; one that is never tuned too.
        progress: called with how many settings are done, and how many there are.

    Raises NoDeviceError without a GPU, and InvalidValueError for an unknown strategy, one without a
    legal setting, or a shape that does not fit the GPU's memory.
    """
    buffers = SharedBuffers(shape)
    variants = every_variant(strategy, buffers.problem, shape.rows, buffers.arch)
    if not variants:
        raise InvalidValueError(
            f"strategy {strategy!r} has no legal setting for {buffers.problem.label} on "
            f"{buffers.arch.label}"
        )
    race = Race(buffers, Settings(seconds=SECONDS), {})
    findings = race.findings()  # of nobody but the limit, whose copies warm the clocks up
    for number, made in enumerate(compile_many(map(render, variants))):
        label = variants[number].strategy.label
        if isinstance(made, CompileError):
            found = Finding(label, Status.ABSENT, note=first_line(made))
        elif made.local_bytes:
            found = Finding(label, Status.ABSENT, note="spills registers")
        else:
            found = _timed(race, label, made)
        findings.append(found)
        progress(number + 1, len(variants))
    return records_of(shape, findings, machine())


def _timed(race: Race, label: str, kernel: LoadedKernel) -> Finding:
    try:
        return race.look_at(label, entrant_of(kernel, race.buffers))
    except Exception as error:  # what the driver refuses is absent; the others go on
        return Finding(label, Status.ABSENT, note=first_line(error))
