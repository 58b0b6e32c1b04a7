"""Which loaded kernel a call runs: chosen, tuned and compiled once, and kept."""

from __future__ import annotations

import dataclasses
import itertools
import time
from typing import TYPE_CHECKING, Any

from softgen.call.library import Library
from softgen.devices.gpu.compile import compile_source
from softgen.devices.gpu.device import arch_of, require_device
from softgen.devices.gpu.kernel import LoadedKernel
from softgen.devices.gpu.launcher import Launcher
from softgen.errors import (
    CaptureError,
    CompileError,
    IllegalVariantError,
    InvalidValueError,
    LaunchError,
)
from softgen.problems.layouts import Strided
from softgen.problems.problem import Problem, rows_bucket
from softgen.source.store import source_of
from softgen.strategies.variants import Variant
from softgen.tuning.policy import NOMINAL_ROWS, choose, choose_invariant, debugging, others, tell

if TYPE_CHECKING:
    from softgen.strategies.select import Choice

# The mode of a call that asks for batch invariance, beside those of policy.MODES.
INVARIANT = "invariant"

# A guess that spills gives way to the next, so many times.
MOST_GUESSES = 8

_kernels: dict[tuple[Any, ...], LoadedKernel] = {}
# What runs where the kernel of that name did not fit the SMs of a stream, on the device.
_for_fewer: dict[tuple[str, int], LoadedKernel] = {}


def kernel_for(
    problem: Problem,
    rows: int,
    device: int,
    mode: str,
    choice: Choice,
    library: Library | None = None,
) -> LoadedKernel:
    """Return the compiled kernel for a request; choosing, tuning and compiling happen once."""
    if mode == INVARIANT:
        rows = NOMINAL_ROWS
    bucket = rows_bucket(rows) if choice is None else rows  # OneFlow's choice asks if rows are even
    key = (problem, bucket, device, mode, choice)
    kernel = _kernels.get(key)
    if kernel is not None and mode != "force":
        return kernel
    if library is not None and is_captured(library.stream(device)):
        raise CaptureError(
            f"{problem.label} for {rows} rows is not loaded, and nothing may be tuned or loaded "
            "while a stream is captured; call it once before the capture with the same shape, "
            "dtype and alignment"
        )
    debug, start = debugging(), time.perf_counter()
    if choice is not None:
        from softgen.strategies.select import select  # 5 ms: every strategy

        kernel = compile_source(source_of(select(problem, rows, arch_of(device), choice)))
        origin = "asked for"
    else:
        chosen = (
            choose_invariant(problem, device)
            if mode == INVARIANT
            else choose(problem, rows, device, mode)
        )
        kernel = _compiled(chosen.variant, rows, device)
        origin = chosen.origin
        if kernel.variant != chosen.variant:
            origin += f", in place of {chosen.variant.strategy.label}, which spills or does not fit"
    _kernels[key] = kernel
    if debug:
        tell(kernel.variant, rows, arch_of(device).device, origin, start)
    return kernel


def serves_views(
    problem: Problem, rows: int, device: int, mode: str, choice: Choice, library: Library
) -> bool:
    """Whether a request for views gets what a caller of contiguous rows would; else it is copied.

    That is the kernel of the caller's choice, or with batch invariance the bits of the kernel that
    contiguous rows have: one of the same setting.
    """
    if not isinstance(problem.layout, Strided):
        return True
    if choice is not None:
        from softgen.strategies.select import select

        try:
            select(problem, rows, arch_of(device), choice)
        except (IllegalVariantError, InvalidValueError):
            return False
    elif mode == INVARIANT:
        contiguous = dataclasses.replace(problem, layout=problem.layout.like)
        both = [kernel_for(p, rows, device, mode, None, library) for p in (problem, contiguous)]
        return both[0].variant.strategy == both[1].variant.strategy
    return True


def is_captured(stream: int) -> bool:
    """Whether the stream of that handle is being captured into a CUDA graph."""
    return bool(require_device().cuda.runtime.streamIsCapturing(stream))


def _compiled(variant: Variant, rows: int, device: int) -> LoadedKernel:
    """Return the kernel of `variant`, or of the next one if it does not fit the device or spills.

    Where all that are tried spill it is the first.
    """
    first: LoadedKernel | None = None
    refusal: CompileError | None = None
    tried = itertools.chain([variant], others(variant, rows, device))
    for guess in itertools.islice(tried, MOST_GUESSES):
        try:
            kernel = compile_source(source_of(guess))
        except CompileError as error:
            refusal = refusal or error
            continue
        if not kernel.local_bytes:
            return kernel
        first = first or kernel
    if first is not None:
        return first
    assert refusal is not None
    raise refusal


def launch_on_fewer(
    kernel: LoadedKernel,
    rows: int,
    stream: int,
    library: Library,
    choice: Choice,
    error: LaunchError,
    *,
    pdl: bool,
) -> Launcher:
    """Return a launch for a stream with too few SMs for `kernel`: its own cut, or another's.

    Raises LaunchError if the caller asked for that kernel, and it cannot be cut.
    """
    start = time.perf_counter()
    key = (kernel.variant.name, kernel.device)
    for known in (kernel, _for_fewer.get(key)):
        launch = known.fitting_launcher(rows, stream, library, pdl=pdl) if known else None
        if launch is not None:
            return launch
    if choice is not None:
        raise LaunchError(
            f"{kernel.variant.name} needs more SMs at once than its stream has ({error}); without "
            "variant= softgen takes one that fits"
        ) from error
    refused = {_group(kernel.variant)}
    for variant in others(kernel.variant, rows, kernel.device):
        if _group(variant) in refused:
            continue
        other = compile_source(source_of(variant))
        launch = other.fitting_launcher(rows, stream, library, pdl=pdl)
        if launch is not None and not other.local_bytes:
            _for_fewer[key] = other
            if debugging():
                origin = f"the stream has too few SMs for {kernel.variant.strategy.label}"
                tell(variant, rows, arch_of(kernel.device).device, origin, start)
            return launch
        refused.add(_group(variant))
    raise error


def _group(variant: Variant) -> tuple[bool, int]:
    """Return how many blocks have to be resident together, and whether not just as a cluster."""
    launch = variant.launch
    return launch.cooperative, launch.blocks_per_row if launch.cooperative else launch.cluster_size
