"""Device time of kernels in a steady cold state: CUDA graphs replayed over rotating buffers.

Each launch takes the next pair of buffers, and COLD_BYTES of others are read and written before a
pair comes again, five times an L2 cache: a launch finds nothing of its input there, but what other
launches left to be written back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from softgen.devices.gpu.device import require_device
from softgen.devices.gpu.kernel import LoadedKernel
from softgen.devices.gpu.replay import Launch, Player, Replay
from softgen.errors import InvalidValueError, NoRoomError
from softgen.problems.arch import GIB
from softgen.problems.dtypes import DType
from softgen.problems.numerics import encode, hook_examples, numpy_dtype
from softgen.problems.operands import Extent, Measure, Operand
from softgen.problems.placement import Placement
from softgen.problems.problem import Problem, natural_alignment

COLD_BYTES = 300_000_000  # of inputs, and as many of outputs, until a pair comes again
LEAST_PAIRS = 4
MOST_PAIRS = 512  # in a graph; where that is too little, other memory is written between replays

# What measuring may take of a GPU's free memory, which may be a user's that is at work: that share,
# and no more bytes than these unless one pair of the fewest rows has more.
MOST_BYTES = 4 * GIB
SHARE_OF_FREE = 4  # one part in so many

PERIOD_ELEMENTS = 1 << 20  # the random data repeats after this many elements


@dataclass(frozen=True)
class Rotation:
    """How many pairs of buffers, of how many rows, and how much other memory beside.

    Attributes:
        rows: of each pair: those asked for, or fewer where memory is short.
        pairs: number of pairs.
        rest: bytes to write between replays, so that the first pair is as cold as the others.
    """

    rows: int
    pairs: int
    rest: int

    @classmethod
    def of(cls, problem: Problem, rows: int, free: int, *, whole: bool = False) -> Rotation:
        """Return the rotation for `rows` rows where `free` bytes of memory are.

        Args:
            problem: the request.
            rows: number of rows; those of columns are rounded up to whole outer indices.
            free: bytes of the device's memory that nobody has taken.
            whole: whether it must be all rows, for which half of the memory may be taken.

        Raises NoRoomError if that is too much, or even one row.
        """
        # The gate keeps the oracle's results beside.
        kept = sum(operand.bytes_per_row(problem.cols) for operand in problem.results)
        each = problem.bytes_per_row + kept
        step = problem.layout.step  # rows that come together
        budget = min(free // SHARE_OF_FREE, max(MOST_BYTES, step * each))
        if whole:
            budget = max(budget, min(rows * each, free // 2))
        rows = -(-rows // step) * step
        fitting = budget // each // step * step
        if fitting < (rows if whole else step):
            least = rows if whole else step
            needs = "one row needs" if least == 1 else f"{least} rows need"
            raise NoRoomError(
                f"{needs} {least * each} bytes of {problem.label} to be timed, "
                f"and {budget} may be taken of the {free} that are free"
            )
        rows = min(rows, fitting)
        # Those of a row are small: what is read and written in whole rows decides what is cold.
        element = [o for o in problem.operands if o.extent is Extent.ELEMENT]
        smaller = rows * min(operand.bytes_per_row(problem.cols) for operand in element)
        pair = rows * problem.bytes_per_row
        room = (budget - rows * kept) // pair
        wanted = max(LEAST_PAIRS, -(-COLD_BYTES // smaller))
        pairs = max(1, min(wanted, MOST_PAIRS, room))
        rest = 2 * max(0, COLD_BYTES - pairs * smaller) if pairs == MOST_PAIRS else 0
        return cls(rows, pairs, min(rest, budget - rows * kept - pairs * pair))


@dataclass(frozen=True)
class Buffers:
    """Sets of a function's operands on the device, each array on a 256-byte boundary.

    Their memory comes from the driver and goes back to it with the last reference: no pool that
    others use grows by it.

    Attributes:
        rows: rows of each set: those asked for, or fewer where memory is short.
        arguments: words of each set's operands, in their order: device addresses of arrays, of
            which inputs hold random values, and the numbers that hooks have as examples.
        results: which of them the kernel writes.
        owners: what keeps the memory.
        rest: other memory that is written between replays; None if the sets are enough.
    """

    rows: int
    arguments: tuple[tuple[int, ...], ...]
    results: tuple[int, ...]
    owners: tuple[Any, ...]
    rest: Any

    @property
    def inputs(self) -> tuple[int, ...]:
        """Address of each set's first input."""
        return tuple(arrays[0] for arrays in self.arguments)

    @property
    def outputs(self) -> tuple[int, ...]:
        """Address of each set's first result."""
        return tuple(arrays[self.results[0]] for arrays in self.arguments)

    @classmethod
    def allocate(cls, problem: Problem, rows: int, *, whole: bool = False) -> Buffers:
        """Return buffers for `rows` rows, or fewer unless `whole`.

        Raises NoRoomError if memory is short (see `Rotation.of`).
        """
        free, _ = require_device().cuda.runtime.memGetInfo()
        rotation = Rotation.of(problem, rows, free, whole=whole)
        rows, pairs = rotation.rows, rotation.pairs
        rest = memory(rotation.rest) if rotation.rest else None
        owners, words = [], []
        placement = Placement.contiguous(len(problem.whole_rows), rows, problem.cols)
        numbers = placement.numbers(problem.layout)
        values = (*hook_examples(problem, rows), *map(np.int64, numbers))
        shared = (*problem.hook_operands, *problem.layout_numbers)
        examples = dict(zip(shared, values, strict=True))
        timed = problem.function.timed_inputs(rows, problem.cols)
        examples |= {o: encode(timed[o.name], o.dtype) for o in problem.inputs if o.name in timed}
        first = problem.operands[0]
        cancels = any(operand.measure is Measure.TERMS for operand in problem.results)
        for operand in problem.operands:
            if operand in examples:  # all sets share what is small
                word, owner = _example(operand, examples[operand])
                owners.append(owner)
                words.append([word] * pairs)
                continue
            skew = _skew(problem) if operand.extent is Extent.ELEMENT else 0
            step = _round_up(rows * operand.bytes_per_row(problem.cols)) + skew
            array = memory(pairs * step)
            if not operand.result:
                assert isinstance(operand.dtype, DType), operand
                _fill_random(array, operand.dtype, positive=cancels or operand != first)
            shift = _shift(problem) * operand.dtype.itemsize if skew else 0
            owners.append(array)
            words.append([array.data.ptr + shift + i * step for i in range(pairs)])
        results = tuple(i for i, operand in enumerate(problem.operands) if operand.result)
        return cls(rows, tuple(zip(*words, strict=True)), results, tuple(owners), rest)

    def chained(self, problem: Problem) -> Buffers:
        """Return the same memory as a ring: launch i reads what launch i - 1 has written.

        Raises InvalidValueError for a function whose result cannot be the next one's input.
        """
        first, *others = (o for o in problem.operands if o not in problem.hook_operands)
        if len(others) != 1 or (others[0].extent, others[0].dtype) != (first.extent, first.dtype):
            raise InvalidValueError(
                f"launches of {problem.computed} cannot be chained: the result of one is no input "
                "of the next"
            )
        ring = [address for words in self.arguments for address in words[:2]]
        numbers = self.arguments[0][2:]
        links = zip(ring, ring[1:] + ring[:1], strict=True)
        return replace(self, arguments=tuple((*link, *numbers) for link in links))

    def chill(self, player: Player) -> None:
        """Have the player write the rest between the runs that it times."""
        if self.rest is None:
            return
        memset, rest = player.cupy.cuda.runtime.memsetAsync, self.rest
        player.between = lambda: memset(rest.data.ptr, 0, rest.nbytes, player.stream.ptr)


