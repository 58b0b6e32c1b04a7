"""Device time of kernels: CUDA graphs replayed over rotating buffers that do not fit in L2.

Each launch takes the next pair of buffers; together they are larger than twice the L2 cache, so a
launch does not find its input there.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from softgen.arch import Arch
from softgen.arrays import numpy_dtype
from softgen.device import require_device
from softgen.entry import Timing
from softgen.errors import InvalidValueError
from softgen.kernel import Kernel
from softgen.problem import DType, Problem
from softgen.replay import Player, Replay

MAX_PAIRS = 256
PERIOD_ELEMENTS = 1 << 20  # the random data repeats after this many elements


@dataclass(frozen=True)
class Buffers:
    """Pairs of input and output on the device, each on a 256-byte boundary.

    Attributes:
        rows: rows of each pair: those asked for, or fewer where memory is short.
        inputs: device address of each input, random values.
        outputs: device address of each output.
    """

    rows: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    owners: tuple[Any, ...]

    @classmethod
    def allocate(cls, problem: Problem, rows: int, arch: Arch) -> Buffers:
        """Return buffers for `rows` rows, within half of the free memory.

        Raises InvalidValueError if not even one row fits.
        """
        cupy = require_device()
        free, _ = cupy.cuda.runtime.memGetInfo()
        free += cupy.get_default_memory_pool().free_bytes()
        while rows > 1 and rows * problem.bytes_per_row > free // 2:
            rows //= 2
        if rows * problem.bytes_per_row > free // 2:
            raise InvalidValueError(
                f"one row of {problem.label} needs {problem.bytes_per_row} bytes to be timed, and "
                f"{free} are free"
            )
        size = rows * problem.bytes_per_row
        pairs = max(1, min(MAX_PAIRS, -(-2 * arch.l2_bytes // size), free // 2 // size))
        elements = rows * problem.cols
        x_step = _round_up(elements * problem.dtype.itemsize) + _skew(problem)
        y_step = _round_up(elements * problem.out_dtype.itemsize) + _skew(problem)
        x = cupy.empty(pairs * x_step, "uint8")
        y = cupy.empty(pairs * y_step, "uint8")
        _fill_random(x, problem.dtype)
        shift = _shift(problem)
        x_first = x.data.ptr + shift * problem.dtype.itemsize
        y_first = y.data.ptr + shift * problem.out_dtype.itemsize
        return cls(
            rows,
            tuple(x_first + i * x_step for i in range(pairs)),
            tuple(y_first + i * y_step for i in range(pairs)),
            (x, y),
        )


def _shift(problem: Problem) -> int:
    """Return how many elements to move the base so that rows have just the problem's alignment."""
    natural = Problem.of(problem.algorithm, problem.dtype, problem.cols).alignment
    return problem.alignment if problem.alignment < natural else 0


def _skew(problem: Problem) -> int:
    return 256 if _shift(problem) else 0


def _round_up(size: int) -> int:
    return -(-size // 256) * 256


def _fill_random(buffer: Any, dtype: DType) -> None:
    """Fill with normal values by doubling copies: no generator kernel has to be compiled."""
    import cupy
    import numpy as np

    values = np.random.default_rng(0).standard_normal(PERIOD_ELEMENTS, np.float32)
    period = values.astype(numpy_dtype(dtype)).view(np.uint8)
    filled = min(period.size, buffer.size)
    buffer[:filled] = cupy.asarray(period[:filled])
    while filled < buffer.size:
        step = min(filled, buffer.size - filled)
        buffer[filled : filled + step] = buffer[:step]
        filled += step


class Stopwatch:
    """Times kernels over one set of buffers, on a stream of its own."""

    def __init__(self, buffers: Buffers) -> None:
        self.buffers = buffers
        self._player = Player()
        self._replays: dict[int, tuple[Kernel, Replay]] = {}

    def _replay(self, kernel: Kernel) -> Replay:
        """Return the kernel's replay; the kernel is kept, because its id is the key."""
        if id(kernel) not in self._replays:
            stream = self._player.stream.ptr
            pairs = len(self.buffers.inputs)

            def launch(i: int) -> None:
                x, y = self.buffers.inputs[i % pairs], self.buffers.outputs[i % pairs]
                kernel.launch(x, y, self.buffers.rows, stream)

            # Nothing may be allocated in a capture: a workspace has to be there before.
            launch(0)
            replay = self._player.sized(lambda count: self._player.capture(launch, count), pairs)
            self._replays[id(kernel)] = (kernel, replay)
        return self._replays[id(kernel)][1]

    def warm_up(self, kernel: Kernel) -> None:
        """Run the kernel until the clocks have risen."""
        self._player.warm_up(self._replay(kernel))

    def samples(self, kernel: Kernel, seconds: float, least: int = 5) -> list[float]:
        """Return microseconds per launch, one number a replay, for about `seconds` of host time."""
        return self._player.samples(self._replay(kernel), seconds, least)


def summarize(kernel: Kernel, samples: list[float]) -> Timing:
    """Return the median and the 10th and 90th percentile of `samples` (two or more)."""
    deciles = statistics.quantiles(samples, n=10, method="inclusive")
    return Timing(kernel.variant.name, statistics.median(samples), deciles[0], deciles[-1])
