"""The part of `softgen run` that needs a GPU: the autotuned call, and its device time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from softgen.spec.problem import Problem
from softgen.strategies.variants import Variant

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from softgen.spec.arch import Arch

TIMING_SECONDS = 0.1


@dataclass(frozen=True)
class GpuRun:
    """A result from the GPU.

    Attributes:
        y: the result in storage form, of x's shape.
        variant: what the tuner, or the caller, chose.
        arch: the GPU.
        microseconds: median device time of a launch, input not in L2.
    """

    y: NDArray[Any]
    variant: Variant
    arch: Arch
    microseconds: float


def run_on_gpu(problem: Problem, x: NDArray[Any], choice: Variant | str | None) -> GpuRun:
    """Compute `x`, a host array in storage form of shape (rows, cols), on the current GPU."""
    import cupy

    from softgen.call.api import plan
    from softgen.devices.gpu.device import current_arch
    from softgen.spec.numerics import numpy_dtype
    from softgen.tuning.measure import Buffers, Stopwatch, summarize

    arch = current_arch()
    kernel = plan(
        problem.algorithm,
        problem.dtype,
        problem.cols,
        rows=max(1, x.shape[0]),
        out_dtype=problem.out_dtype,
        alignment=problem.alignment,
        variant=choice,
        # Otherwise SOFTGEN_BATCH_INVARIANT says.
        batch_invariant=True if problem.fixed_order else None,
    )
    y = cupy.asnumpy(kernel(cupy.asarray(x.view(numpy_dtype(problem.dtype)))))
    if not x.size:
        return GpuRun(y.view(_storage_type(y)), kernel.variant, arch, 0.0)
    buffers = Buffers.allocate(problem, x.shape[0])
    stopwatch = Stopwatch(buffers)
    stopwatch.warm_up(kernel.loaded)
    timing = summarize(kernel.loaded, stopwatch.samples(kernel.loaded, TIMING_SECONDS))
    # Where memory is short fewer rows were timed; time is proportional to rows when there are many.
    microseconds = timing.microseconds * x.shape[0] / buffers.rows
    return GpuRun(y.view(_storage_type(y)), kernel.variant, arch, microseconds)


def _storage_type(y: NDArray[Any]) -> Any:
    """Return the dtype that the CPU side reads: bfloat16 travels as its bits."""
    return "uint16" if y.dtype.name == "bfloat16" else y.dtype
