"""Arrays of CuPy and PyTorch behind one small interface: pointer, shape, dtype, device, stream."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any, Protocol

from softgen.device import require_device
from softgen.driver import on_device
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError
from softgen.problem import DType
from softgen.warm_run import Find, Full, Run, cupy_run, never, torch_run

ACCEPTED = (
    "a CuPy array, a PyTorch CUDA tensor, or an object with __cuda_array_interface__ or __dlpack__ "
    "on a GPU"
)


class Library(Protocol):
    """What softgen needs of an array library.

    Attributes:
        mallocs_in_capture: whether `empty` may call cudaMalloc while a stream is captured, which
            breaks the capture. PyTorch takes memory from a pool of the graph's own instead.
        array_type: the library's own class of arrays.
    """

    mallocs_in_capture: bool
    array_type: type

    def pointer(self, x: Any) -> int:
        """Return the device address of the first element."""

    def dtype(self, x: Any) -> DType:
        """Return the element type; InvalidTypeError if softgen does not compute it."""

    def device(self, x: Any) -> int:
        """Return the device number."""

    def byte_strides(self, x: Any) -> tuple[int, ...]:
        """Return the distance between neighbours along each axis, in bytes."""

    def is_contiguous(self, x: Any) -> bool:
        """Whether the elements are in C order without gaps."""

    def contiguous(self, x: Any) -> Any:
        """Return x, or a C-contiguous copy."""

    def empty(self, shape: tuple[int, ...], dtype: DType, device: int) -> Any:
        """Return an uninitialised C-contiguous array."""

    def copy(self, x: Any) -> Any:
        """Return a C-contiguous copy in memory of its own."""

    def assign(self, target: Any, source: Any) -> None:
        """Copy `source` into `target` on the caller's stream."""

    def scratch(self, size: int, device: int, stream: int) -> tuple[Any, int]:
        """Return `size` bytes for work on the stream of that handle, the caller's current one.

        What keeps them, and the address, on a 128-byte boundary. Where `mallocs_in_capture` is
        False they may be asked for in a capture too, and then belong to the graph.
        """

    def stream(self, device: int) -> int:
        """Return the handle of the caller's current stream on the device."""

    def warm_run(self, find: Find, full: Full) -> Run:
        """Return the code of a warm call on an `array_type`."""

    def result_maker(self, shape: tuple[int, ...], dtype: DType) -> tuple[Any, Any]:
        """Return what a run makes results of that shape with, and their dtype."""

    def alike(self, x: Any) -> Callable[[Any], bool]:
        """Return what tells whether an array is one for which the same launch is right.

        It compares shape, strides, dtype, device and gradient, in less time than to ask for them.
        """


class CupyLibrary:
    """CuPy arrays."""

    mallocs_in_capture = True

    def __init__(self) -> None:
        self.cupy = require_device()
        self.array_type = self.cupy.ndarray
        self._current_stream = self.cupy.cuda.get_current_stream

    def pointer(self, x: Any) -> int:
        """Return the device address of the first element."""
        return int(x.data.ptr)

    def dtype(self, x: Any) -> DType:
        """Return the element type; InvalidTypeError if softgen does not compute it."""
        return DType.of(x.dtype.name)

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

    def empty(self, shape: tuple[int, ...], dtype: DType, device: int) -> Any:
        """Return an uninitialised C-contiguous array."""
        with on_device(device):
            return self.cupy.empty(shape, numpy_dtype(dtype))

    def copy(self, x: Any) -> Any:
        """Return a C-contiguous copy in memory of its own."""
        return x.copy(order="C")

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

    def result_maker(self, shape: tuple[int, ...], dtype: DType) -> tuple[Any, Any]:
        """Return what a run makes results with, an element type, and the dtype."""
        element = numpy_dtype(dtype)
        # CuPy looks up NumPy's own scalar types in a dict, 0.15 us quicker than their dtypes.
        return (element if dtype is DType.BFLOAT16 else element.type), element

    def alike(self, x: Any) -> Callable[[Any], bool]:
        """Return `never`: CuPy has no such comparison."""
        return never


