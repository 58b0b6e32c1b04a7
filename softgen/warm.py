"""Warm calls: a request that was seen before goes from its arrays to the driver, past all checks.

The full path checks a request, chooses, compiles and launches; what it found out is kept as a
ReadyCall under everything that it depended on. The next call like it builds the same key, which is
about 1 us of Python beside the allocation and the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from softgen.arrays import Library
from softgen.device import require_device
from softgen.launcher import Launcher
from softgen.outputs import Output

# Programs whose shapes never repeat would fill the memory; starting afresh costs 50 us a shape.
MOST_CALLS = 4096
# Pointers are told apart up to the widest access of a thread.
ALIGNMENT_MASK = 15
# The null stream and its other name cannot be captured.
LAST_LEGACY_STREAM = 1

_libraries: dict[type, Library] = {}


class ReadyCall:
    """What a request comes down to once it has been checked.

    Attributes:
        launch: the kernel on the request's rows.
        allocate: returns a new result; the device must be current.
        device: number of the device.
        context: the device's CUDA context, which the calling thread must have current. A thread
            that has not used the device yet has none.
        current_context: returns that of the calling thread, in 0.1 us.
        x_bytes: size of x.
        y_bytes: size of the result.
    """

    __slots__ = (
        "allocate",
        "context",
        "current_context",
        "device",
        "launch",
        "x_bytes",
        "y_bytes",
    )

    def __init__(
        self, launch: Launcher, allocate: Callable[[], Any], device: int, sizes: tuple[int, int]
    ) -> None:
        self.launch = launch
        self.allocate = allocate
        self.device = device
        self.current_context = require_device().cuda.driver.ctxGetCurrent
        self.context = self.current_context()
        self.x_bytes, self.y_bytes = sizes

    def is_clear(self, x: int, y: int) -> bool:
        """Whether the arrays at these addresses are the same or have no byte in common."""
        if x == y:
            return bool(self.x_bytes == self.y_bytes)
        return bool(x + self.x_bytes <= y or y + self.y_bytes <= x)


class WarmCalls:
    """The requests that were seen before, at most MOST_CALLS.

    Threads need no lock: they find an entry or do not, and entries never change.
    """

    def __init__(self) -> None:
        self._calls: dict[Hashable, ReadyCall] = {}

    def run(self, x: Any, out: Any, options: Hashable) -> Any:
        """Return the result, or None if this call has to take the full path.

        Args:
            x: the input, of any type.
            out: the caller's array or None.
            options: whatever else the request depends on.
        """
        library = _libraries.get(type(x))
        if library is None:
            return None
        y_facts = None
        try:
            x_pointer, x_facts = library.facts(x)
            if out is not None:
                if type(out) is not type(x):
                    return None
                y_pointer, y_facts = library.facts(out)
            call = self._calls.get((x_facts, y_facts, options))
        except (TypeError, RuntimeError):  # an option that has no hash, a tensor without memory
            return None
        if call is None or call.current_context() != call.context:
            return None
        stream = library.stream(call.device)
        if out is None:
            # Most calls are on a stream that cannot be captured; asking takes 0.3 us.
            if library.mallocs_in_capture and stream > LAST_LEGACY_STREAM and is_captured(stream):
                return None
            out = call.allocate()
            y_pointer = library.pointer(out)
            if y_pointer & ALIGNMENT_MASK:
                return None
        elif not call.is_clear(x_pointer, y_pointer):
            return None
        call.launch(x_pointer, y_pointer, stream)
        return out

    def remember(
        self, library: Library, x: Any, out: Any, options: Hashable, y: Output, launch: Launcher
    ) -> None:
        """Keep a call that has just been launched; its device is current.

        One that needs a copy of x or of the result, or whose key might mean something else in
        another call, is left to the full path.
        """
        kind = type(x)
        if kind is not library.array_type or not library.is_plain(x):
            return
        if out is None:
            y_facts = None
            if library.pointer(y.target) & ALIGNMENT_MASK:
                return
        else:
            if y.target is not out or type(out) is not kind:
                return
            y_facts = library.facts(out)[1]
        x_facts = library.facts(x)[1]
        dtype = library.dtype(y.target)
        call = ReadyCall(
            launch,
            library.allocator(tuple(x.shape), dtype),
            library.device(x),
            (y.elements * library.dtype(x).itemsize, y.elements * dtype.itemsize),
        )
        if len(self._calls) >= MOST_CALLS:
            self._calls.clear()
        self._calls[x_facts, y_facts, options] = call
        _libraries[kind] = library


def is_captured(stream: int) -> bool:
    """Whether the stream of that handle is being captured into a CUDA graph."""
    return bool(require_device().cuda.runtime.streamIsCapturing(stream))
