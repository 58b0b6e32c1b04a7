"""PyTorch CUDA tensors, and the code of a warm call on one."""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from softgen.call.axes import is_plain
from softgen.call.warm_run import ALIGNMENT_MASK, Find, Full, Run, known, look_up, never
from softgen.devices.gpu.device import require_device
from softgen.spec.dtypes import DType, ElementType, Float8, FloatType, Integer


class TorchLibrary:
    """PyTorch CUDA tensors."""

    mallocs_in_capture = False

    def __init__(self) -> None:
        self.torch = sys.modules["torch"]
        self.array_type = self.torch.Tensor
        self.address: Callable[[Any], int] = operator.methodcaller("data_ptr")
        # torch.cuda.current_stream() makes an object, 4.4 us; this takes 0.1. Triton and
        # torch.compile get their streams from it too.
        self.current_stream: Callable[[int], int] = self.torch._C._cuda_getCurrentRawStream
        self._is_grad_enabled = self.torch.is_grad_enabled
        self._dtypes = {
            self.torch.float16: DType.FLOAT16,
            self.torch.bfloat16: DType.BFLOAT16,
            self.torch.float32: DType.FLOAT32,
            self.torch.float64: DType.FLOAT64,
        }
        self._integers = {
            self.torch.bool: Integer.BOOL,
            self.torch.int32: Integer.INT32,
            self.torch.int64: Integer.INT64,
        }
        both: dict[Any, ElementType] = {**self._dtypes, **self._integers}
        self._torch_dtypes = {mine: theirs for theirs, mine in both.items()}
        self._torch_dtypes |= {kind: getattr(self.torch, kind.value, None) for kind in Float8}

    def pointer(self, x: Any) -> int:
        """Return the device address of the first element."""
        return int(x.data_ptr())

    def dtype(self, x: Any) -> DType:
        """Return the element type; InvalidTypeError if softgen does not compute it."""
        found = self._dtypes.get(x.dtype)
        return found if found is not None else DType.of(x.dtype)

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

    def view_key(self, arrays: Sequence[Any]) -> Hashable | None:
        """Return what a launch depends on where a tensor is not contiguous, or None."""
        kind = self.array_type
        found = [each for each in arrays if type(each) is kind]
        if all(each.is_contiguous() for each in found) or not known(arrays, kind):
            return None
        if self._is_grad_enabled() and any(each.requires_grad for each in found):
            return None
        try:
            return tuple(
                (
                    *(each.shape, each.stride(), each.dtype, each.get_device()),
                    each.data_ptr() & ALIGNMENT_MASK,
                )
                if type(each) is kind
                else type(each)
                for each in arrays
            )
        except RuntimeError:  # a tensor without memory
            return None

    def contiguous(self, x: Any) -> Any:
        """Return x, or a C-contiguous copy."""
        return x.contiguous()

    def empty(self, shape: tuple[int, ...], dtype: FloatType, device: int) -> Any:
        """Return an uninitialised C-contiguous array."""
        return self.torch.empty(
            shape, dtype=self._torch_dtypes[dtype], device=self.torch.device("cuda", device)
        )

    def copy(self, x: Any) -> Any:
        """Return a C-contiguous copy in memory of its own."""
        return x.clone(memory_format=self.torch.contiguous_format)

    def permuted(self, x: Any, order: Sequence[int]) -> Any:
        """Return a view of x with its axes in that order."""
        return x.permute(*order)

    def broadcast(self, x: Any, shape: tuple[int, ...]) -> Any:
        """Return a view of x, broadcast to that shape."""
        return x.expand(shape)

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
        handle: int = self.current_stream(device)
        return handle

    def warm_run(self, find: Find, full: Full) -> Run:
        """Return the code of a warm call on a torch.Tensor."""
        return torch_run(self.array_type, self.current_stream, self._is_grad_enabled, find, full)

    def result_maker(self, shape: tuple[int, ...], dtype: FloatType) -> tuple[Any, Any]:
        """Return what a run makes results with, a call on the current device, and the dtype."""
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        element = self._torch_dtypes[dtype]
        # What the code of torch.compile allocates with: past the dispatcher, 1 us less.
        direct = getattr(self.torch._C._dynamo.guards, "_empty_strided_cuda", None)
        if direct is not None:
            return functools.partial(direct, shape, strides, element), element
        return functools.partial(self.torch.empty, shape, dtype=element, device="cuda"), element

    def maker(self, shape: tuple[int, ...], dtype: FloatType) -> Callable[[], Any]:
        """Return what makes an uninitialised tensor on the current device."""
        make: Callable[[], Any] = self.result_maker(shape, dtype)[0]
        return make

    def fill(self, x: Any, value: float) -> None:
        """Set every element on the caller's stream."""
        x.fill_(value)

    def guard(self, *tensors: Any) -> Callable[..., bool]:
        """Return the comparison that guards what torch.compile made; 0.3 us less than to ask.

        It takes as many tensors, and is about the class, shape, strides, dtype and device of each,
        whether it requires grad, and how the thread dispatches (autocast, transforms), but not
        about the mode of grad. `never` where this version of PyTorch has none.
        """
        try:
            guard = self.torch._C._dynamo.guards.TensorGuards(
                *tensors,
                dynamic_dims_sizes=[list(each.shape) for each in tensors],
                dynamic_dims_strides=[list(each.stride()) for each in tensors],
            )
            check: Callable[..., bool] = guard.check
            return check if check(*tensors) else never
        except (AttributeError, TypeError, RuntimeError):  # not there in this version, or other
            return never

    def alike(self, x: Any) -> Callable[[Any], bool]:
        """Return the comparison by `guard`, and whether nobody tracks the tensor."""
        check = self.guard(x)
        if check is never or not x.requires_grad:
            return check
        is_grad_enabled = self._is_grad_enabled

        def untracked(other: Any) -> bool:
            return check(other) and not is_grad_enabled()

        return untracked

    def like(self, x: Any) -> Callable[[Any], bool]:
        """Return what tells whether anything is a contiguous tensor of x's shape, dtype, device."""
        check = self.alike(x)
        if check is not never:
            return check
        kind, shape, element, device = self.array_type, x.shape, x.dtype, x.get_device()
        is_grad_enabled = self._is_grad_enabled

        def slow_check(other: Any) -> bool:
            return (
                type(other) is kind
                and other.shape == shape
                and other.dtype is element
                and other.get_device() == device
                and other.is_contiguous()
                and not (other.requires_grad and is_grad_enabled())
            )

        return slow_check


