"""A compiled variant on one device: what `plan()` returns and `softmax()` keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.arrays import RawStream, library_of, usable_alignment
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.outputs import resolve_output
from softgen.problem import natural_alignment
from softgen.render import Source
from softgen.variants import Variant
from softgen.workspace import workspace


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

    def __call__(self, x: Any, out: Any = None) -> Any:
        """Apply the kernel along the last axis of `x` and return the result.

        Args:
            x: a contiguous array (CuPy, PyTorch or protocol) of the planned dtype, on the planned
                device, whose last axis has the planned width and whose rows are aligned as planned.
            out: the result's array; x itself, or disjoint from it. A new array by default.

        Raises InvalidTypeError or InvalidValueError, before any launch, if x does not fit the plan.
        """
        problem = self.variant.problem
        library, x = library_of(x)
        self._check(library, x)
        y = resolve_output(library, x, out, problem.out_dtype)
        if y.size_is_zero:
            return y.result
        alignment = usable_alignment(
            natural_alignment(problem.dtype, problem.cols),
            problem.dtype,
            problem.out_dtype,
            library.pointer(x),
            library.pointer(y.target),
        )
        if alignment < problem.alignment:
            raise InvalidValueError(
                f"the plan needs rows that start on {problem.alignment} elements; these start on "
                f"{alignment}. Plan with alignment={alignment}, or call "
                f"softgen.{problem.algorithm.value}"
            )
        rows = y.elements // problem.cols
        self.launch(
            library.pointer(x), library.pointer(y.target), rows, library.stream(self.device)
        )
        return y.finish(library)

    def _check(self, library: Any, x: Any) -> None:
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

    def launch(self, x: int, y: int, rows: int, stream: RawStream) -> None:
        """Launch on device addresses, unchecked; the device must be current."""
        launch = self.variant.launch
        arguments: tuple[int, ...] = (x, y, rows)
        size = launch.workspace_bytes(rows)
        if size:
            arguments += (workspace(self.device, stream, size),)
        self.function(
            (launch.grid(rows),),
            (launch.block_size,),
            arguments,
            launch.dynamic_shared_bytes,
            stream,
            launch.cooperative,
        )
