"""Arrays of CuPy and PyTorch behind one small interface: pointer, shape, dtype, device, stream."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from softgen.call.cupy_library import CupyLibrary
from softgen.call.torch_library import TorchLibrary
from softgen.call.warm_run import Find, Full, Run
from softgen.devices.gpu.device import require_device
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.spec.dtypes import MAX_PACK_BYTES, DType, ElementType, Float8, FloatType
from softgen.spec.operands import Extent, Operand

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

    @property
    def address(self) -> Callable[[Any], int]:
        """What returns the device address of the first element, without a frame of Python."""

    def dtype(self, x: Any) -> DType:
        """Return the element type; InvalidTypeError if softgen does not compute it."""

    def element_type(self, x: Any) -> ElementType:
        """Return the element type, also of integers and booleans; InvalidTypeError for others."""

    def holds_float8(self, x: Any, dtype: Float8) -> bool:
        """Whether results of that type can be written to x."""

    def device(self, x: Any) -> int:
        """Return the device number."""

    def byte_strides(self, x: Any) -> tuple[int, ...]:
        """Return the distance between neighbours along each axis, in bytes."""

    def is_contiguous(self, x: Any) -> bool:
        """Whether the elements are in C order without gaps."""

    def view_key(self, arrays: Sequence[Any]) -> Hashable | None:
        """Return all that a launch depends on of its arrays but their addresses, or None.

        None if all are contiguous, and for what only the full path takes. What is no array, such as
        None and numbers, does not count.
        """

    def contiguous(self, x: Any) -> Any:
        """Return x, or a C-contiguous copy."""

    def empty(self, shape: tuple[int, ...], dtype: FloatType, device: int) -> Any:
        """Return an uninitialised C-contiguous array."""

    def copy(self, x: Any) -> Any:
        """Return a C-contiguous copy in memory of its own."""

    def permuted(self, x: Any, order: Sequence[int]) -> Any:
        """Return a view of x with its axes in that order."""

    def broadcast(self, x: Any, shape: tuple[int, ...]) -> Any:
        """Return a view of x, broadcast to that shape."""

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

    def result_maker(self, shape: tuple[int, ...], dtype: FloatType) -> tuple[Any, Any]:
        """Return what a run makes results of that shape with, and their dtype."""

    def maker(self, shape: tuple[int, ...], dtype: FloatType) -> Callable[[], Any]:
        """Return what makes an uninitialised array on the current device."""

    def fill(self, x: Any, value: float) -> None:
        """Set every element on the caller's stream."""

    def alike(self, x: Any) -> Callable[[Any], bool]:
        """Return what tells whether an array is one for which the same launch is right.

        It compares shape, strides, dtype, device and gradient, in less time than to ask for them.
        """

    def like(self, x: Any) -> Callable[[Any], bool]:
        """Return what tells whether anything is an array of x's kind: a launch may take it for x.

        x is contiguous, and so has the other to be. Unlike `alike` it always tells.
        """


@functools.cache
def _cupy_library() -> CupyLibrary:
    """Return CuPy, whose arrays the protocols become too."""
    return CupyLibrary()


@functools.cache
def _torch_library() -> TorchLibrary:
    require_device()  # launches go through CuPy also for tensors
    return TorchLibrary()


def library_of(x: Any) -> tuple[Library, Any]:
    """Return the library of `x`, and x or (for the protocols) a CuPy array over its memory.

    Raises InvalidTypeError for anything that is not on a GPU, and what `require_launchable` does.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        from softgen.call.eager import require_launchable  # which imports PyTorch

        require_launchable(x)
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
    natural: int,
    operands: Sequence[Operand],
    words: Sequence[int],
    strides: Sequence[Sequence[int]] = (),
) -> int:
    """Return the alignment in elements, at most `natural`, that all rows have.

    Those of operands with an element a column count: their base pointers, and where rows do not
    follow each other the strides of each, in elements. Of a number the word is no pointer.

    Raises InvalidValueError if a pointer is not even a multiple of its element size.
    """
    alignment = natural
    steps = iter(strides)
    for operand, pointer in zip(operands, words, strict=True):
        if operand.extent is Extent.NUMBER:
            continue
        size = operand.dtype.itemsize
        if pointer % size:
            raise InvalidValueError(
                "an array starts at an address that is no multiple of its element size; copy it "
                "first"
            )
        if operand.extent is Extent.ELEMENT:
            starts = (pointer, *(step * size for step in next(steps, ())))
            while alignment > 1 and any(
                start % min(MAX_PACK_BYTES, alignment * size) for start in starts
            ):
                alignment //= 2
    return alignment
