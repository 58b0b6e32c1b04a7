"""Runs sources on the current GPU for `softgen verify --device cuda`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from softgen.devices.gpu.compile import compile_many
from softgen.devices.gpu.device import require_device
from softgen.devices.gpu.kernel import LoadedKernel
from softgen.errors import CompileError
from softgen.source.render import Source
from softgen.spec.numerics import Storage, storage_dtype
from softgen.spec.operands import Extent


def compiled(
    sources: Sequence[Source],
) -> Callable[[Source, Sequence[Storage], int, int], tuple[Storage, ...]]:
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
    problem, rows = kernel.variant.problem, inputs[0].shape[0]
    waiting, memories, words = list(inputs), {}, []
    for operand in problem.operands:
        if operand.extent is Extent.NUMBER:
            words.append(operand.word(waiting.pop(0).item()))
            continue
        offset = y_offset if operand.result else x_offset
        start = offset * operand.dtype.itemsize if operand.extent is Extent.ELEMENT else 0
        size = rows * operand.bytes_per_row(problem.cols)
        # CuPy's memory starts on 512 bytes. Results start as NaN, so that what is not written is
        # seen.
        memory = cupy.full(start + size, 0xFF, "uint8")
        if not operand.result:
            array = np.ascontiguousarray(waiting.pop(0)).reshape(-1)
            memory[start:] = cupy.asarray(array.view("uint8"))
        memories[operand] = memory[start:]
        words.append(memory.data.ptr + start)
    kernel.launch(words, rows, cupy.cuda.get_current_stream().ptr)
    return tuple(
        cupy.asnumpy(memories[operand])
        .view(storage_dtype(operand.dtype))
        .reshape(operand.shape(rows, problem.cols))
        for operand in problem.results
    )