def _example(operand: Operand, value: Any) -> tuple[int, Any]:
    """Return the word of a number, or of an array on the device, and what keeps that."""
    if operand.extent is Extent.NUMBER:
        return operand.word(value.item()), None
    array = memory(value.nbytes)
    array[:] = require_device().asarray(value.reshape(-1).view("uint8"))
    return array.data.ptr, array


def memory(size: int) -> Any:
    """Return bytes of the driver's, as an array, past CuPy's pool."""
    cupy = require_device()
    pointer = cupy.cuda.MemoryPointer(cupy.cuda.Memory(size), 0)
    return cupy.ndarray(size, "uint8", pointer)


def _shift(problem: Problem) -> int:
    """Return how many elements to move the base so that rows have just the problem's alignment."""
    natural = natural_alignment(problem.dtype, problem.cols, problem.layout)
    return problem.alignment if problem.alignment < natural else 0


def _skew(problem: Problem) -> int:
    return 256 if _shift(problem) else 0


def _round_up(size: int) -> int:
    return -(-size // 256) * 256


def _fill_random(buffer: Any, dtype: DType, positive: bool) -> None:
    """Fill with normal values, or with their sizes, whose sums do not cancel.

    The gate compares results by their own size, and a sum that cancels is off by more than that.
    By doubling copies: no generator kernel has to be compiled.
    """
    import cupy

    values = np.random.default_rng(0).standard_normal(PERIOD_ELEMENTS, np.float32)
    if positive:
        values = np.abs(values)
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
        buffers.chill(self._player)
        self._replays: dict[int, tuple[LoadedKernel, Replay]] = {}

    def _replay(self, kernel: LoadedKernel) -> Replay:
        """Return the kernel's replay; the kernel is kept, because its id is the key."""
        if id(kernel) not in self._replays:
            launch = launch_over(self.buffers, kernel, self._player)
            pairs = len(self.buffers.arguments)
            replay = self._player.sized(lambda count: self._player.capture(launch, count), pairs)
            self._replays[id(kernel)] = (kernel, replay)
        return self._replays[id(kernel)][1]

    def warm_up(self, kernel: LoadedKernel) -> None:
        """Run the kernel until the clocks have risen."""
        self._player.warm_up(self._replay(kernel))

    def samples(self, kernel: LoadedKernel, seconds: float, least: int = 5) -> list[float]:
        """Return microseconds per launch, one number a replay, for about `seconds` of host time."""
        return self._player.samples(self._replay(kernel), seconds, least)


def launch_over(
    buffers: Buffers, kernel: LoadedKernel, player: Player, *, pdl: bool = True
) -> Launch:
    """Return the launches of a kernel: number i on pair i, on the player's stream.

    They share one workspace, as launches on one stream do. Asked for in the capture, each would
    have one of its own: PyTorch's graphs clear one a graph.
    """
    size = kernel.variant.launch.workspace_bytes(buffers.rows)
    workspace = memory(size) if size else None
    if workspace is not None:
        player.cupy.cuda.runtime.memsetAsync(workspace.data.ptr, 0, size, player.stream.ptr)
    scratch = workspace.data.ptr if workspace is not None else None
    launcher = kernel.launcher(buffers.rows, scratch, pdl=pdl)
    stream, pairs = player.stream.ptr, len(buffers.arguments)

    def launch(i: int, _keeps: Any = workspace) -> None:
        launcher(buffers.arguments[i % pairs], stream)

    return launch
