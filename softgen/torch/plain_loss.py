"""A cross entropy that is one number, without weights: four launches, forward and backward.

Those are the losses of rows, their mean, the gradient of each row's loss, and dx. What a mean
divides by stays on the GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from softgen.call import losses, means
from softgen.call.dispatch import calls_of
from softgen.call.scalars import whole
from softgen.call.torch_library import TorchLibrary
from softgen.call.warm_run import never
from softgen.spec.dtypes import DType, compute_type
from softgen.torch.dtypes import FLOATS
from softgen.torch.gradients import applied
from softgen.torch.plain import is_eager, torch_library_of, tracked
from softgen.torch.quick import MOST_TRIES
from softgen.torch.rows import CrossEntropyBackward

Tensor = torch.Tensor


def serves(x: Any, target: Any, reduction: str) -> bool:
    """Whether `loss_for` is for such tensors, whose shapes fit, and for the reduction."""
    return (
        reduction != "none"
        and x.numel() > 0
        and target.numel() <= means.MOST_ROWS
        and target.dtype in (torch.int64, torch.int32)
        and x.dtype in FLOATS
        and is_eager()
    )


def loss_for(
    x: Any,
    target: Any,
    ignore_index: Any,
    reduction: str,
    smoothing: float,
    z_loss: float,
    dtype: Any,
) -> Callable[[Any, Any], Any]:
    """Return what `loss_of` does for such tensors, with numbers that were checked.

    Raises InvalidTypeError or InvalidValueError for an ignore_index that is none.
    """
    ignored = whole("ignore_index", ignore_index)
    types = x.dtype, target.dtype, dtype
    library, device = torch_library_of(x), x.get_device()
    return loss_of(library, types, device, ignored, reduction, smoothing, z_loss)


@functools.lru_cache(maxsize=256)
def loss_of(
    library: TorchLibrary,
    types: tuple[Any, Any, Any],
    device: int,
    ignored: int,
    reduction: str,
    smoothing: float,
    z_loss: float,
) -> Callable[[Any, Any], Any]:
    """Return run(x, target), which returns the loss, a tensor of no dimensions, with autograd.

    Args:
        library: of all tensors.
        types: the dtypes of x, of the targets and of the loss.
        device: its number.
        ignored: the target of rows that count for nothing.
        reduction: "mean" or "sum".
        smoothing: the label_smoothing, for which PyTorch reads x once more.
        z_loss: the weight of lse^2.
    """
    x_dtype, kind, dtype = types
    suffix = "" if kind is torch.int64 else "_i32"
    calls = calls_of(f"cross_entropy{suffix}")
    calls_back = calls_of(f"cross_entropy_backward{suffix}")
    of = library, DType.of(dtype), compute_type(DType.of(x_dtype)), device
    reduce, share = means.reducer(*of, mean=reduction == "mean"), means.sharer(*of)
    lse_dtype = torch.float64 if x_dtype is torch.float64 else torch.float32
    shared: Callable[..., bool] = never
    tries = 0

    def forward(x: Any, target: Any) -> tuple[Any, Any, Any]:
        if smoothing:
            rows, lse = losses.losses_of_rows(x, target, ignored, smoothing, z_loss)
        else:
            rest = target, ignored, z_loss
            rows, lse = calls[Tensor](x, None, -1, None, None, None, None, rest)
        loss, divisor = reduce(rows, lse, rows.numel())
        return loss, lse, divisor

    def gradient(g: Any, x: Any, target: Any, lse: Any, divisor: Any) -> Any:
        upstream = share(g, divisor) if shared(g, divisor) else divided(g, divisor)
        rest = target, ignored, lse, upstream, 1, 1, smoothing, z_loss
        return calls_back[Tensor](x, None, -1, None, None, None, None, rest)

    def again(g: Any, x: Any, target: Any, lse: Any, divisor: Any) -> Any:
        upstream = (g / divisor).to(lse_dtype)
        run = applied(CrossEntropyBackward, x, upstream)
        return run(x, target, lse, upstream, ignored, smoothing, z_loss)

    def divided(g: Any, divisor: Any) -> Any:
        """Divide by PyTorch; from then on by `share`, if they are what it takes."""
        nonlocal shared, tries
        wanted = (g, dtype), (divisor, lse_dtype)
        fit = all(
            (type(each), each.dtype, each.dim(), each.get_device()) == (Tensor, kind, 0, device)
            for each, kind in wanted
        )
        if fit and tries < MOST_TRIES:
            tries += 1
            shared = library.guard(g, divisor)
        return (g / divisor).to(lse_dtype)

    return tracked("CrossEntropy", forward, gradient, again)