def torch_run(
    kind: Any,
    current_stream: Callable[[int], int],
    is_grad_enabled: Callable[[], bool],
    find: Find,
    full: Full,
) -> Run:
    """Return the run for PyTorch tensors.

    Args:
        kind: torch.Tensor.
        current_stream: returns the handle of the calling thread's stream on a device.
        is_grad_enabled: whether what is computed of a tensor that requires grad is tracked, which
            the full path refuses.
        find: returns what is known of a key. What makes a result is a call that allocates it.
        full: the full path.
    """
    driver = require_device().cuda.driver
    current_context = driver.ctxGetCurrent
    look = look_up
    # The last request: whether a tensor is like its x, the rest of its key, and the entry.
    nothing: tuple[Any, ...] = (never, *(None,) * 9)
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
            elif type(out) is kind and out.get_device() == x.get_device():
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
                key = (x.shape, x.dtype, x.get_device(), x.requires_grad, *request)
                entry = find(key)
                # True and 1.0 equal the axis 1, and are refused.
                if (
                    entry is not None
                    and x.is_contiguous()
                    and not (x.requires_grad and is_grad_enabled())
                    and (type(axis) is int or is_plain(axis))
                ):
                    last = (entry[-1], *request, entry)
                else:
                    entry = None
        except (TypeError, RuntimeError):  # also: an option without a hash, a tensor without memory
            entry = key = None
        if entry is not None:
            (
                context,
                device,
                take,
                put_back,
                make,
                prepare,
                place,
                y_shape,
                allocate,
                wanted,
                _,
                _,
            ) = entry
            if current_context() == context:
                stream, y = current_stream(device), out
                if out is None:
                    y = allocate()
                    y_pointer = y.data_ptr()
                    fits = not y_pointer & ALIGNMENT_MASK
                else:
                    y_dtype, x_bytes, y_bytes = wanted
                    fits = (
                        out.shape == y_shape
                        and out.dtype is y_dtype
                        and out.is_contiguous()
                        and (
                            x_pointer + x_bytes <= y_pointer
                            or y_pointer + y_bytes <= x_pointer
                            or (
                                x_pointer == y_pointer and x_bytes == y_bytes and x.shape == y_shape
                            )
                        )
                    )
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
