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


def compiled(sources: Sequence[Source]) -> Callable[[Source, Storage, int, int], Storage]:
    """Compile the sources in parallel and return what runs one of them."""
    kernels = dict(zip((source.name for source in sources), compile_many(sources), strict=True))

    def run(source: Source, x: Storage, x_offset: int, y_offset: int) -> Storage:
        kernel = kernels[source.name]
        if isinstance(kernel, CompileError):
            raise kernel
        return _run(kernel, x, x_offset, y_offset)

    return run


def _run(kernel: LoadedKernel, x: Storage, x_offset: int, y_offset: int) -> Storage:
    """Return y; the arrays start the given number of elements after a 16-byte boundary."""
    cupy = require_device()
    y_type = storage_dtype(kernel.variant.problem.out_dtype)
    x_start, y_start = x_offset * x.itemsize, y_offset * y_type.itemsize
    y_bytes = x.size * y_type.itemsize
    # CuPy's memory starts on 512 bytes. y starts as NaN, so that an element not written is seen.
    x_memory = cupy.empty(x_start + x.nbytes, "uint8")
    y_memory = cupy.full(y_start + y_bytes, 0xFF, "uint8")
    x_memory[x_start:] = cupy.asarray(np.ascontiguousarray(x).reshape(-1).view("uint8"))
    stream = cupy.cuda.get_current_stream().ptr
    kernel.launch(x_memory.data.ptr + x_start, y_memory.data.ptr + y_start, x.shape[0], stream)
    y: Storage = cupy.asnumpy(y_memory[y_start:]).view(y_type).reshape(x.shape)
    return y
