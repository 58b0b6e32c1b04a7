"""Autograd of a cross entropy that is one number, without weights: four launches in all.

Those are the losses of rows, their mean, the gradient of each row's loss and dx. What a mean
divides by stays on the GPU. A class is for any shape, so that nothing is learnt of one but how to
know it again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from softgen.call import means
from softgen.call.full import calls_of
from softgen.call.library import library_of
from softgen.call.scalars import finite, whole
from softgen.call.torch_library import TorchLibrary
from softgen.call.warm_run import never
from softgen.spec.dtypes import DType, compute_type
from softgen.torch.dtypes import FLOATS
from softgen.torch.gradients import TRANSFORMING, applied
from softgen.torch.quick import FEW, KINDS, MOST_TRIES, differentiable
from softgen.torch.rows import CrossEntropyBackward

Tensor, is_grad_enabled = torch.Tensor, torch.is_grad_enabled


class Seen:
    """The last few requests, of which a model makes some in turn.

    Attributes:
        last: of the last request, whether tensors are like its logits and targets, ignore_index,
            reduction and z_loss as the caller gave them, and run(logits, targets).
        recent: the last few of them.
    """

    __slots__ = ("last", "recent")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget all of them."""
        self.last: tuple[Any, ...] = (never, None, None, None, None)
        self.recent: tuple[tuple[Any, ...], ...] = ()

    def find(self, x: Any, target: Any, *options: Any) -> Callable[..., Any] | None:
        """Return the run of a request like these, and make it the last; None for a new one."""
        for found in self.recent:
            alike, *was, run = found
            if all(a is b for a, b in zip(options, was, strict=True)) and alike(x, target):
                self.last = found
                return run  # type: ignore[no-any-return]
        return None

    def keep(self, x: Any, target: Any, *rest: Any) -> None:
        """Keep a request that was served; `rest` are its options and its run."""
        library, _ = library_of(x.detach())
        assert isinstance(library, TorchLibrary)
        alike = library.guard(x, target)
        if type(x) in KINDS and type(target) is Tensor and alike is not never:
            self.last = found = (alike, *rest)
            self.recent = (found, *self.recent[: FEW - 1])


def serves(x: Any, target: Any, reduction: str) -> bool:
    """Whether `loss_for` is for such tensors, whose shapes fit, and for the reduction."""
    return (
        reduction != "none"
        and x.numel() > 0
        and target.numel() <= means.MOST_ROWS
        and target.dtype in (torch.int64, torch.int32)
        and x.dtype in FLOATS
        and not torch.compiler.is_compiling()
        and not TRANSFORMING()
    )


def loss_for(
    x: Any, target: Any, ignore_index: Any, reduction: str, z_loss: float, dtype: Any
) -> Callable[[Any, Any], Any]:
    """Return what `loss_of` does for such tensors; raise what softgen.cross_entropy raises."""
    ignored, z_loss = whole("ignore_index", ignore_index), finite("z_loss", z_loss)
    library, _ = library_of(x.detach())
    assert isinstance(library, TorchLibrary)
    types = x.dtype, target.dtype, dtype
    return loss_of(library, types, library.device(x), ignored, reduction, z_loss)


@functools.lru_cache(maxsize=256)
def loss_of(
    library: TorchLibrary,
    types: tuple[Any, Any, Any],
    device: int,
    ignored: int,
    reduction: str,
    z_loss: float,
) -> Callable[[Any, Any], Any]:
    """Return run(x, target), which returns the loss, a tensor of no dimensions, with autograd.

    Args:
        library: of all tensors.
        types: the dtypes of x, of the targets and of the loss.
        device: its number.
        ignored: the target of rows that count for nothing.
        reduction: "mean" or "sum".
        z_loss: the weight of lse^2.
    """
    x_dtype, kind, dtype = types
    suffix = "" if kind is torch.int64 else "_i32"
    calls, gradients = (
        calls_of(f"{n}{suffix}") for n in ("cross_entropy", "cross_entropy_backward")
    )
    of = library, DType.of(dtype), compute_type(DType.of(x_dtype)), device
    reduce, share = means.reducer(*of, mean=reduction == "mean"), means.sharer(*of)
    numbers = ignored, z_loss
    lse_dtype = torch.float64 if x_dtype is torch.float64 else torch.float32
    shared: Callable[..., bool] = never
    tries = 0

    def forward(ctx: Any, x: Any, target: Any) -> Any:
        plain = x if type(x) is Tensor else x.detach()  # of a Parameter no call is warm
        losses, lse = calls[Tensor](plain, None, -1, None, None, None, None, (target, *numbers))
        loss, divisor = reduce(losses, lse, losses.numel())
        if ctx is not None:
            ctx.save_for_backward(x, target, lse, divisor)
        return loss

    def backward(ctx: Any, g: Any) -> Any:
        x, target, lse, divisor = ctx.saved_tensors
        if is_grad_enabled() or TRANSFORMING():
            upstream = (g / divisor).to(lse_dtype)
            run = applied(CrossEntropyBackward, x, upstream)
            return run(x, target, lse, upstream, ignored, 0.0, z_loss), None
        upstream = share(g, divisor) if shared(g, divisor) else otherwise(g, divisor)
        plain = x if type(x) is Tensor else x.detach()
        rest = (target, ignored, lse, upstream, 1, 1, 0.0, z_loss)
        return gradients[Tensor](plain, None, -1, None, None, None, None, rest), None

    def otherwise(g: Any, divisor: Any) -> Any:
        """Divide by PyTorch, and by softgen from then on if they are what it takes."""
        nonlocal shared, tries
        fit = all(
            type(each) is Tensor and not each.dim() and each.get_device() == device
            for each in (g, divisor)
        )
        if fit and g.dtype is dtype and divisor.dtype is lse_dtype and tries < MOST_TRIES:
            tries += 1
            shared = library.guard(g, divisor)
        return (g / divisor).to(lse_dtype)

    apply, _ = differentiable("CrossEntropy", forward, backward)
    untracked = functools.partial(forward, None)

    def run(x: Any, target: Any) -> Any:
        if x.requires_grad and is_grad_enabled():
            return apply(x, target)
        return untracked(x, target)

    return run
