"""A kernel on a fixed number of rows, ready to go: only operands and the stream are open."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from softgen.devices.gpu import workspace
from softgen.devices.gpu.device import require_device
from softgen.devices.gpu.driver import DOES_NOT_FIT, launch_of
from softgen.errors import LaunchError
from softgen.strategies.launch import Launch

# The values: a word for each operand, its address or its bits if it is a number, then rows,
# workspace (not every kernel takes one), and the launch configuration; go(), which launches on them
# and returns 0 or the driver's error; what is lent for the launch under way; what has to live as
# long: where the values' addresses are, and the kernel.
Arguments = tuple["array[int]", Callable[[], int], list[Any], Any]

# Where the stream is among the values. The words of a CUlaunchConfig are the last ones: grid and
# block in three, shared memory, stream, address and number of the attributes.
STREAM = -3

# A CUlaunchAttribute is a kind, and 64 bytes that begin with its value.
COOPERATIVE = 2  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE
DEPENDENT = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_ATTRIBUTE_WORDS = 9


class Launcher:
    """launch(arguments, stream) on the operands' words and a stream's handle, unchecked.

    A word is an array's address, or what `Operand.word` makes of a number.

    The context of the kernel must be current. The driver reads arguments and configuration from
    memory, so that a launch sets three numbers there and calls cuLaunchKernelEx, by ctypes: 0.3 us
    of Python in all, where CuPy's Function, which makes objects of the arguments, takes 1.7.

    Attributes:
        take: returns arguments that no launch uses, or raises IndexError. The launch releases the
            GIL before the driver has read them; taken out of a list meanwhile (one step, which no
            thread can interrupt), they are this call's own.
        put_back: takes them back, after a launch that succeeded.
        make: returns new ones.
        prepare: prepare(arguments, stream) puts a workspace's address among the values; None for a
            kernel without one.
    """

    __slots__ = ("make", "prepare", "put_back", "take")

    def __init__(
        self,
        function: Any,
        operands: int,
        shape: Launch,
        rows: int,
        device: int,
        scratch: workspace.Allocator | int,
        fixed: Mapping[int, int] | None = None,
    ) -> None:
        """Make a launch.

        Args:
            function: CuPy's handle of the kernel.
            operands: how many it takes.
            shape: how it is launched.
            rows: number of rows.
            device: number of the device.
            scratch: where a workspace comes from, or the address of one that is the caller's own.
            fixed: words of operands that are the same in every launch, by their place: who takes
                arguments sets the others.
        """
        size = shape.workspace_bytes(rows)
        given = scratch if isinstance(scratch, int) else 0
        idle: list[Arguments] = []

        def prepare(arguments: Arguments, stream: int) -> None:
            assert not isinstance(scratch, int)
            values, _, lent, _ = arguments
            key, found = workspace.lend(scratch, device, stream, size)
            values[operands + 1] = found.address
            lent[:] = key, found, stream

        def put_all_back(arguments: Arguments) -> None:
            workspace.give_back(*arguments[2])
            idle.append(arguments)

        lends = size > 0 and not given
        self.take: Callable[[], Arguments] = idle.pop
        self.put_back: Callable[[Arguments], None] = put_all_back if lends else idle.append
        words = [(fixed or {}).get(place, 0) for place in range(operands)]
        self.make: Callable[[], Arguments] = functools.partial(
            _arguments, words, rows, given, shape, function
        )
        self.prepare = prepare if lends else None

    def __call__(self, arguments: Sequence[int], stream: int) -> None:
        """Launch; code that `call/runner.py` makes has these lines too, for 0.2 us less.

        Raises LaunchError if the stream has too few SMs for the kernel; nothing has run then.
        """
        try:
            mine = self.take()
        except IndexError:
            mine = self.make()
        values, go, _, _ = mine
        for i, word in enumerate(arguments):
            values[i] = word
        values[STREAM] = stream
        if self.prepare is not None:
            self.prepare(mine, stream)
        status = go()
        if status:
            error = require_device().cuda.driver.CUDADriverError(status)
            if status in DOES_NOT_FIT:
                raise LaunchError(
                    f"the kernel does not fit the SMs of its stream: {error}"
                ) from error
            raise error
        self.put_back(mine)


def _arguments(
    words: Sequence[int], rows: int, given: int, shape: Launch, function: Any
) -> Arguments:
    kinds = [COOPERATIVE] * shape.cooperative + [DEPENDENT] * shape.dependent
    attributes = array("L", [0] * _ATTRIBUTE_WORDS * len(kinds))
    for i, kind in enumerate(kinds):
        attributes[i * _ATTRIBUTE_WORDS : i * _ATTRIBUTE_WORDS + 2] = array("L", (kind, 1))
    grid, block, one = shape.grid(rows), shape.block_size, 1
    configuration = (
        *(grid | one << 32, one | block << 32, one | one << 32),
        *(shape.dynamic_shared_bytes, 0, attributes.buffer_info()[0], len(kinds)),
    )
    # unsigned long: set 0.01 us quicker each than "Q"
    values = array("L", [*words, rows, given, *configuration])
    start, each = values.buffer_info()[0], values.itemsize
    begin = start + (len(words) + 2) * each  # of the configuration
    addresses = array("Q", range(start, begin, each))
    go = launch_of(begin, function.ptr, addresses.buffer_info()[0])
    return values, go, [], (addresses, attributes, function)
