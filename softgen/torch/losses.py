"""Cross entropy for PyTorch: autograd from lse, and a registered operator for torch.compile."""

from __future__ import annotations

from typing import Any

import torch

from softgen.call import losses
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError
from softgen.spec.functions.cross_entropy import IGNORE_INDEX
from softgen.torch.dtypes import HALVES, wide
from softgen.torch.gradients import Function, applied
from softgen.torch.operators import operator
from softgen.torch.rows import GradientOfRows

Tensor = torch.Tensor


def cross_entropy(
    input: Any,  # the names are torch's
    target: Any,
    weight: Any = None,
    size_average: None = None,
    ignore_index: int = IGNORE_INDEX,
    reduce: None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    z_loss: float = 0.0,
    return_lse: bool = False,
) -> Any:
    """Return the cross entropy of class indices, as torch.nn.functional.cross_entropy does.

    Args:
        input: logits (classes,), (rows, classes) or (rows, classes, d...), of which the last are
            copied to have the classes last; float16, bfloat16, float32 or float64.
        target: the classes, int64 or int32, of input's shape without the dimension of classes.
        weight: as in PyTorch, of any float dtype, without a gradient; not with label_smoothing or
            z_loss.
        size_average: PyTorch's old name; not taken.
        ignore_index: as in PyTorch.
        reduce: PyTorch's old name; not taken.
        reduction: "mean", "sum" or "none".
        label_smoothing: as in PyTorch. Above 0 input is read once more.
        z_loss: the weight of lse^2, which is added to the loss of each row.
        return_lse: whether to return log(sum(exp(input))) of the rows too, without a gradient:
            float32, or float64 if input is; -inf for rows that are ignored.

    Returns:
        The loss in input's dtype; under torch.autocast float32 for 16-bit inputs.

    The gradient reads input again and writes as much, from lse. It is not differentiable again.
    A target that is no class gives NaN, and no error. Raises NotSupportedError for probabilities
    of classes, and what `softgen.cross_entropy` raises.
    """
    if not isinstance(input, Tensor) or not isinstance(target, Tensor):
        raise InvalidTypeError("input and target must be tensors; softgen.cross_entropy takes more")
    if size_average is not None or reduce is not None:
        raise NotSupportedError("size_average and reduce are PyTorch's old names; give reduction")
    if target.is_floating_point():
        raise NotSupportedError(
            "target must be class indices; probabilities of classes are not served"
        )
    if weight is not None and weight.requires_grad and torch.is_grad_enabled():
        raise NotSupportedError("weight has no gradient; pass weight.detach()")
    if input.dim() == 0 or target.dim() != input.dim() - 1:
        raise InvalidValueError(
            f"input must have one dimension more than target, got {tuple(input.shape)} and "
            f"{tuple(target.shape)}"
        )
    x = torch.movedim(input, 1, -1) if input.dim() > 2 else input
    if x.shape[:-1] != target.shape:
        raise InvalidValueError(
            f"target must have the shape {tuple(x.shape[:-1])}, got {tuple(target.shape)}"
        )
    if weight is not None:
        weight = weight.to(wide(x))
    request = (x, target, weight, ignore_index, reduction, float(label_smoothing), float(z_loss))
    if torch.compiler.is_compiling():
        loss, lse, _ = cross_entropy_rows(*request)
    else:
        loss, lse, _ = applied(CrossEntropy, x)(*request)
    if not (input.dtype in HALVES and torch.is_autocast_enabled(input.device.type)):
        loss = loss.to(input.dtype)
    return (loss, lse) if return_lse else loss


class CrossEntropyBackward(GradientOfRows):
    """dx from lse and the upstream gradient of each row, or of all."""

    of = "cross_entropy"

    @staticmethod
    def forward(
        x: Any, target: Any, lse: Any, upstream: Any, ignored: int, smoothing: float, z_loss: float
    ) -> Any:
        """Return dx."""
        return losses.cross_entropy_backward(
            *(x.detach(), target, lse, upstream.detach()),
            ignore_index=ignored,
            label_smoothing=smoothing,
            z_loss=z_loss,
        )


class CrossEntropy(Function):
    """The loss in the type of the arithmetic, with what its gradient needs."""

    @staticmethod
    def forward(x: Any, target: Any, weight: Any, *options: Any) -> Any:
        """Return the loss, lse, and what the gradient of a row is times, or None."""
        return losses.with_factor(x.detach(), target, weight, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save x, target and all results but the loss."""
        x, target, _, ignored, _, *numbers = inputs
        _, lse, factor = output
        ctx.mark_non_differentiable(*(each for each in (lse, factor) if each is not None))
        ctx.options = (ignored, *numbers)
        ctx.save_for_backward(x, target, lse, factor)

    @staticmethod
    def backward(ctx: Any, g: Any, *_: Any) -> tuple[Any, ...]:
        """Return dx."""
        x, target, lse, factor = ctx.saved_tensors
        upstream = _upstream(g, factor)
        run = applied(CrossEntropyBackward, x, upstream)
        return run(x, target, lse, upstream, *ctx.options), *(None,) * 6


def _upstream(g: Any, factor: Any) -> Any:
    """Return the gradient of each row, or one for all."""
    if g.dim() and not any(g.stride()) and g.numel():  # expanded, as that of a sum is
        g = g[(0,) * g.dim()]
    return g if factor is None else g * factor


def _like_loss(
    x: Any, target: Any, weight: Any, ignored: int, reduction: str, smoothing: float, z: float
) -> tuple[Any, Any, Any]:
    """Return empty tensors like the results of the operator."""
    rows = torch.empty(x.shape[:-1], dtype=wide(x), device=x.device)
    loss = rows if reduction == "none" else rows.new_empty(())
    if weight is not None:
        factor = torch.empty_like(rows)
    else:
        factor = rows.new_empty(() if reduction == "mean" else (0,))
    return loss, torch.empty_like(rows), factor


@operator(_like_loss)
def cross_entropy_rows(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignored: int,
    reduction: str,
    smoothing: float,
    z_loss: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the loss, lse, and what the gradient of a row is times; nothing where that is 1."""
    loss, lse, factor = losses.with_factor(x, target, weight, ignored, reduction, smoothing, z_loss)
    return loss, lse, loss.new_empty(0) if factor is None else factor.clone()


@operator(lambda x, *_: torch.empty(x.shape, dtype=x.dtype, device=x.device))
def cross_entropy_backward(
    x: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    upstream: torch.Tensor,
    ignored: int,
    smoothing: float,
    z_loss: float,
) -> torch.Tensor:
    """Return dx."""
    run = CrossEntropyBackward.forward
    return run(x, target, lse, upstream, ignored, smoothing, z_loss).contiguous()


def _gradient(ctx: Any, g: Any, *_: Any) -> tuple[Any, ...]:
    x, target, lse, factor = ctx.saved_tensors
    upstream = g if ctx.is_one else g * factor
    return cross_entropy_backward(x, target, lse, upstream, *ctx.options), *(None,) * 6


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    CrossEntropy.setup_context(ctx, inputs, output)
    _, _, weight, _, reduction, *_ = inputs
    ctx.is_one = weight is None and reduction != "mean"


cross_entropy_rows.register_autograd(_gradient, setup_context=_keep)
