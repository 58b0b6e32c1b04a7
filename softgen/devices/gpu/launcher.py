"""A kernel on a fixed number of rows, ready to go: only addresses and the stream are open."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from softgen.devices.gpu import workspace
from softgen.devices.gpu.device import require_device
from softgen.devices.gpu.driver import DOES_NOT_FIT
from softgen.errors import LaunchError
from softgen.strategies.launch import Launch

# The values: the operands' addresses, rows, workspace (not every kernel takes one); where they are;
# what is lent for the launch under way; what has to live as long: the array that holds the
# addresses, and the kernel's module.
Arguments = tuple["array[int]", int, list[Any], "array[int]", Any]


class Launcher:
    """launch(arguments, stream) on the operands' addresses and a stream's handle, unchecked.

    It goes through the driver's own binding; the context of the kernel must be current.
    cuLaunchKernel takes the addresses of the arguments, so that a launch rewrites two numbers in
    memory: 0.25 us of Python in all, where CuPy's Function, which makes objects of the arguments,
    takes 1.7.

    Attributes:
        take: returns arguments that no launch uses, or raises IndexError. The launch releases the
            GIL before the driver has read them; taken out of a list meanwhile (one step, which no
            thread can interrupt), they are this call's own.
        put_back: takes them back, after a launch that succeeded.
        make: returns new ones.
        prepare: prepare(arguments, stream, result, rest) puts a workspace's address among the
            values and returns `result`, or None; `Prepare` in `call/warm_run.py` is more of it.
        start: start(stream, addresses, 0) launches, or raises the driver's error.
    """

    __slots__ = ("make", "prepare", "put_back", "start", "take")

    def __init__(
        self,
        function: Any,
        arrays: int,
        shape: Launch,
        rows: int,
        device: int,
        scratch: workspace.Allocator | int,
    ) -> None:
        """Make a launch.

        Args:
            function: CuPy's handle of the kernel.
            arrays: how many operands it takes.
            shape: how it is launched.
            rows: number of rows.
            device: number of the device.
            scratch: where a workspace comes from, or the address of one that is the caller's own.
        """
        driver = require_device().cuda.driver
        grid, block = (shape.grid(rows), 1, 1), (shape.block_size, 1, 1)
        fixed = (function.ptr, *grid, *block, shape.dynamic_shared_bytes)
        size = shape.workspace_bytes(rows)
        given = scratch if isinstance(scratch, int) else 0
        idle: list[Arguments] = []

        def together(stream: int, addresses: int, _: int) -> None:
            driver.launchCooperativeKernel(*fixed, stream, addresses)

        def prepare(arguments: Arguments, stream: int, result: Any = None, rest: Any = ()) -> Any:
            assert not isinstance(scratch, int)
            values, _, lent, _, _ = arguments
            key, found = workspace.lend(scratch, device, stream, size)
            values[arrays + 1] = found.address
            lent[:] = key, found, stream
            return result

        def put_all_back(arguments: Arguments) -> None:
            workspace.give_back(*arguments[2])
            idle.append(arguments)

        lends = size > 0 and not given
        self.take: Callable[[], Arguments] = idle.pop
        self.put_back: Callable[[Arguments], None] = put_all_back if lends else idle.append
        self.make: Callable[[], Arguments] = functools.partial(
            _arguments, arrays, rows, function, given
        )
        self.prepare = prepare if lends else None
        plain = functools.partial(driver.launchKernel, *fixed)
        self.start: Callable[[int, int, int], None] = together if shape.cooperative else plain

    def __call__(self, arguments: Sequence[int], stream: int) -> None:
        """Launch; the libraries' runs have these lines once more, where a call would take 0.1 us.

        Raises LaunchError if the stream has too few SMs for the kernel; nothing has run then.
        """
        try:
            mine = self.take()
        except IndexError:
            mine = self.make()
        values, addresses, _, _, _ = mine
        for i, address in enumerate(arguments):
            values[i] = address
        if self.prepare is not None:
            self.prepare(mine, stream)
        try:
            self.start(stream, addresses, 0)
        except require_device().cuda.driver.CUDADriverError as error:
            if error.status in DOES_NOT_FIT:
                raise LaunchError(
                    f"the kernel does not fit the SMs of its stream: {error}"
                ) from error
            raise
        self.put_back(mine)


def _arguments(arrays: int, rows: int, function: Any, workspace_address: int) -> Arguments:
    # unsigned long: set 0.01 us quicker each than "Q"
    values = array("L", [*[0] * arrays, rows, workspace_address])
    start = values.buffer_info()[0]
    addresses = array("Q", range(start, start + len(values) * values.itemsize, values.itemsize))
    return values, addresses.buffer_info()[0], [], addresses, function