class TorchLibrary:
    """PyTorch CUDA tensors."""

    mallocs_in_capture = False

    def __init__(self) -> None:
        self.torch = sys.modules["torch"]
        self.array_type = self.torch.Tensor
        # torch.cuda.current_stream() makes an object, 4.4 us; this takes 0.1. Triton and
        # torch.compile get their streams from it too.
        self._current_stream = self.torch._C._cuda_getCurrentRawStream
        self._dtypes = {
            self.torch.float16: DType.FLOAT16,
            self.torch.bfloat16: DType.BFLOAT16,
            self.torch.float32: DType.FLOAT32,
            self.torch.float64: DType.FLOAT64,
        }
        self._torch_dtypes = {mine: theirs for theirs, mine in self._dtypes.items()}

    def pointer(self, x: Any) -> int:
        """Return the device address of the first element."""
        return int(x.data_ptr())

    def dtype(self, x: Any) -> DType:
        """Return the element type; InvalidTypeError if softgen does not compute it."""
        found = self._dtypes.get(x.dtype)
        return found if found is not None else DType.of(x.dtype)

    def device(self, x: Any) -> int:
        """Return the device number."""
        return int(x.get_device())

    def byte_strides(self, x: Any) -> tuple[int, ...]:
        """Return the distance between neighbours along each axis, in bytes."""
        return tuple(stride * x.element_size() for stride in x.stride())

    def is_contiguous(self, x: Any) -> bool:
        """Whether the elements are in C order without gaps."""
        return bool(x.is_contiguous())

    def contiguous(self, x: Any) -> Any:
        """Return x, or a C-contiguous copy."""
        return x.contiguous()

    def empty(self, shape: tuple[int, ...], dtype: DType, device: int) -> Any:
        """Return an uninitialised C-contiguous array."""
        return self.torch.empty(
            shape, dtype=self._torch_dtypes[dtype], device=self.torch.device("cuda", device)
        )

    def copy(self, x: Any) -> Any:
        """Return a C-contiguous copy in memory of its own."""
        return x.clone(memory_format=self.torch.contiguous_format)

    def scratch(self, size: int, device: int, stream: int) -> tuple[Any, int]:
        """Return `size` bytes for work on the current stream, which has that handle."""
        memory = self.torch.empty(
            size, dtype=self.torch.uint8, device=self.torch.device("cuda", device)
        )
        return memory, int(memory.data_ptr())

    def assign(self, target: Any, source: Any) -> None:
        """Copy `source` into `target` on the caller's stream."""
        target.copy_(source)

    def stream(self, device: int) -> int:
        """Return the handle of the caller's current stream on the device."""
        handle: int = self._current_stream(device)
        return handle

    def warm_run(self, find: Find, full: Full) -> Run:
        """Return the code of a warm call on a torch.Tensor."""
        return torch_run(self.array_type, self._current_stream, find, full)

    def result_maker(self, shape: tuple[int, ...], dtype: DType) -> tuple[Any, Any]:
        """Return what a run makes results with, a call on the current device, and the dtype."""
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        element = self._torch_dtypes[dtype]
        # What the code of torch.compile allocates with: past the dispatcher, 1 us less.
        direct = getattr(self.torch._C._dynamo.guards, "_empty_strided_cuda", None)
        if direct is not None:
            return functools.partial(direct, shape, strides, element), element
        return functools.partial(self.torch.empty, shape, dtype=element, device="cuda"), element

    def alike(self, x: Any) -> Callable[[Any], bool]:
        """Return the comparison that guards what torch.compile made; 0.3 us less than to ask."""
        try:
            guard = self.torch._C._dynamo.guards.TensorGuards(
                x, dynamic_dims_sizes=[list(x.shape)], dynamic_dims_strides=[list(x.stride())]
            )
            check: Callable[[Any], bool] = guard.check
            return check if check(x) else never
        except (AttributeError, TypeError, RuntimeError):  # not there in this version, or other
            return never


@functools.cache
def _cupy_library() -> CupyLibrary:
    """Return CuPy, whose arrays the protocols become too."""
    return CupyLibrary()


@functools.cache
def _torch_library() -> TorchLibrary:
    require_device()  # launches go through CuPy also for tensors
    return TorchLibrary()


def numpy_dtype(dtype: DType) -> Any:
    """Return the NumPy dtype; bfloat16 comes from ml_dtypes, which the cuda extras install."""
    import numpy as np

    if dtype is DType.BFLOAT16:
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype.value)


def library_of(x: Any) -> tuple[Library, Any]:
    """Return the library of `x`, and x or (for the protocols) a CuPy array over its memory.

    Raises InvalidTypeError for anything that is not on a GPU, and NotSupportedError for a tensor
    that asks for a gradient, which softgen would silently drop.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        if not x.is_cuda:
            raise InvalidTypeError(
                f"got a tensor on {x.device}; softgen takes {ACCEPTED}. Move it with x.cuda()"
            )
        if x.requires_grad and torch.is_grad_enabled():
            raise NotSupportedError(
                "got a tensor that requires grad; softgen has no backward yet. Call it under "
                "torch.no_grad(), or pass x.detach()"
            )
        return _torch_library(), x
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        return _cupy_library(), x
    if hasattr(x, "__cuda_array_interface__"):
        library = _cupy_library()
        return library, library.cupy.asarray(x)
    # NumPy arrays have __dlpack__ as well, on device type 1 (the CPU); 2 is CUDA.
    if hasattr(x, "__dlpack_device__") and int(x.__dlpack_device__()[0]) == 2:
        library = _cupy_library()
        return library, library.cupy.from_dlpack(x)
    kind = type(x)
    hint = "Move it with cupy.asarray(x)" if hasattr(x, "__array__") else "Make a CuPy array of it"
    raise InvalidTypeError(
        f"got {kind.__module__}.{kind.__qualname__}; softgen takes {ACCEPTED}. {hint}"
    )


def usable_alignment(
    natural: int, dtype: DType, out_dtype: DType, x_pointer: int, y_pointer: int
) -> int:
    """Return the alignment in elements, at most `natural`, that both base pointers have.

    Raises InvalidValueError if a pointer is not even a multiple of its element size.
    """
    if x_pointer % dtype.itemsize or y_pointer % out_dtype.itemsize:
        raise InvalidValueError(
            "an array starts at an address that is no multiple of its element size; copy it first"
        )
    alignment = natural
    while alignment > 1 and (
        x_pointer % (alignment * dtype.itemsize)
        or y_pointer % min(16, alignment * out_dtype.itemsize)
    ):
        alignment //= 2
    return alignment
