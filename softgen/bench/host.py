"""The line of the CPU: softmax by NumPy, on one thread and on all of the machine's.

It is no competitor. What it takes is the host's time, of data in the host's memory.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from softgen.bench.buffers import SharedBuffers
from softgen.bench.peers import AbsentError, Entrant, Library, Peer
from softgen.problems.dtypes import DType

# Bytes of rows at a time: their intermediate results stay in a core's cache, and each of the four
# operations is so long that threads do not wait for the interpreter between them.
CHUNK_BYTES = 1 << 20


def numpy_peers() -> list[Peer]:
    """Return NumPy's softmax on one thread and on all."""
    return [
        Peer("numpy-one-thread", partial(_numpy, threads=1), functions=("softmax",)),
        Peer(
            "numpy-all-threads",
            partial(_numpy, threads=len(os.sched_getaffinity(0))),
            functions=("softmax",),
        ),
    ]


def softmax_into(x: Any, out: Any) -> None:
    """Write the softmax of each row of `x`, (rows, cols), into `out`, some rows at a time."""
    import numpy as np

    step = max(1, CHUNK_BYTES // (x.shape[1] * x.itemsize))
    for first in range(0, len(x), step):
        part, result = x[first : first + step], out[first : first + step]
        np.subtract(part, part.max(axis=1, keepdims=True), out=result)
        np.exp(result, out=result)
        result /= result.sum(axis=1, keepdims=True)


def _numpy(buffers: SharedBuffers, threads: int) -> Entrant:
    import numpy as np

    if buffers.shape.dtype not in (DType.FLOAT32, DType.FLOAT64):
        raise AbsentError(f"computes {buffers.shape.dtype.value} in software")
    x = buffers.x[0].get()
    out = np.empty_like(x)
    share = -(-len(x) // threads)
    pieces = [slice(first, first + share) for first in range(0, len(x), share)]
    pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def launch(i: int) -> None:
        if pool is None:
            softmax_into(x, out)
        else:
            list(pool.map(lambda piece: softmax_into(x[piece], out[piece]), pieces))

    def collect() -> None:
        buffers.y[0].set(out)

    note = f"NumPy {np.__version__}, {threads} {'thread' if threads == 1 else 'threads'}"
    return Entrant(launch, Library.HOST, f"{note} of {_processor()}", collect)


def _processor() -> str:
    """Return the CPU's name, as Linux has it."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else "an unknown CPU"
