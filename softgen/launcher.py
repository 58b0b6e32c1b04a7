"""A kernel on a fixed number of rows, ready to go: only two addresses and the stream are open."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable
from typing import Any

from softgen.device import require_device
from softgen.strategies import Launch
from softgen.workspace import workspace

# The values x, y, rows and workspace (not every kernel takes one); where their addresses are; what
# has to live as long: the array that holds those, and the kernel's module.
Arguments = tuple["array[int]", int, "array[int]", Any]


class Launcher:
    """launch(x, y, stream) on device addresses and a stream's handle, unchecked.

    It goes through the driver's own binding; the context of the kernel must be current.
    cuLaunchKernel takes the addresses of the arguments, so that a launch rewrites two numbers in
    memory: 0.25 us of Python in all, where CuPy's Function, which makes objects of the arguments,
    takes 1.7.

    Attributes:
        take: returns arguments that no launch uses, or raises IndexError. The launch releases the
            GIL before the driver has read them; taken out of a list meanwhile (one step, which no
            thread can interrupt), they are this call's own.
        put_back: takes them back.
        make: returns new ones.
        prepare: prepare(values, stream) puts the workspace's address among the values, or None.
        start: start(stream, addresses, 0) launches.
    """

    __slots__ = ("make", "prepare", "put_back", "start", "take")

    def __init__(self, function: Any, shape: Launch, rows: int, device: int) -> None:
        driver = require_device().cuda.driver
        grid, block = (shape.grid(rows), 1, 1), (shape.block_size, 1, 1)
        fixed = (function.ptr, *grid, *block, shape.dynamic_shared_bytes)
        workspace_bytes = shape.workspace_bytes(rows)

        def prepare(values: array[int], stream: int) -> None:
            values[3] = workspace(device, stream, workspace_bytes)

        def together(stream: int, addresses: int, _: int) -> None:
            driver.launchCooperativeKernel(*fixed, stream, addresses)

        idle: list[Arguments] = []
        self.take: Callable[[], Arguments] = idle.pop
        self.put_back: Callable[[Arguments], None] = idle.append
        self.make: Callable[[], Arguments] = functools.partial(_arguments, rows, function)
        self.prepare = prepare if workspace_bytes else None
        plain = functools.partial(driver.launchKernel, *fixed)
        self.start: Callable[[int, int, int], None] = together if shape.cooperative else plain

    def __call__(self, x: int, y: int, stream: int) -> None:
        """Launch; warm_run has these lines once more, where a call would take 0.1 us."""
        try:
            mine = self.take()
        except IndexError:
            mine = self.make()
        values, addresses, _, _ = mine
        values[0] = x
        values[1] = y
        if self.prepare is not None:
            self.prepare(values, stream)
        self.start(stream, addresses, 0)
        self.put_back(mine)


def _arguments(rows: int, function: Any) -> Arguments:
    values = array("L", [0, 0, rows, 0])  # unsigned long: set 0.01 us quicker each than "Q"
    start = values.buffer_info()[0]
    addresses = array("Q", range(start, start + 4 * values.itemsize, values.itemsize))
    return values, addresses.buffer_info()[0], addresses, function
