"""Cases on the current GPU, by launches on addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from softgen.devices.gpu.compile import compile_many
from softgen.devices.gpu.device import require_device
from softgen.devices.gpu.kernel import LoadedKernel
from softgen.errors import CompileError, SoftgenError
from softgen.problems.operands import Extent
from softgen.problems.shards import mailbox_bytes
from softgen.problems.storage import storage_dtype
from softgen.verify.gpu import run_on_storage
from tests.differential.cases import Case, Kernel
from tests.differential.emulated import Outcome, joined

_PATIENCE = 10**10  # nanoseconds


class Gpu:
    """Runs kernels that were compiled together."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        compiled = compile_many([drawn.source for drawn in kernels])
        self._kernels = {drawn.number: one for drawn, one in zip(kernels, compiled, strict=True)}

    def run(self, drawn: Kernel, cases: Sequence[Case]) -> list[Outcome]:
        """Return the results of each case, or what stopped it."""
        kernel = self._kernels[drawn.number]
        if isinstance(kernel, CompileError):
            return [f"does not compile: {kernel}"] * len(cases)
        if drawn.shards > 1:
            return _run_shards(kernel, drawn, cases)
        return [_run(kernel, case) for case in cases]


def _run(kernel: LoadedKernel, case: Case) -> Outcome:
    try:
        return run_on_storage(kernel, case.inputs, *case.offsets)
    except SoftgenError as error:
        return f"{type(error).__name__}: {error}"


def _run_shards(kernel: LoadedKernel, drawn: Kernel, cases: Sequence[Case]) -> list[Outcome]:
    """Run launches one after another; a stream stands for each device, as in tests/gpu."""
    cupy = require_device()
    problem, shards = drawn.problem, drawn.shards
    room = max(len(case.inputs[0]) for case in cases) + 1
    boxes = [cupy.zeros(mailbox_bytes(shards, room), "uint8") for _ in range(shards)]
    addresses = cupy.array([box.data.ptr for box in boxes], "int64")
    pinned = cupy.cuda.alloc_pinned_memory(4 * shards)
    alarms = np.frombuffer(pinned, np.uint32, shards)
    alarms[:] = 0
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(shards)]
    # Nothing is allocated while a kernel may wait for another.
    launches, results = [], []
    for case in cases:
        rows, of_case = len(case.inputs[0]), []
        for device in range(shards):
            waiting, words, mine = list(case.inputs), [], []
            held: list[Any] = []
            for operand in problem.given:
                if operand.extent is Extent.NUMBER:
                    words.append(operand.word(waiting.pop(0).item()))
                    continue
                if operand.result:
                    shape = operand.shape(rows, problem.cols)
                    array = cupy.empty(shape, storage_dtype(operand.dtype))
                    mine.append(array)
                else:
                    given = waiting.pop(0)
                    if operand.extent is Extent.ELEMENT:
                        first = device * problem.cols
                        given = np.ascontiguousarray(given[:, first : first + problem.cols])
                    array = cupy.asarray(given)
                held.append(array)
                words.append(array.data.ptr)
            where = (boxes[device].data.ptr, pinned.ptr + 4 * device, device, shards, room)
            words += [addresses.data.ptr, *where, _PATIENCE]
            if len(problem.layout_numbers) > 7:
                words.append(device * problem.cols)
            launches.append((device, words, rows, held))
            of_case.append(mine)
        results.append(of_case)
    cupy.cuda.Device().synchronize()
    for device, words, rows, _ in launches:
        kernel.launch(words, rows, streams[device].ptr)
    for stream in streams:
        stream.synchronize()
    if alarms.any():
        return [f"devices waited in vain: {alarms.tolist()}"] * len(cases)
    return [
        joined(drawn, [tuple(map(cupy.asnumpy, mine)) for mine in of_case]) for of_case in results
    ]
