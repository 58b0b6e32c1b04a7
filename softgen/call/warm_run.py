"""The code of a warm call, once for each array library.

A run puts everything that may decide how a request is computed into one flat key (nested tuples
take 0.08 us more, an Enum in them 0.15), and launches what the full path found out under it. A
request like the last one needs no key, whose hash takes 0.1 us. What a run touches are local and
cell variables: a method of softgen's own would take 0.05 to 0.1 us a call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import Any

from softgen.device import require_device

# run(x, out, axis, dtype, tune, variant, batch_invariant) returns the result.
Run = Callable[..., Any]
# full(x, out, axis, dtype, tune, variant, batch_invariant, key) returns it by the full path. The
# key is None if the request cannot be kept.
Full = Callable[..., Any]
# The context of the device, which the calling thread must have current (one that has not used the
# device yet has none), and its number; the parts of a Launcher; what makes a result; its dtype; the
# sizes of x and of the result in bytes; whether an array is like this x, if the library tells.
Entry = tuple[int, int, Any, Any, Any, Any, Any, Any, Any, int, int, Callable[[Any], bool]]
Find = Callable[[Hashable], Entry | None]

# What os.environ.get reads; it decodes at each look, 0.9 us, and this dict takes 0.03.
look_up: Callable[[bytes], bytes | None] = vars(os.environ)["_data"].get

# Pointers are told apart up to the widest access of a thread.
ALIGNMENT_MASK = 15
# The null stream and its other name cannot be captured.
LAST_LEGACY_STREAM = 1


def never(x: Any) -> bool:
    """Tell of no array that it is like another, where a library does not."""
    return False


def is_captured(stream: int) -> bool:
    """Whether the stream of that handle is being captured into a CUDA graph."""
    return bool(require_device().cuda.runtime.streamIsCapturing(stream))


def cupy_run(kind: Any, current_stream: Callable[[int], Any], find: Find, full: Full) -> Run:
    """Return the run for CuPy arrays.

    Args:
        kind: cupy.ndarray.
        current_stream: returns the calling thread's stream on a device.
        find: returns what is known of a key. What makes a result is the element type.
        full: the full path.
    """
    cuda = require_device().cuda
    current_context, is_capturing = cuda.driver.ctxGetCurrent, cuda.runtime.streamIsCapturing
    refused = cuda.driver.CUDADriverError
    # cupy.ndarray's own __new__, which hands its arguments on for the sake of subclasses, takes
    # 0.6 us more.
    new: Any = kind.__mro__[1].__new__
    look = look_up
    # The key of the last request, and the entry.
    last: tuple[Any, ...] = (None,) * 12

    def run(
        x: Any,
        out: Any,
        axis: Any,
        dtype: Any,
        tune: Any,
        variant: Any,
        batch_invariant: Any,
    ) -> Any:
        nonlocal last
        memory, shape, key = x.data, x.shape, None
        x_pointer, device = memory.ptr, memory.device_id
        if out is None:
            y_pointer, alignments = 0, x_pointer & ALIGNMENT_MASK
        elif type(out) is kind and out.shape == shape and out.data.device_id == device:
            y_pointer = out.data.ptr
            alignments = 16 + (x_pointer & 15) * 16 + (y_pointer & 15)
        else:
            return full(x, out, axis, dtype, tune, variant, batch_invariant, None)
        element, mode, invariant = x.dtype, look(b"SOFTGEN_TUNE"), look(b"SOFTGEN_BATCH_INVARIANT")
        (
            was_shape,
            was_element,
            was_device,
            was_alignments,
            was_axis,
            was_dtype,
            was_tune,
            was_variant,
            was_batch_invariant,
            was_mode,
            was_invariant,
            entry,
        ) = last
        if not (
            shape == was_shape
            and element is was_element
            and device == was_device
            and alignments == was_alignments
            and axis is was_axis
            and dtype is was_dtype
            and tune is was_tune
            and variant is was_variant
            and batch_invariant is was_batch_invariant
            and mode is was_mode
            and invariant is was_invariant
        ):
            options = (axis, dtype, tune, variant, batch_invariant, mode, invariant)
            key = (shape, element, device, alignments, *options)
            try:
                entry = find(key)
            except TypeError:  # an option that has no hash
                entry = key = None
            if entry is not None:
                last = (shape, element, device, alignments, *options, entry)
        # True and 1.0 equal the axis 1, and are refused.
        if entry is not None and x._c_contiguous and type(axis) is int:
            (
                context,
                _,
                take,
                put_back,
                make,
                prepare,
                start,
                scalar,
                y_dtype,
                x_bytes,
                y_bytes,
                _,
            ) = entry
            if current_context() == context:
                # The stream of the thread and the device; ptr is that of the per-thread default.
                stream, y, fits = current_stream(device).ptr, out, False
                if out is not None:
                    fits = (
                        out.dtype is y_dtype
                        and out._c_contiguous
                        and (
                            x_pointer + x_bytes <= y_pointer
                            or y_pointer + y_bytes <= x_pointer
                            or (x_pointer == y_pointer and x_bytes == y_bytes)
                        )
                    )
                # An allocation may call cudaMalloc, which breaks a capture.
                elif stream <= LAST_LEGACY_STREAM or not is_capturing(stream):
                    y = new(kind)
                    # Without "C" to be parsed, and with a scalar type: 0.2 us less.
                    y._init(shape, scalar, None, None, None)
                    y_pointer = y.data.ptr
                    fits = not y_pointer & ALIGNMENT_MASK
                if fits:
                    try:
                        mine = take()
                    except IndexError:
                        mine = make()
                    values, addresses, _, _, _ = mine
                    values[0] = x_pointer
                    values[1] = y_pointer
                    if prepare is not None:
                        prepare(mine, stream)
                    try:
                        start(stream, addresses, 0)
                    except refused:  # the full path finds out why
                        return full(x, out, axis, dtype, tune, variant, batch_invariant, key)
                    put_back(mine)
                    return y
        return full(x, out, axis, dtype, tune, variant, batch_invariant, key)

    return run


def torch_run(kind: Any, current_stream: Callable[[int], int], find: Find, full: Full) -> Run:
    """Return the run for PyTorch tensors.

    Args:
        kind: torch.Tensor.
        current_stream: returns the handle of the calling thread's stream on a device.
        find: returns what is known of a key. What makes a result is a call that allocates it.
        full: the full path.
    """
    driver = require_device().cuda.driver
    current_context, refused = driver.ctxGetCurrent, driver.CUDADriverError
    look = look_up
    # The last request: whether a tensor is like its x, the rest of its key, and the entry.
    last: tuple[Any, ...] = (never, *(None,) * 9)

    def run(
        x: Any,
        out: Any,
        axis: Any,
        dtype: Any,
        tune: Any,
        variant: Any,
        batch_invariant: Any,
    ) -> Any:
        nonlocal last
        (
            alike,
            was_alignments,
            was_axis,
            was_dtype,
            was_tune,
            was_variant,
            was_batch_invariant,
            was_mode,
            was_invariant,
            entry,
        ) = last
        mode, invariant = look(b"SOFTGEN_TUNE"), look(b"SOFTGEN_BATCH_INVARIANT")
        key = None
        try:
            x_pointer = x.data_ptr()
            if out is None:
                y_pointer, alignments = 0, x_pointer & ALIGNMENT_MASK
            elif type(out) is kind and out.shape == x.shape and out.get_device() == x.get_device():
                y_pointer = out.data_ptr()
                alignments = 16 + (x_pointer & 15) * 16 + (y_pointer & 15)
            else:
                raise TypeError("an out for the full path to check")
            if not (
                alike(x)
                and alignments == was_alignments
                and axis is was_axis
                and dtype is was_dtype
                and tune is was_tune
                and variant is was_variant
                and batch_invariant is was_batch_invariant
                and mode is was_mode
                and invariant is was_invariant
            ):
                request = (alignments, axis, dtype, tune, variant, batch_invariant, mode, invariant)
                key = (x.shape, x.dtype, x.get_device(), *request)
                entry = find(key)
                # Where gradients are off at the moment the full path takes one that wants some.
                if entry is not None and x.is_contiguous() and not x.requires_grad:
                    last = (entry[-1], *request, entry)
                else:
                    entry = None
        except (TypeError, RuntimeError):  # also: an option without a hash, a tensor without memory
            entry = key = None
        # True and 1.0 equal the axis 1, and are refused.
        if entry is not None and type(axis) is int:
            (
                context,
                device,
                take,
                put_back,
                make,
                prepare,
                start,
                allocate,
                y_dtype,
                x_bytes,
                y_bytes,
                _,
            ) = entry
            if current_context() == context:
                stream, y = current_stream(device), out
                if out is None:
                    y = allocate()
                    y_pointer = y.data_ptr()
                    fits = not y_pointer & ALIGNMENT_MASK
                else:
                    fits = (
                        out.dtype is y_dtype
                        and out.is_contiguous()
                        and (
                            x_pointer + x_bytes <= y_pointer
                            or y_pointer + y_bytes <= x_pointer
                            or (x_pointer == y_pointer and x_bytes == y_bytes)
                        )
                    )
                if fits:
                    try:
                        mine = take()
                    except IndexError:
                        mine = make()
                    values, addresses, _, _, _ = mine
                    values[0] = x_pointer
                    values[1] = y_pointer
                    if prepare is not None:
                        prepare(mine, stream)
                    try:
                        start(stream, addresses, 0)
                    except refused:  # the full path finds out why
                        return full(x, out, axis, dtype, tune, variant, batch_invariant, key)
                    put_back(mine)
                    return y
        return full(x, out, axis, dtype, tune, variant, batch_invariant, key)

    return run
