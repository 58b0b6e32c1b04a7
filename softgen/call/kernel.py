"""A compiled variant on one device: what `plan()` returns and `softmax()` keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from softgen.arrays import Library, library_of, usable_alignment
from softgen.device import require_device
from softgen.driver import on_device, resident_clusters
from softgen.errors import InvalidTypeError, InvalidValueError, LaunchError
from softgen.launcher import Launcher
from softgen.outputs import resolve_output
from softgen.problem import natural_alignment
from softgen.render import Source
from softgen.variants import Variant
from softgen.warm import WarmCalls
from softgen.workspace import Allocator, DriverMemory


@dataclass(frozen=True)
class Kernel:
    """A variant compiled and loaded for one device; call it with an array.

    Attributes:
        variant: the problem and the strategy with its knobs.
        source: the emitted text.
        device: number of the device that it is loaded on.
        function: CuPy's handle of the loaded kernel.
        registers: 32-bit registers of a thread.
        local_bytes: local memory of a thread in bytes; above 0, registers were spilled.
    """

    variant: Variant
    source: Source
    device: int
    function: Any
    registers: int
    local_bytes: int
    _warm: WarmCalls = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_warm", WarmCalls(self._full))

    def __call__(self, x: Any, out: Any = None) -> Any:
        """Apply the kernel along the last axis of `x` and return the result.

        Args:
            x: a contiguous array (CuPy, PyTorch or protocol) of the planned dtype, on the planned
                device, whose last axis has the planned width and whose rows are aligned as planned.
            out: the result's array; x itself, or disjoint from it. A new array by default.

        Raises InvalidTypeError or InvalidValueError, before any launch, if x does not fit the plan,
        and LaunchError if the kernel needs more SMs at once than the caller's stream has.
        """
        return self._warm[type(x)](x, out, -1, None, None, None, None)

    def _full(self, x: Any, out: Any, *options_and_key: Any) -> Any:
        library, x = library_of(x)
        self._check(library, x)
        with on_device(self.device):
            return self._on_its_device(library, x, out, options_and_key[-1])

    def _on_its_device(self, library: Library, x: Any, out: Any, key: Hashable) -> Any:
        problem = self.variant.problem
        y = resolve_output(library, x, out, problem.out_dtype)
        if y.size_is_zero:
            return y.result
        natural = natural_alignment(problem.dtype, problem.cols)
        x_pointer, y_pointer = library.pointer(x), library.pointer(y.target)
        alignment = usable_alignment(
            natural, problem.dtype, problem.out_dtype, x_pointer, y_pointer
        )
        if alignment < problem.alignment:
            raise InvalidValueError(
                f"the plan needs rows that start on {problem.alignment} elements; these start on "
                f"{alignment}. Plan with alignment={alignment}, or call "
                f"softgen.{problem.algorithm.value}"
            )
        rows, stream = y.elements // problem.cols, library.stream(self.device)
        launch = self.launcher(rows, library)
        try:
            launch(x_pointer, y_pointer, stream)
        except LaunchError as error:
            fewer = self.fitting_launcher(rows, stream, library)
            if fewer is None:
                raise LaunchError(
                    f"{self.variant.name} needs more SMs at once than its stream has ({error}); "
                    f"call softgen.{problem.algorithm.value}, which then takes another variant"
                ) from error
            fewer(x_pointer, y_pointer, stream)
        else:
            self._warm.remember(key, library, x, out, y, launch)
        return y.finish(library)

    def _check(self, library: Library, x: Any) -> None:
        problem = self.variant.problem
        if library.dtype(x) is not problem.dtype:
            raise InvalidTypeError(
                f"the plan is for {problem.dtype.value}, got {library.dtype(x).value}; plan for "
                "that dtype or cast x"
            )
        if library.device(x) != self.device:
            raise InvalidValueError(
                f"the plan is for device {self.device}, x is on device {library.device(x)}; make a "
                "plan while that device is current"
            )
        cols = x.shape[-1] if x.ndim else 1
        if cols != problem.cols:
            raise InvalidValueError(
                f"the plan is for a last axis of {problem.cols}, got shape {tuple(x.shape)}"
            )
        if not library.is_contiguous(x):
            raise InvalidValueError(
                "a plan takes C-contiguous arrays; make x contiguous, or call "
                f"softgen.{problem.algorithm.value}, which copies when it must"
            )

    def launcher(self, rows: int, scratch: Allocator | int | None = None) -> Launcher:
        """Return the launch on `rows` rows; the device must be current.

        Args:
            rows: number of rows.
            scratch: the library that a workspace comes from, by default the driver; or the address
                of one that is the caller's own, zero, and used by no launch at the same time.
        """
        cuda = require_device().cuda
        if not cuda.driver.ctxGetCurrent():
            cuda.runtime.free(0)  # a new thread; the runtime's first call makes the context current
        where = DriverMemory() if scratch is None else scratch
        return Launcher(self.function, self.variant.launch, rows, self.device, where)

    def fitting_launcher(self, rows: int, stream: int, library: Library) -> Launcher | None:
        """Return the launch for a stream that may have fewer SMs than the device, or None.

        A grid whose blocks have to be resident together is cut to the rows that are at once.
        """
        launch = self.variant.launch
        if launch.cooperative or launch.cluster_size > 1:
            resident = resident_clusters(self.function.ptr, launch, stream)
            at_once = resident // launch.blocks_per_row
            if at_once == 0:
                return None
            if launch.cooperative:
                most = min(launch.most_blocks, at_once * launch.blocks_per_row)
                launch = dataclasses.replace(launch, most_blocks=most)
        return Launcher(self.function, launch, rows, self.device, library)

    def launch(self, x: int, y: int, rows: int, stream: int) -> None:
        """Launch on device addresses and a stream's handle, unchecked; the device is current."""
        self.launcher(rows)(x, y, stream)
