"""Runs sources on the current GPU for `softgen verify --device cuda`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from softgen.devices.emulator import Results
from softgen.devices.gpu.compile import compile_many
from softgen.devices.gpu.device import require_device
from softgen.devices.gpu.kernel import LoadedKernel
from softgen.errors import CompileError, SoftgenError, VerificationError
from softgen.problems.layouts import AnyWidth
from softgen.problems.numerics import Storage, from_memory, in_memory, storage_dtype, varied_inputs
from softgen.problems.operands import Extent, Operand
from softgen.problems.placement import Placement
from softgen.problems.problem import Problem
from softgen.problems.shards import ALARM_OFFSET, mailbox_bytes
from softgen.source.render import Source
from softgen.verify.inputs import inputs_of, offsets_of
from softgen.verify.placements import placement_of
from softgen.verify.verdict import Verdict, judged

# run(source, inputs, x_offset, y_offset) returns the results. Inputs are in storage form; x and y
# start so many elements behind a boundary of 16 bytes.
Runner = Callable[[Source, Sequence[Storage], int, int], Results]


def on_gpu(
    prepare: Callable[[Sequence[Source]], Runner], sources: Sequence[Source]
) -> list[list[Verdict]]:
    """Return the verdicts on each source's launches by a runner that is made ready for them."""
    runner = prepare(sources)
    found = []
    for source in sources:
        variant = source.variant
        inputs, (offset, y_offset) = inputs_of(variant), offsets_of(variant)
        verdicts = []
        for other in dict.fromkeys((y_offset, offset)):
            verdicts.append(_verdict(source, runner, inputs, (offset, other)))
        for each in varied_inputs(inputs, variant.problem):
            verdicts.append(_verdict(source, runner, each, (offset, y_offset), "other numbers: "))
        found.append(verdicts)
    return found


def _verdict(
    source: Source,
    runner: Runner,
    inputs: Sequence[Storage],
    offsets: tuple[int, int],
    how: str = "",
) -> Verdict:
    try:
        return judged(source.variant, inputs, runner(source, inputs, *offsets), how)
    except SoftgenError as error:
        return Verdict(None, f"{how}{error}")


def compiled(sources: Sequence[Source]) -> Runner:
    """Compile the sources in parallel and return what runs one of them."""
    kernels = dict(zip((source.name for source in sources), compile_many(sources), strict=True))

    def run(
        source: Source, inputs: Sequence[Storage], x_offset: int, y_offset: int
    ) -> tuple[Storage, ...]:
        kernel = kernels[source.name]
        if isinstance(kernel, CompileError):
            raise kernel
        return run_on_storage(kernel, inputs, x_offset, y_offset)

    return run


def run_on_storage(
    kernel: LoadedKernel, inputs: Sequence[Storage], x_offset: int = 0, y_offset: int = 0
) -> tuple[Storage, ...]:
    """Return the results; those with an element a column start so many elements after 16 bytes."""
    cupy = require_device()
    rows, cols = inputs[0].shape
    problem = kernel.variant.problem.launched_on(cols)
    placement = placement_of(problem, rows)
    waiting, found, words = list(inputs), {}, []
    for operand in problem.given:
        if operand.extent is Extent.NUMBER:
            words.append(operand.word(waiting.pop(0).item()))
            continue
        if operand.shared:
            where = _Where(np.arange(waiting[0].size), waiting[0].size, 0)
        else:
            where = _Where.of(problem, operand, rows, placement)
        offset = y_offset if operand.result else x_offset
        start = offset * operand.dtype.itemsize if operand.extent is Extent.ELEMENT else 0
        # Before the first row there may be others; CuPy's memory starts on 512 bytes.
        start += -(-where.before * operand.dtype.itemsize // 16) * 16
        image = np.full(where.elements * operand.dtype.itemsize, 0xFF, "uint8")
        if not operand.result:
            stored = in_memory(waiting.pop(0), operand, problem)
            array = np.ascontiguousarray(stored).reshape(-1)
            image.view(storage_dtype(operand.dtype))[where.indices] = array
        # Results start as NaN, so that what is not written is seen, as what is in gaps.
        memory = cupy.full(start + image.size, 0xFF, "uint8")
        lowest = start - where.before * operand.dtype.itemsize
        memory[lowest : lowest + image.size] = cupy.asarray(image)
        found[operand] = memory[lowest : lowest + image.size], where
        words.append(memory.data.ptr + start)
    if placement is not None:
        numbers = zip(problem.layout_numbers, placement.numbers(problem.layout), strict=True)
        words += [number.word(value) for number, value in numbers]
    if isinstance(problem.layout, AnyWidth):
        words.append(cols)
    if problem.sharded:  # the only shard: what several exchange is the emulator's and tests/gpu's
        mailbox = cupy.zeros(mailbox_bytes(1, rows) + 8, "uint8")
        mailbox[-8:] = cupy.array([mailbox.data.ptr], "int64").view("uint8")
        address, alarm = mailbox.data.ptr, mailbox.data.ptr + ALARM_OFFSET
        words += [address + mailbox_bytes(1, rows), address, alarm, 0, 1, rows, 10**9]
        words += [0] * (len(problem.layout_numbers) > 7)  # the first column
    kernel.launch(words, rows, cupy.cuda.get_current_stream().ptr)
    return tuple(
        from_memory(
            _taken(cupy.asnumpy(found[operand][0]), operand, found[operand][1]),
            *(operand, problem, rows),
        )
        for operand in problem.results
    )


class _Where(NamedTuple):
    """Where an array's elements lie.

    Attributes:
        indices: of each, counted from the lowest.
        elements: from the lowest to the highest, with what lies between rows.
        before: how many are before the first row.
    """

    indices: npt.NDArray[np.int64]
    elements: int
    before: int

    @classmethod
    def of(
        cls, problem: Problem, operand: Operand, rows: int, placement: Placement | None
    ) -> _Where:
        if placement is None or operand.extent is not Extent.ELEMENT:
            size = math.prod(operand.shape(rows, problem.cols))
            return cls(np.arange(size), size, 0)
        which = problem.whole_rows.index(operand)
        low, high = placement.extent(which, problem.cols)
        return cls(placement.indices(which, problem.cols).reshape(-1), high - low, -low)


def _taken(image: Storage, operand: Operand, where: _Where) -> Storage:
    """Return an array's elements; VerificationError if the kernel wrote between rows."""
    elements = image.view(storage_dtype(operand.dtype))
    between = np.ones(where.elements, bool)
    between[where.indices] = False
    if (elements[between].view("uint8") != 0xFF).any():
        raise VerificationError(f"the kernel wrote between the rows of {operand.name}")
    return elements[where.indices]
