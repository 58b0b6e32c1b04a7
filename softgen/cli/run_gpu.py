"""The part of `softgen run` that needs a GPU: the autotuned call, and its device time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from softgen.spec.problem import Problem
from softgen.strategies.variants import Variant

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from softgen.source.render import Source
    from softgen.spec.arch import Arch

TIMING_SECONDS = 0.1


@dataclass(frozen=True)
class GpuRun:
    """Results from the GPU.

    Attributes:
        results: in storage form and operands' order.
        variant: what the tuner, or the caller, chose.
        arch: the GPU.
        microseconds: median device time of a launch, input not in L2.
    """

    results: tuple[NDArray[Any], ...]
    variant: Variant
    arch: Arch
    microseconds: float


def run_on_gpu(
    problem: Problem,
    inputs: Sequence[NDArray[Any]],
    choice: Variant | str | None,
    text: Source | None = None,
) -> GpuRun:
    """Compute host arrays in storage form, in operands' order, on the current GPU.

    `text` is one that was edited, of the variant `choice`.
    """
    from softgen.call.plan import plan
    from softgen.devices.gpu.compile import compile_source
    from softgen.devices.gpu.device import current_arch
    from softgen.tuning.entry import Timing
    from softgen.tuning.measure import Buffers, Stopwatch
    from softgen.verify.gpu import run_on_storage

    arch = current_arch()
    rows = inputs[0].shape[0]
    kernel = plan(
        problem.function,
        problem.dtype,
        problem.cols,
        rows=max(1, rows),
        out_dtype=problem.out_dtype,
        alignment=problem.alignment,
        inner=problem.layout.step,
        variant=choice,
        hooks=problem.hooks,
        # Otherwise SOFTGEN_BATCH_INVARIANT says.
        batch_invariant=True if problem.fixed_order else None,
    ).loaded
    if text is not None:
        kernel = compile_source(text)
    results = run_on_storage(kernel, inputs)
    if not rows:
        return GpuRun(results, kernel.variant, arch, 0.0)
    buffers = Buffers.allocate(problem, rows)
    stopwatch = Stopwatch(buffers)
    stopwatch.warm_up(kernel)
    timing = Timing.of(kernel.variant.name, stopwatch.samples(kernel, TIMING_SECONDS))
    # Where memory is short fewer rows were timed; time is proportional to rows when there are many.
    return GpuRun(results, kernel.variant, arch, timing.microseconds * rows / buffers.rows)
