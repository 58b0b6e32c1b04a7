"""CuPy arrays, and the code of a warm call on one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from softgen.call.axes import is_plain
from softgen.call.warm_run import (
    ALIGNMENT_MASK,
    LAST_LEGACY_STREAM,
    Find,
    Full,
    Run,
    known,
    look_up,
    never,
)
from softgen.devices.gpu.device import require_device
from softgen.devices.gpu.driver import on_device
from softgen.spec.dtypes import DType, ElementType, Float8, FloatType, Integer
from softgen.spec.storage import numpy_dtype

# Their names
_INTEGERS = frozenset(each.value for each in Integer)


class CupyLibrary:
    """CuPy arrays."""

    mallocs_in_capture = True

    def __init__(self) -> None:
        self.cupy = require_device()
        self.array_type = self.cupy.ndarray
        self._current_stream = self.cupy.cuda.get_current_stream
        self.address: Callable[[Any], int] = operator.attrgetter("data.ptr")

    def pointer(self, x: Any) -> int:
        """Return the device address of the first element."""
        return int(x.data.ptr)

    def dtype(self, x: Any) -> DType:
        """Return the element type; InvalidTypeError if softgen does not compute it."""
        return DType.of(x.dtype.name)

    def element_type(self, x: Any) -> ElementType:
        """Return the element type, also of integers and booleans; InvalidTypeError for others."""
        name = x.dtype.name
        return Integer(name) if name in _INTEGERS else DType.of(name)

    def holds_float8(self, x: Any, dtype: Float8) -> bool:
        """Whether x has the bits of a type that CuPy does not have."""
        return bool(x.dtype.name == "uint8")

    def device(self, x: Any) -> int:
        """Return the device number."""
        return int(x.device.id)

    def byte_strides(self, x: Any) -> tuple[int, ...]:
        """Return the distance between neighbours along each axis, in bytes."""
        return tuple(x.strides)

    def is_contiguous(self, x: Any) -> bool:
        """Whether the elements are in C order without gaps."""
        return bool(x.flags.c_contiguous)

    def view_key(self, arrays: Sequence[Any]) -> Hashable | None:
        """Return what a launch depends on where an array is not contiguous, or None."""
        kind = self.array_type
        found = [each for each in arrays if type(each) is kind]
        if all(each._c_contiguous for each in found) or not known(arrays, kind):
            return None
        return tuple(
            (
                *(each.shape, each.strides, each.dtype, each.data.device_id),
                each.data.ptr & ALIGNMENT_MASK,
            )
            if type(each) is kind
            else type(each)
            for each in arrays
        )

    def contiguous(self, x: Any) -> Any:
        """Return x, or a C-contiguous copy."""
        # ascontiguousarray would make a 1-d view of a 0-d array.
        return x if self.is_contiguous(x) else self.cupy.ascontiguousarray(x)

    def empty(self, shape: tuple[int, ...], dtype: FloatType, device: int) -> Any:
        """Return an uninitialised C-contiguous array."""
        with on_device(device):
            return self.cupy.empty(shape, numpy_dtype(dtype))

    def copy(self, x: Any) -> Any:
        """Return a C-contiguous copy in memory of its own."""
        return x.copy(order="C")

    def permuted(self, x: Any, order: Sequence[int]) -> Any:
        """Return a view of x with its axes in that order."""
        return x.transpose(order)

    def broadcast(self, x: Any, shape: tuple[int, ...]) -> Any:
        """Return a view of x, broadcast to that shape."""
        return self.cupy.broadcast_to(x, shape)

    def scratch(self, size: int, device: int, stream: int) -> tuple[Any, int]:
        """Return `size` bytes for work on the current stream, which has that handle."""
        with on_device(device):
            memory = self.cupy.empty(size, "uint8")
        return memory, int(memory.data.ptr)

    def assign(self, target: Any, source: Any) -> None:
        """Copy `source` into `target` on the caller's stream."""
        target[...] = source

    def stream(self, device: int) -> int:
        """Return the handle of the caller's current stream on the device."""
        # It belongs to the thread and the device; ptr is that of the per-thread default, if in use.
        pointer: int = self._current_stream(device).ptr
        return pointer

    def warm_run(self, find: Find, full: Full) -> Run:
        """Return the code of a warm call on a cupy.ndarray."""
        return cupy_run(self.array_type, self._current_stream, find, full)

    def result_maker(self, shape: tuple[int, ...], dtype: FloatType) -> tuple[Any, Any]:
        """Return what a run makes results with, an element type, and the dtype."""
        element = numpy_dtype(dtype)
        # CuPy looks up NumPy's own scalar types in a dict, 0.15 us quicker than their dtypes.
        return (element if dtype is DType.BFLOAT16 else element.type), element

    def maker(self, shape: tuple[int, ...], dtype: FloatType) -> Callable[[], Any]:
        """Return what makes an uninitialised array on the current device."""
        kind, scalar = self.array_type, self.result_maker(shape, dtype)[0]
        new = _new_of(kind)

        def make() -> Any:
            made = new(kind)
            made._init(shape, scalar, None, None, None)
            return made

        return make

    def fill(self, x: Any, value: float) -> None:
        """Set every element on the caller's stream."""
        x.fill(value)

    def alike(self, x: Any) -> Callable[[Any], bool]:
        """Return `never`: CuPy has no such comparison."""
        return never

    def like(self, x: Any) -> Callable[[Any], bool]:
        """Return what tells whether anything is a contiguous array of x's shape, dtype, device."""
        kind, shape, element, device = self.array_type, x.shape, x.dtype, x.data.device_id

        def check(other: Any) -> bool:
            return (
                type(other) is kind
                and other.shape == shape
                and other.dtype is element
                and other.data.device_id == device
                and other._c_contiguous
            )

        return check


