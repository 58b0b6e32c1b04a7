"""The calls people make: softmax and log_softmax of an array, and plan for launching many times."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable
from typing import Any

import numpy as np

from softgen.call.kernel import Kernel
from softgen.call.library import Library, library_of, usable_alignment
from softgen.call.outputs import Output, resolve_output
from softgen.call.warm import WarmCalls
from softgen.call.warm_run import is_captured
from softgen.devices.gpu.compile import compile_source
from softgen.devices.gpu.device import arch_of, require_device
from softgen.devices.gpu.driver import on_device
from softgen.devices.gpu.kernel import LoadedKernel
from softgen.devices.gpu.launcher import Launcher
from softgen.errors import (
    CaptureError,
    CompileError,
    InvalidValueError,
    LaunchError,
    NotSupportedError,
)
from softgen.source.store import source_of
from softgen.spec.problem import (
    Algorithm,
    DType,
    Problem,
    natural_alignment,
    rows_bucket,
    whole_number,
)
from softgen.strategies.select import Choice, select
from softgen.strategies.variants import Variant
from softgen.tuning.policy import (
    NOMINAL_ROWS,
    batch_invariant_default,
    choose,
    choose_invariant,
    others,
    tune_mode,
)

# The mode of a call that asks for batch invariance, beside those of policy.MODES.
INVARIANT = "invariant"

# A guess that spills gives way to the next, so many times.
MOST_GUESSES = 8

_kernels: dict[tuple[Any, ...], LoadedKernel] = {}
# What runs where the kernel of that name did not fit the SMs of a stream, on the device.
_for_fewer: dict[tuple[str, int], LoadedKernel] = {}


def softmax(
    x: Any,
    axis: int = -1,
    *,
    dtype: object = None,
    out: Any = None,
    tune: str | None = None,
    variant: Choice = None,
    batch_invariant: bool | None = None,
    dim: int | None = None,
) -> Any:
    """Return exp(x - max) / sum(exp(x - max)) along `axis`, on the GPU that holds `x`.

    Args:
        x: CuPy array, PyTorch CUDA tensor, or any object with `__cuda_array_interface__` or
            `__dlpack__` on a GPU; float16, bfloat16, float32 or float64, any shape. One that is not
            C-contiguous costs a copy.
        axis: the last axis, as -1 or its number.
        dtype: dtype of the result; x's by default. Arithmetic is in float32, or float64 if either
            dtype is.
        out: where to write: x itself, or another array of the result's shape, dtype and device.
        tune: "on" times the candidates at the first call for a shape for which no winner is stored
            or comes with softgen, stores the winner on disk and is fast ever after; "cached" uses
            such a winner, else the best guess; "off" the best guess; "force" times again. By
            default SOFTGEN_TUNE, else "on".
        variant: skip the choice: a strategy's name ("warp"), "oneflow", a step of the ladder
            ("naive"), a setting ("online_p4_u2_b128"), a variant's name, a Strategy or a Variant.
        batch_invariant: if True a row's result has the same bits in any batch and anywhere in
            memory, on any GPU of one model: nothing is tuned, and rows that start off the boundary
            their width gives them cost a copy. By default SOFTGEN_BATCH_INVARIANT, else False.
        dim: PyTorch's name of `axis`; give one of them.

    Returns:
        An array of x's library (CuPy for the protocols), of x's shape, on the caller's stream.

    Raises, before any launch:
        InvalidTypeError (a TypeError): not a GPU array, or a dtype that is not a float of 16 to 64
            bits. numpy.exceptions.AxisError: no such axis. InvalidValueError (a ValueError): out or
            an option does not fit. NotSupportedError (a NotImplementedError): another axis than the
            last, or a tensor that requires grad. CaptureError: inside CUDA graph capture, where
            nothing may be tuned or loaded, and CuPy may not allocate a result. LaunchError:
            `variant` names a kernel that needs more SMs at once than the caller's stream has.

    NaN or +inf anywhere in a row, or a row of nothing but -inf, gives a row of NaN; -inf gives 0.
    """
    which = axis if dim is None else _axis_of(axis, dim)
    return _softmax[type(x)](x, out, which, dtype, tune, variant, batch_invariant)


def log_softmax(
    x: Any,
    axis: int = -1,
    *,
    dtype: object = None,
    out: Any = None,
    tune: str | None = None,
    variant: Choice = None,
    batch_invariant: bool | None = None,
    dim: int | None = None,
) -> Any:
    """Return (x - max) - log(sum(exp(x - max))) along `axis`; everything else is as in `softmax`.

    -inf gives -inf where the rest of the row is finite.
    """
    which = axis if dim is None else _axis_of(axis, dim)
    return _log_softmax[type(x)](x, out, which, dtype, tune, variant, batch_invariant)


def _axis_of(axis: int, dim: int) -> int:
    """Return `dim`, which a caller gave in place of `axis`."""
    if axis != -1 and axis != dim:
        raise InvalidValueError(f"axis={axis!r} and dim={dim!r} differ; give one of them")
    return dim


def plan(
    algorithm: Algorithm | str,
    dtype: object,
    cols: int,
    *,
    rows: int | None = None,
    out_dtype: object = None,
    alignment: int | None = None,
    tune: str | None = None,
    variant: Choice = None,
    batch_invariant: bool | None = None,
) -> Kernel:
    """Choose and compile once for the current device, and return the kernel to launch many times.

    Args:
        algorithm: "softmax" or "log_softmax".
        dtype: of the input, as a name or a NumPy / PyTorch dtype.
        cols: elements in a row.
        rows: the number of rows to choose for (any number can be launched); 4096 by default.
        out_dtype: of the result; `dtype` by default.
        alignment: rows start on a multiple of this many elements; by default what `cols` gives for
            arrays as they are allocated, 1 for any.
        tune: as in `softmax`.
        variant: as in `softmax`.
        batch_invariant: as in `softmax`; `rows` and `tune` then move nothing.

    Returns:
        A Kernel: `kernel(x)` or `kernel(x, out)`; it has `.variant`, `.source` and `.registers`.
    """
    invariant = batch_invariant_default() if batch_invariant is None else batch_invariant
    problem = Problem.of(
        algorithm, dtype, cols, out_dtype=out_dtype, alignment=alignment, fixed_order=invariant
    )
    nominal = NOMINAL_ROWS if rows is None else whole_number("rows", rows)
    if nominal < 1:
        raise InvalidValueError(f"rows must be at least 1, got {rows!r}")
    device = int(require_device().cuda.runtime.getDevice())
    mode = INVARIANT if invariant else tune_mode(tune)
    return Kernel(_kernel(problem, nominal, device, mode, variant))


def _full(
    algorithm: Algorithm,
    x: Any,
    out: Any,
    axis: int,
    dtype: object,
    tune: str | None,
    choice: Choice,
    batch_invariant: bool | None,
    key: Hashable,
) -> Any:
    """Return the result of a call that is not warm, and keep it under `key` for the next."""
    library, x = library_of(x)
    x_type = library.dtype(x)
    y_type = x_type if dtype is None else DType.of(dtype)
    cols = _width_of_last_axis(x, axis)
    mode = tune_mode(tune)
    device = library.device(x)
    invariant = batch_invariant_default() if batch_invariant is None else batch_invariant
    with on_device(device):
        stream = library.stream(device)
        if out is None and library.mallocs_in_capture and is_captured(stream):
            raise CaptureError(
                "a result cannot be allocated while a CuPy stream is captured; pass out="
            )
        y = resolve_output(library, x, out, y_type)
        if y.elements == 0:
            return y.result
        source = library.contiguous(x)
        natural = natural_alignment(x_type, cols)
        alignment = _alignment(library, source, y, natural)
        if invariant and alignment < natural:
            # The kernel of another alignment might sum in another order.
            if library.mallocs_in_capture and is_captured(stream):
                raise CaptureError(
                    f"rows that do not start on {natural} elements are copied for batch_invariant, "
                    "and CuPy cannot allocate the copy while a stream is captured; copy them before"
                )
            source, y, alignment = library.copy(source), y.elsewhere(library), natural
        rows = y.elements // cols
        problem = Problem.of(
            *(algorithm, x_type, cols),
            out_dtype=y_type,
            alignment=alignment,
            fixed_order=invariant,
        )
        kernel = _kernel(problem, rows, device, INVARIANT if invariant else mode, choice, library)
        launch, whole = kernel.launcher(rows, library), True
        x_pointer, y_pointer = library.pointer(source), library.pointer(y.target)
        try:
            launch(x_pointer, y_pointer, stream)
        except LaunchError as error:
            launch, whole = _launch_on_fewer(kernel, rows, stream, library, choice, error), False
            launch(x_pointer, y_pointer, stream)
        if whole and mode != "force" and source is x:
            warm = _softmax if algorithm is Algorithm.SOFTMAX else _log_softmax
            warm.remember(key, library, x, out, y, launch)
        return y.finish(library)


_softmax = WarmCalls(functools.partial(_full, Algorithm.SOFTMAX))
_log_softmax = WarmCalls(functools.partial(_full, Algorithm.LOG_SOFTMAX))


def _width_of_last_axis(x: Any, axis: int) -> int:
    """Return the length of `axis`, which must be the last; a 0-d array is a row of one element."""
    number, ndim = whole_number("axis", axis), max(1, x.ndim)
    if not -ndim <= number < ndim:
        raise np.exceptions.AxisError(number, x.ndim)
    if number % ndim != ndim - 1:
        raise NotSupportedError(
            f"axis {number} of a {x.ndim}-d array: softgen computes along the last axis only so "
            "far. Move it last with moveaxis(x, axis, -1) and move the result back"
        )
    return int(x.shape[-1]) if x.ndim else 1


def _alignment(library: Library, source: Any, y: Output, natural: int) -> int:
    """Return the alignment in elements, at most `natural`, of the rows of both arrays."""
    return usable_alignment(
        natural,
        library.dtype(source),
        library.dtype(y.target),
        library.pointer(source),
        library.pointer(y.target),
    )


def _kernel(
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
    if choice is not None:
        kernel = compile_source(source_of(select(problem, rows, arch_of(device), choice)))
    elif mode == INVARIANT:
        kernel = _compiled(choose_invariant(problem, device), rows, device)
    else:
        kernel = _compiled(choose(problem, rows, device, mode), rows, device)
    _kernels[key] = kernel
    return kernel


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


def _launch_on_fewer(
    kernel: LoadedKernel,
    rows: int,
    stream: int,
    library: Library,
    choice: Choice,
    error: LaunchError,
) -> Launcher:
    """Return a launch for a stream with too few SMs for `kernel`: its own cut, or another's.

    Raises LaunchError if the caller asked for that kernel, and it cannot be cut.
    """
    key = (kernel.variant.name, kernel.device)
    for known in (kernel, _for_fewer.get(key)):
        launch = known.fitting_launcher(rows, stream, library) if known else None
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
        launch = other.fitting_launcher(rows, stream, library)
        if launch is not None and not other.local_bytes:
            _for_fewer[key] = other
            return launch
        refused.add(_group(variant))
    raise error


def _group(variant: Variant) -> tuple[bool, int]:
    """Return how many blocks have to be resident together, and whether not just as a cluster."""
    launch = variant.launch
    return launch.cooperative, launch.blocks_per_row if launch.cooperative else launch.cluster_size
