"""CuPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from softgen.call.code import Code
from softgen.devices.gpu.device import require_device
from softgen.devices.gpu.driver import on_device
from softgen.problems.dtypes import DType, ElementType, Float8, Integer
from softgen.problems.storage import numpy_dtype

# Their names
_INTEGERS = frozenset(each.value for each in Integer)


class CupyLibrary:
    """CuPy arrays."""

    mallocs_in_capture = True

    def __init__(self) -> None:
        self.cupy = require_device()
        self.array_type = self.cupy.ndarray
        self._current_stream = self.cupy.cuda.get_current_stream
        self.code = Code(
            address="{}.data.ptr",
            facts="{0}.shape, {0}.dtype, {0}.data.device_id, {0}._c_contiguous or {0}.strides",
            served="(out is None or type(out) is kind)",
            beside="type({}) is kind",
            # It belongs to the thread; ptr is that of the per-thread default, if in use.
            stream="current_stream(entry.device).ptr",
            make=(
                "shape, scalar = make_{0}\n"
                "{0} = new(kind)\n"
                "{0}._init(shape, scalar, None, None, None)"
            ),
            written="",
            compares="",
            mallocs_in_capture=True,
            uses={
                "kind": self.array_type,
                "current_stream": self._current_stream,
                # cupy.ndarray's own __new__, which hands its arguments on for the sake of
                # subclasses, takes 0.6 us more.
                "new": self.array_type.__mro__[1].__new__,
            },
        )

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

    def contiguous(self, x: Any) -> Any:
        """Return x, or a C-contiguous copy."""
        # ascontiguousarray would make a 1-d view of a 0-d array.
        return x if self.is_contiguous(x) else self.cupy.ascontiguousarray(x)

    def empty(self, shape: tuple[int, ...], dtype: ElementType, device: int) -> Any:
        """Return an uninitialised C-contiguous array."""
        with on_device(device):
            return self.cupy.empty(shape, numpy_dtype(dtype))

    def copy(self, x: Any) -> Any:
        """Return a C-contiguous copy in memory of its own."""
        return x.copy(order="C")

    def columns(self, cols: int, like: Any) -> Any:
        """Return the numbers 0 to cols - 1, on the device of an array."""
        with on_device(self.device(like)):
            return self.cupy.arange(cols)

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

    def maker(self, shape: tuple[int, ...], dtype: ElementType) -> Any:
        """Return the first two arguments of `_init` for such a result; the others are None."""
        element = numpy_dtype(dtype)
        # CuPy looks up NumPy's own scalar types in a dict, 0.15 us quicker than their dtypes, and
        # parses the order unless it is None.
        return shape, (element if dtype is DType.BFLOAT16 else element.type)

    def made(self, maker: Any) -> Any:
        """Return a new array."""
        array = self.code.uses["new"](self.array_type)
        array._init(*maker, None, None, None)
        return array

    def fill(self, x: Any, value: float) -> None:
        """Set every element on the caller's stream."""
        x.fill(value)

    def written(self, x: Any) -> None:
        """Do nothing: nobody asks."""

    def alike(self, arrays: Sequence[Any]) -> Callable[..., bool]:
        """Return what refuses all: CuPy has no such comparison."""
        return lambda *others: False
