"""Global memory that a kernel needs beside its arrays, zero before the launch and left zero by it.

Launches that may run at once must not share it. What is known to run one after the other is one
stream, and in a graph what was captured from one stream: a workspace is lent to a launch for its
stream, by the number that no other stream has, and its capture. A launch that fails or is
interrupted does not give it back, so nobody gets what it may have left.

Memory comes from the library of the arrays. In a capture it belongs to the graph, and is cleared by
every replay: a replay that failed spoils no other.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple, Protocol

from softgen.devices.gpu.device import require_device
from softgen.devices.gpu.driver import capture_id, stream_id
from softgen.errors import CaptureError

# Programs that make streams without end would fill the memory. One that is dropped goes back to the
# pool it came from, which hands it out again for the same stream, behind the launches that use it.
MOST_IDLE = 256

# Device; the stream's number, or its handle in a capture; the capture's number, or 0.
Key = tuple[int, int, int]

_idle: dict[Key, Workspace] = {}
_lock = threading.Lock()


class Allocator(Protocol):
    """What a workspace needs of an array library (see `Library` in call/library.py)."""

    mallocs_in_capture: bool

    def scratch(self, size: int, device: int, stream: int) -> tuple[Any, int]:
        """Return `size` bytes for work on the stream: what keeps them, and the address."""


class DriverMemory:
    """Memory of the driver's own, for launches whose arrays are of no library.

    It is freed by cudaFree, which waits for the device.
    """

    mallocs_in_capture = True

    def scratch(self, size: int, device: int, stream: int) -> tuple[Any, int]:
        """Return `size` bytes: what keeps them, and the address."""
        memory = require_device().cuda.Memory(size)
        return memory, int(memory.ptr)


class Workspace(NamedTuple):
    """Zeroed memory.

    Attributes:
        address: on the device.
        size: in bytes.
        owner: keeps the memory; None for memory of one launch in a graph.
    """

    address: int
    size: int
    owner: Any


def lend(allocator: Allocator, device: int, stream: int, size: int) -> tuple[Key, Workspace]:
    """Return at least `size` zero bytes for the next launch on `stream`, a handle.

    Whoever has launched hands them to `give_back`.
    """
    capture = capture_id(stream)
    # A stream that is captured may not be asked for its number. Its handle is as good meanwhile.
    key = (device, stream if capture else stream_id(stream), capture)
    if capture and allocator.mallocs_in_capture:
        return key, _of_graph(stream, size)
    with _lock:
        found = _idle.pop(key, None)
    if found is not None and found.size >= size:
        return key, found
    return key, _allocate(allocator, device, stream, size)


def give_back(key: Key, workspace: Workspace, stream: int) -> None:
    """Take back what `lend` returned, after a launch on `stream` that may still run."""
    if workspace.owner is None:
        require_device().cuda.runtime.freeAsync(workspace.address, stream)
        return
    with _lock:
        if key[2]:
            for other in [k for k in _idle if k[:2] == key[:2] and k[2] not in (0, key[2])]:
                del _idle[other]  # of a capture that has ended: the memory stays with its graph
        while len(_idle) >= MOST_IDLE:
            del _idle[next(iter(_idle))]
        _idle[key] = workspace


def _allocate(allocator: Allocator, device: int, stream: int, size: int) -> Workspace:
    whole = 1 << (size - 1).bit_length()  # so that a few more rows find room
    owner, address = allocator.scratch(whole, device, stream)
    require_device().cuda.runtime.memsetAsync(address, 0, whole, stream)
    return Workspace(address, whole, owner)


def _of_graph(stream: int, size: int) -> Workspace:
    """Return memory that the graph being captured allocates, clears and frees in every replay."""
    runtime = require_device().cuda.runtime
    try:
        address = int(runtime.mallocAsync(size, stream))
        runtime.memsetAsync(address, 0, size, stream)
    except runtime.CUDARuntimeError as error:
        raise CaptureError(
            f"the kernel needs {size} bytes of workspace, which this device cannot allocate in a "
            f"graph ({error}); capture with PyTorch, or choose variant='online'"
        ) from error
    return Workspace(address, size, None)
