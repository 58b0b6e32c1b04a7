"""A compiled variant, loaded on one device: launched on addresses and numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from softgen.devices.gpu import dependent
from softgen.devices.gpu.device import require_device
from softgen.devices.gpu.driver import resident_clusters
from softgen.devices.gpu.launcher import Launcher
from softgen.devices.gpu.workspace import Allocator, DriverMemory
from softgen.errors import StrategyError
from softgen.source.render import Source
from softgen.strategies.launch import Launch
from softgen.strategies.variants import Variant

# The instruction that a kernel must have to be launched before the launch before it has ended.
WAIT = "griddepcontrol.wait"


@dataclass(frozen=True)
class LoadedKernel:
    """A variant compiled and loaded for one device.

    Attributes:
        variant: the problem and the strategy with its knobs.
        source: the emitted text.
        device: number of the device that it is loaded on.
        handle: CuPy's handle of the loaded kernel.
        registers: 32-bit registers of a thread.
        local_bytes: local memory of a thread in bytes; above 0, registers were spilled.
    """

    variant: Variant
    source: Source
    device: int
    handle: Any
    registers: int
    local_bytes: int

    def __post_init__(self) -> None:
        if self.variant.launch.dependent and WAIT not in self.source.text:
            raise StrategyError(
                f"{self.variant.name} is to be launched before the launch before it has ended, and "
                f"its text has no {WAIT}; its template must extend kernel.cu.j2"
            )

    def launcher(
        self,
        rows: int,
        scratch: Allocator | int | None = None,
        *,
        pdl: bool = True,
        fixed: Mapping[int, int] | None = None,
    ) -> Launcher:
        """Return the launch on `rows` rows; the device must be current.

        Args:
            rows: number of rows.
            pdl: whether it may start before the launch before has ended, where the text waits.
            scratch: the library that a workspace comes from, by default the driver; or the address
                of one that is the caller's own, zero, and used by no launch at the same time.
            fixed: words of operands that are the same in every launch (see `Launcher`).
        """
        cuda = require_device().cuda
        if not cuda.driver.ctxGetCurrent():
            cuda.runtime.free(0)  # a new thread; the runtime's first call makes the context current
        where = DriverMemory() if scratch is None else scratch
        return self._launcher(self.variant.launch, rows, where, pdl, fixed)

    def fitting_launcher(
        self, rows: int, stream: int, scratch: Allocator, *, pdl: bool = True
    ) -> Launcher | None:
        """Return the launch for a stream that may have fewer SMs than the device, or None.

        A grid whose blocks have to be resident together is cut to the rows that are at once.
        """
        launch = self.variant.launch
        if launch.cooperative or launch.cluster_size > 1:
            resident = resident_clusters(self.handle.ptr, launch, stream)
            at_once = resident // launch.blocks_per_row
            if at_once == 0:
                return None
            if launch.cooperative:
                most = min(launch.most_blocks, at_once * launch.blocks_per_row)
                launch = dataclasses.replace(launch, most_blocks=most)
        return self._launcher(launch, rows, scratch, pdl)

    def _launcher(
        self,
        launch: Launch,
        rows: int,
        scratch: Allocator | int,
        pdl: bool,
        fixed: Mapping[int, int] | None = None,
    ) -> Launcher:
        if launch.dependent and not (pdl and dependent.is_wanted() and self._may_depend(launch)):
            launch = dataclasses.replace(launch, dependent=False)
        operands = len(self.variant.problem.operands)
        return Launcher(self.handle, operands, launch, rows, self.device, scratch, fixed)

    def _may_depend(self, launch: Launch) -> bool:
        """Whether the driver takes a launch of this kernel before the one before has ended."""
        operands = len(self.variant.problem.operands)
        # Any address will do, the workspace's too: it is never run.
        probe = Launcher(self.handle, operands, launch, 1, self.device, 1)
        return dependent.is_taken(self.device, launch.cooperative, probe, operands)

    def launch(self, arguments: Sequence[int], rows: int, stream: int) -> None:
        """Launch on the operands' words (see `Launcher`) and a stream's handle, unchecked.

        The device must be current.
        """
        self.launcher(rows)(arguments, stream)
