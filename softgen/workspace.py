"""Global memory that a kernel needs beside its arrays: one zeroed buffer per device and stream.

Kernels leave it zero, so that it is cleared once, when it is allocated. It grows by powers of two,
and what it outgrows is kept: a captured graph may hold its address.
"""

from __future__ import annotations

import threading
from typing import Any

from softgen.device import require_device
from softgen.errors import CaptureError

_buffers: dict[tuple[int, int], list[Any]] = {}
_lock = threading.Lock()


def workspace(device: int, stream: int, size: int) -> int:
    """Return the address of at least `size` zero bytes for kernels of `stream`, a handle.

    Raises CaptureError if that needs an allocation while the stream is captured.
    """
    buffers = _buffers.get((device, stream))
    if buffers is None or buffers[-1].nbytes < size:
        with _lock:
            buffers = _buffers.get((device, stream), [])
            if not buffers or buffers[-1].nbytes < size:
                buffers = [*buffers, _allocate(stream, size)]
                _buffers[device, stream] = buffers
    return int(buffers[-1].data.ptr)


def _allocate(stream: int, size: int) -> Any:
    cupy = require_device()
    if cupy.cuda.runtime.streamIsCapturing(stream):
        raise CaptureError(
            f"the kernel needs a workspace of {size} bytes, and nothing may be allocated while a "
            "stream is captured; call it once before the capture, on the same stream and shape"
        )
    buffer = cupy.empty(1 << (size - 1).bit_length(), "uint8")
    cupy.cuda.runtime.memsetAsync(buffer.data.ptr, 0, buffer.nbytes, stream)
    return buffer
