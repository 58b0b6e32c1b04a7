"""PyTorch CUDA tensors."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from softgen.call.code import Code
from softgen.call.eager import guard_of, is_launchable
from softgen.problems.dtypes import DType, ElementType, Float8, Integer


class TorchLibrary:
    """PyTorch CUDA tensors."""

    mallocs_in_capture = False

    def __init__(self) -> None:
        # torch.cuda.current_stream() makes an object, 4.4 us; this takes 0.1. Triton and
        # torch.compile get their streams from it too.
        self.current_stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
        self.code = Code(
            address="{}.data_ptr()",
            facts="{0}.shape, {0}.stride(), {0}.dtype, {0}.get_device()",
            served="is_launchable(out, {})",
            beside="",
            stream="current_stream(entry.device)",
            make="{0} = make_{0}()",
            written="if out is not None:\n    written(out)",
            compares="levels._current_level < 0 and not modes()",
            mallocs_in_capture=False,
            uses={
                "is_launchable": is_launchable,
                "levels": forward_ad,
                "modes": torch._C._len_torch_dispatch_stack,
                "alike": self.alike,
                "current_stream": self.current_stream,
                "written": self.written,
            },
        )
        self._dtypes = {
            torch.float16: DType.FLOAT16,
            torch.bfloat16: DType.BFLOAT16,
            torch.float32: DType.FLOAT32,
            torch.float64: DType.FLOAT64,
        }
        self._integers = {
            torch.bool: Integer.BOOL,
            torch.int32: Integer.INT32,
            torch.int64: Integer.INT64,
        }
        both: dict[Any, ElementType] = {**self._dtypes, **self._integers}
        self._torch_dtypes = {mine: theirs for theirs, mine in both.items()}
        self._torch_dtypes |= {kind: getattr(torch, kind.value, None) for kind in Float8}

    def pointer(self, x: Any) -> int:
        """Return the device address of the first element."""
        return int(x.data_ptr())

    def dtype(self, x: Any) -> DType:
        """Return the element type; InvalidTypeError if softgen does not compute it."""
        found = self._dtypes.get(x.dtype)
        return found if found is not None else DType.of(x.dtype, "x.to(torch.float32)")

    def element_type(self, x: Any) -> ElementType:
        """Return the element type, also of integers and booleans; InvalidTypeError for others."""
        found = self._integers.get(x.dtype)
        return found if found is not None else self.dtype(x)

    def holds_float8(self, x: Any, dtype: Float8) -> bool:
        """Whether x is of that type."""
        return x.dtype is self._torch_dtypes.get(dtype)

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

    def empty(self, shape: tuple[int, ...], dtype: ElementType, device: int) -> Any:
        """Return an uninitialised C-contiguous array."""
        return torch.empty(
            shape, dtype=self._torch_dtypes[dtype], device=torch.device("cuda", device)
        )

    def copy(self, x: Any) -> Any:
        """Return a C-contiguous copy in memory of its own."""
        return x.clone(memory_format=torch.contiguous_format)

    def columns(self, cols: int, like: Any) -> Any:
        """Return the numbers 0 to cols - 1, on the device of an array."""
        return torch.arange(cols, device=like.device)

    def permuted(self, x: Any, order: Sequence[int]) -> Any:
        """Return a view of x with its axes in that order."""
        return x.permute(*order)

    def broadcast(self, x: Any, shape: tuple[int, ...]) -> Any:
        """Return a view of x, broadcast to that shape."""
        return x.expand(shape)

    def scratch(self, size: int, device: int, stream: int) -> tuple[Any, int]:
        """Return `size` bytes for work on the current stream, which has that handle."""
        memory = torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", device))
        return memory, int(memory.data_ptr())

    def assign(self, target: Any, source: Any) -> None:
        """Copy `source` into `target` on the caller's stream."""
        target.copy_(source)

    def stream(self, device: int) -> int:
        """Return the handle of the caller's current stream on the device."""
        handle: int = self.current_stream(device)
        return handle

    def maker(self, shape: tuple[int, ...], dtype: ElementType) -> Callable[[], Any]:
        """Return what makes an uninitialised tensor on the current device."""
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        element = self._torch_dtypes[dtype]
        # What the code of torch.compile allocates with: past the dispatcher, 1 us less.
        direct = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
        if direct is not None:
            return functools.partial(direct, shape, strides, element)
        return functools.partial(torch.empty, shape, dtype=element, device="cuda")

    def made(self, maker: Any) -> Any:
        """Return a new tensor."""
        return maker()

    def fill(self, x: Any, value: float) -> None:
        """Set every element on the caller's stream."""
        x.fill_(value)

    def written(self, x: Any) -> None:
        """Let autograd know that the tensor has other values than those it may have saved."""
        if not x.is_inference():  # of which nobody saves any
            torch.autograd.graph.increment_version(x)

    def alike(self, arrays: Sequence[Any]) -> Callable[..., bool]:
        """Return what guards code of torch.compile, and whether gradients are recorded.

        `Code.compares` asks beside it what a guard does not know: forward-mode AD, and modes.
        """
        check = guard_of(*arrays)
        if not any(each.requires_grad for each in arrays):
            return check
        return lambda *others: check(*others) and not torch.is_grad_enabled()