def _new_of(kind: Any) -> Any:
    """Return what makes an array without memory, for `_init`.

    cupy.ndarray's own __new__, which hands its arguments on for the sake of subclasses, takes 0.6
    us more.
    """
    return kind.__mro__[1].__new__


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
    new = _new_of(kind)
    look = look_up
    # The key of the last request, and the entry.
    nothing: tuple[Any, ...] = (None,) * 12
    last = nothing

    def run(
        x: Any,
        out: Any,
        axis: Any,
        dtype: Any,
        tune: Any,
        variant: Any,
        batch_invariant: Any,
        rest: Any = (),
    ) -> Any:
        nonlocal last
        memory, shape, key = x.data, x.shape, None
        x_pointer, device = memory.ptr, memory.device_id
        if out is None:
            y_pointer, alignments = 0, x_pointer & ALIGNMENT_MASK
        elif type(out) is kind and out.data.device_id == device:
            y_pointer = out.data.ptr
            alignments = 16 + (x_pointer & 15) * 16 + (y_pointer & 15)
        else:
            return full(x, out, axis, dtype, tune, variant, batch_invariant, rest, None)
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
            # True and 1.0 equal the axis 1, and are refused.
            if entry is not None and (type(axis) is int or is_plain(axis)):
                last = (shape, element, device, alignments, *options, entry)
            else:
                entry = None
        if entry is not None and x._c_contiguous:
            (
                context,
                _,
                take,
                put_back,
                make,
                prepare,
                place,
                y_shape,
                scalar,
                wanted,
                _,
                _,
            ) = entry
            if current_context() == context:
                # The stream of the thread and the device; ptr is that of the per-thread default.
                stream, y, fits = current_stream(device).ptr, out, False
                if out is not None:
                    y_dtype, x_bytes, y_bytes = wanted
                    fits = (
                        out.shape == y_shape
                        and out.dtype is y_dtype
                        and out._c_contiguous
                        and (
                            x_pointer + x_bytes <= y_pointer
                            or y_pointer + y_bytes <= x_pointer
                            or (x_pointer == y_pointer and x_bytes == y_bytes and shape == y_shape)
                        )
                    )
                # An allocation may call cudaMalloc, which breaks a capture.
                elif stream <= LAST_LEGACY_STREAM or not is_capturing(stream):
                    y = new(kind)
                    # Without "C" to be parsed, and with a scalar type: 0.2 us less.
                    y._init(y_shape, scalar, None, None, None)
                    y_pointer = y.data.ptr
                    fits = not y_pointer & ALIGNMENT_MASK
                if fits:
                    try:
                        mine = take()
                    except IndexError:
                        mine = make()
                    values, go, _, _ = mine
                    values[0] = x_pointer
                    values[place] = y_pointer
                    values[-3] = stream  # launcher.STREAM, whose look would take 0.02 us
                    if prepare is not None:
                        y = prepare(mine, stream, y, rest)
                        if y is None:  # other inputs: the next call asks by its key
                            last = nothing
                            return full(
                                x, out, axis, dtype, tune, variant, batch_invariant, rest, key
                            )
                    if go():  # the driver refused; the full path finds out why
                        return full(x, out, axis, dtype, tune, variant, batch_invariant, rest, key)
                    put_back(mine)
                    return y
        return full(x, out, axis, dtype, tune, variant, batch_invariant, rest, key)

    return run
