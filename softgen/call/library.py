"""Arrays of CuPy and PyTorch behind one small interface: pointer, shape, dtype, device, stream."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from softgen.call.code import Code
from softgen.devices.gpu.device import require_device
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.dtypes import MAX_PACK_BYTES, DType, ElementType, Float8
from softgen.problems.operands import Extent, Operand

ACCEPTED = (
    "a CuPy array, a PyTorch CUDA tensor, or an object with __cuda_array_interface__ or __dlpack__ "
    "on a GPU"
)


class Library(Protocol):
    """What softgen needs of an array library.

    Attributes:
        mallocs_in_capture: whether `empty` may call cudaMalloc while a stream is captured, which
            breaks the capture. PyTorch takes memory from a pool of the graph's own instead.
        code: how a generated run asks for what it needs.
    """

    mallocs_in_capture: bool
    code: Code

    def pointer(self, x: Any) -> int:
        """Return the device address of the first element."""

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

    def contiguous(self, x: Any) -> Any:
        """Return x, or a C-contiguous copy."""

    def empty(self, shape: tuple[int, ...], dtype: ElementType, device: int) -> Any:
        """Return an uninitialised C-contiguous array."""

    def copy(self, x: Any) -> Any:
        """Return a C-contiguous copy in memory of its own."""

    def columns(self, cols: int, like: Any) -> Any:
        """Return the numbers 0 to cols - 1, on the device of an array."""

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

    def maker(self, shape: tuple[int, ...], dtype: ElementType) -> Any:
        """Return what `Code.make` makes an uninitialised array with, on the current device."""

    def made(self, maker: Any) -> Any:
        """Return what `Code.make` makes with it."""

    def fill(self, x: Any, value: float) -> None:
        """Set every element on the caller's stream."""

    def written(self, x: Any) -> None:
        """Say that a kernel has written to the caller's array."""

    def alike(self, arrays: Sequence[Any]) -> Callable[..., bool]:
        """Return what tells whether arrays are like these, in less time than to ask for facts.

        They are of the same class, shape, strides, dtype and device, and a launch may take them.
        """


@functools.cache
def _cupy_library() -> Any:
    """Return CuPy, whose arrays the protocols become too."""
    from softgen.call.cupy_library import CupyLibrary

    return CupyLibrary()


@functools.cache
def _torch_library() -> Library:
    from softgen.call.torch_library import TorchLibrary  # which imports PyTorch

    require_device()  # launches go through CuPy also for tensors
    return TorchLibrary()


def own_library_of(x: Any) -> Library | None:
    """Return the library whose own class of arrays x is of, if a kernel may be launched on it."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and isinstance(x, torch.Tensor):
        from softgen.call.eager import is_eager

        return _torch_library() if is_eager(x) else None
    return _cupy_library() if cupy is not None and type(x) is cupy.ndarray else None


def library_of(x: Any, name: str = "") -> tuple[Library, Any]:
    """Return the library of `x`, and x or (for the protocols) a CuPy array over its memory.

    Raises InvalidTypeError for anything that is not on a GPU, and what `require_launchable` does,
    by the name of an argument beside the first.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        from softgen.call.eager import require_launchable  # which imports PyTorch

        require_launchable(x, name)
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
    moved = f"Move it with cupy.asarray({name or 'x'})"
    hint = moved if hasattr(x, "__array__") else "Make a CuPy array of it"
    raise InvalidTypeError(
        f"got {kind.__module__}.{kind.__qualname__}{f' as {name}' if name else ''}; softgen takes "
        f"{ACCEPTED}. {hint}"
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
