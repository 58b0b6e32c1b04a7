"""A warm call on a tensor that is known to be like the one before: what is left is the launch.

`softgen.torch` has to ask what a tensor is like before autograd begins, and to ask again behind it
would take 0.5 us.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from softgen.call.library import library_of
from softgen.call.torch_library import TorchLibrary
from softgen.call.warm import WarmCalls
from softgen.call.warm_run import ALIGNMENT_MASK, environment, never
from softgen.devices.gpu.device import require_device

Tensor = torch.Tensor


class Again(NamedTuple):
    """A request that was seen before.

    Attributes:
        alike: whether anything is a tensor like that of the request: its class, shape, strides,
            dtype, device, whether it requires grad, and whether autocast was on.
        run: run(context, x) returns the result for such a tensor, while nobody tracks it, and while
            the environment is the same. An autograd context, or None, gets the result to save.
    """

    alike: Callable[[Any], bool]
    run: Callable[..., Any]


NOTHING = Again(never, never)


def again(calls: WarmCalls, x: Any, axis: int, dtype: Any) -> Again:
    """Return a request without options that is warm; NOTHING if it is not, or of a view.

    Args:
        calls: of the function.
        x: a tensor on a GPU, or a Parameter, as the request had it.
        axis: of the request.
        dtype: of the request.
    """
    found = entry_of(calls, x, axis, dtype)
    if found is None:
        return NOTHING
    library, entry = found
    alike = library.guard(x)
    if alike is never:
        return NOTHING
    context, device, take, put_back, make, prepare, place, _, allocate, *_ = entry
    alignment = x.data_ptr() & ALIGNMENT_MASK
    current_stream = library.current_stream
    current_context = require_device().cuda.driver.ctxGetCurrent

    def run(ctx: Any, x: Any) -> Any:
        x_pointer = x.data_ptr()
        if x_pointer & ALIGNMENT_MASK == alignment and current_context() == context:
            y = allocate()
            y_pointer = y.data_ptr()
            if not y_pointer & ALIGNMENT_MASK:
                try:
                    mine = take()
                except IndexError:
                    mine = make()
                values, go, _, _ = mine
                values[0] = x_pointer
                values[place] = y_pointer
                values[-3] = stream = current_stream(device)
                if prepare is not None:
                    y = prepare(mine, stream, y, ())
                if y is not None and not go():
                    put_back(mine)
                    if ctx is not None:
                        ctx.to_save = (y,)  # all that save_for_backward does, 0.15 us
                    return y
        if type(x) is not Tensor:
            x = x.detach()
        y = calls[Tensor](x, None, axis, dtype, None, None, None, ())
        if ctx is not None:
            ctx.save_for_backward(y)
        return y

    return Again(alike, run)


def gradient_again(
    calls: WarmCalls, dy: Any, y: Any, axis: int, dtype: Any, otherwise: Callable[..., Any]
) -> Callable[[Any, Any], Any] | None:
    """Return backward(context, dy) of a request that is warm, as `again` does; None if it is not.

    It runs in a thread of PyTorch's that has just been woken, where nothing is in the caches: a
    frame more, and a comparison for each of the two tensors, take 5 us there.

    Who makes it sees to the environment.

    Args:
        calls: of the gradient.
        dy: the gradient that came.
        y: the result that was saved.
        axis: of the request.
        dtype: of the request.
        otherwise: otherwise(dy, y) returns the gradient for any tensors, in any mode of grad.
    """
    found = entry_of(calls, dy, axis, dtype)
    if found is None or (dy.data_ptr() | y.data_ptr()) & ALIGNMENT_MASK:
        return None
    library, entry = found
    _, device, take, put_back, make, _, place, _, allocate, _, second, _ = entry
    alike = library.guard(dy, y)
    if not second or alike is never:
        return None
    current_stream, is_grad_enabled = library.current_stream, torch.is_grad_enabled

    def backward(ctx: Any, dy: Any) -> Any:
        (y,) = ctx.saved_tensors
        # PyTorch has made the device of dy current.
        if not is_grad_enabled() and alike(dy, y):
            dy_pointer, y_pointer = dy.data_ptr(), y.data_ptr()
            if not (dy_pointer | y_pointer) & ALIGNMENT_MASK:
                dx = allocate()
                dx_pointer = dx.data_ptr()
                if not dx_pointer & ALIGNMENT_MASK:
                    try:
                        mine = take()
                    except IndexError:
                        mine = make()
                    values, go, _, _ = mine
                    values[0] = dy_pointer
                    values[second] = y_pointer
                    values[place] = dx_pointer
                    values[-3] = current_stream(device)
                    if not go():
                        put_back(mine)
                        return dx
        return otherwise(dy, y)

    return backward


def entry_of(
    calls: WarmCalls, x: Any, axis: int, dtype: Any
) -> tuple[TorchLibrary, tuple[Any, ...]] | None:
    """Return the library and the entry of a request; the arguments are those of `again`."""
    if not x.is_contiguous():
        return None
    plain = x.detach()
    asked = x if type(x) is Tensor else plain  # what a Parameter's call was made with
    request = (x.data_ptr() & ALIGNMENT_MASK, axis, dtype, None, None, None, *environment())
    entry = calls.entries.get(
        (asked.shape, asked.dtype, asked.get_device(), asked.requires_grad, *request)
    )
    if entry is None:
        return None
    library, _ = library_of(plain)
    assert isinstance(library, TorchLibrary)
    return library, entry
