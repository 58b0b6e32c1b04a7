"""Warm calls: a request that was seen before goes from its arrays to the driver, past all checks.

The full path checks a request, chooses, compiles and launches; what it found out is kept under
everything that it depended on. The next call like it builds the same key, which is about 1 us of
Python beside the allocation and the launch.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

from softgen.call.library import Library, library_of
from softgen.call.outputs import Output
from softgen.call.warm_run import ALIGNMENT_MASK, Entry, Full, Run
from softgen.devices.gpu.device import require_device
from softgen.devices.gpu.launcher import Launcher

# Programs whose shapes never repeat would fill the memory; starting afresh costs 50 us a shape.
MOST_CALLS = 4096


class WarmCalls(dict[type, Run]):
    """The requests that were seen before, at most MOST_CALLS: a run for each type of array.

    `calls[type(x)](x, out, axis, dtype, tune, variant, batch_invariant)` returns the result, warm
    or by the full path. Threads need no lock: they find an entry or do not, and entries never
    change.
    """

    def __init__(self, full: Full) -> None:
        super().__init__()
        self.full = full
        self.entries: dict[Hashable, Entry] = {}

    def __missing__(self, kind: type) -> Run:
        return self._first

    def _first(self, x: Any, out: Any, *options: Any) -> Any:
        """Return the result for a type that has no run; a library's own class gets one."""
        library, array = library_of(x)
        if type(x) is not library.array_type:
            return self.full(array, out, *options, None)
        run = self[type(x)] = library.warm_run(self.entries.get, self.full)
        return run(x, out, *options)

    def remember(
        self,
        key: Hashable,
        library: Library,
        x: Any,
        out: Any,
        y: Output,
        launch: Launcher,
    ) -> None:
        """Keep a call that has just been launched; its device is current.

        One that needed a copy of the result, or that allocates where the kernel does not reach,
        is left to the full path.
        """
        if key is None or (out is not None and y.target is not out):
            return
        if out is None and library.pointer(y.target) & ALIGNMENT_MASK:
            return
        dtype, shape = library.dtype(y.target), tuple(y.target.shape)
        if len(self.entries) >= MOST_CALLS:
            self.entries.clear()
        self.entries[key] = Entry(
            require_device().cuda.driver.ctxGetCurrent(),
            library.device(x),
            launch.take,
            launch.put_back,
            launch.make,
            launch.prepare,
            launch.start,
            shape,
            *library.result_maker(shape, dtype),
            math.prod(x.shape) * library.dtype(x).itemsize,
            math.prod(shape) * dtype.itemsize,
            library.alike(x),
        )
