"""Whether a kernel may be launched before the launch before it has ended.

Programmatic dependent launch: a kernel that waits for the launch before it (`griddepcontrol.wait`)
is launched with an attribute. Its blocks are then placed while that one ends, which takes 0.2 to
0.7 us off a launch on an H200, and 0.4 us off the host's part of it. Without the attribute the same
text runs as any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softgen.devices.gpu.device import require_device
from softgen.devices.gpu.driver import capturing_freely
from softgen.errors import LaunchError
from softgen.switches import is_on

if TYPE_CHECKING:
    from softgen.devices.gpu.launcher import Launcher

# By device, and whether the grid is cooperative: the driver was asked once.
_known: dict[tuple[int, bool], bool] = {}


def is_wanted() -> bool:
    """Whether SOFTGEN_PDL lets kernels be launched so; looked at when a shape is first met."""
    return is_on("SOFTGEN_PDL", default=True)


def is_taken(device: int, cooperative: bool, launch: Launcher, operands: int) -> bool:
    """Whether the driver takes such launches, after a kernel, after a memset, and captured.

    Args:
        device: its number; it must be current.
        cooperative: whether the grid is.
        launch: such a launch; it is captured into a graph, which never runs.
        operands: how many it takes.
    """
    key = (device, cooperative)
    if key not in _known:
        try:
            _known[key] = _is_captured(launch, operands)
        except LaunchError:  # too few SMs here, which says nothing of other streams
            return False
    return _known[key]


def _is_captured(launch: Launcher, operands: int) -> bool:
    cuda = require_device().cuda
    refusals: tuple[type[Exception], ...] = (
        cuda.driver.CUDADriverError,
        cuda.runtime.CUDARuntimeError,
    )
    with capturing_freely():
        stream: Any = cuda.Stream(non_blocking=True)
        memory = cuda.Memory(16)
        try:
            stream.begin_capture(cuda.runtime.streamCaptureModeRelaxed)
            try:
                cuda.runtime.memsetAsync(memory.ptr, 0, 16, stream.ptr)
                for _ in range(2):
                    launch([memory.ptr] * operands, stream.ptr)
            finally:
                stream.end_capture()
        except refusals:
            return False
    return True
