"""Cross entropy for PyTorch: autograd from lse, and a registered operator for torch.compile."""

from __future__ import annotations

import functools
from typing import Any

import torch

from softgen.call import losses
from softgen.call.scalars import finite
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError
from softgen.spec.functions.cross_entropy import IGNORE_INDEX
from softgen.torch.dtypes import HALVES, wide
from softgen.torch.gradients import Function, applied
from softgen.torch.plain import Seen
from softgen.torch.plain_loss import loss_for, serves
from softgen.torch.registered import differentiate, operator
from softgen.torch.rows import CrossEntropyBackward

Tensor = torch.Tensor
is_dynamo_compiling = torch.compiler.is_dynamo_compiling

_seen = Seen(4)


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

    The gradient reads input again and writes as much, from lse. It is differentiable again,
    by PyTorch's own operations.
    A target that is no class gives NaN, and no error. Raises NotSupportedError for probabilities
    of classes, and what `softgen.cross_entropy` raises.
    """
    plain = weight is size_average is reduce is None and not (return_lse or is_dynamo_compiling())
    given = ignore_index, reduction, label_smoothing, z_loss
    if plain:
        alike, (was_ignored, was_reduction, was_smoothing, was_z_loss), run = _seen.last
        if (
            ignore_index is was_ignored
            and reduction is was_reduction
            and label_smoothing is was_smoothing
            and z_loss is was_z_loss
            and alike(input, target)
        ) or (run := _seen.find(given, input, target)):
            return run(input, target)
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
        if weight.shape != x.shape[-1:]:
            raise InvalidValueError(
                f"weight must have an element a class, {tuple(x.shape[-1:])}, got "
                f"{tuple(weight.shape)}"
            )
        weight = weight.to(wide(x))
    losses.require_reduction(weight, reduction, label_smoothing, z_loss)
    if torch.compiler.is_compiling():  # the operator checks them, once they are known
        smoothing, z_loss = float(label_smoothing), float(z_loss)
    else:
        smoothing, z_loss = losses.smoothing_of(label_smoothing), finite("z_loss", z_loss)
    dtype = input.dtype
    if dtype in HALVES and torch.is_autocast_enabled(input.device.type):
        dtype = wide(x)
    if plain and serves(x, target, reduction):
        run = loss_for(x, target, ignore_index, reduction, smoothing, z_loss, dtype)
        loss = run(x, target)
        if x is input:
            _seen.keep(run, given, x, target)
        return loss
    if torch.compiler.is_compiling():
        rows, lse = cross_entropy_rows(x, target, ignore_index, smoothing, z_loss)
        loss, *_ = reduced_losses(rows, target, weight, ignore_index, reduction, x.shape[-1], dtype)
    else:
        request = (x, target, weight, ignore_index, reduction, smoothing, z_loss, dtype)
        loss, lse, *_ = applied(CrossEntropy, x)(*request)
    return (loss, lse) if return_lse else loss


def reduced_losses(
    rows: Any, target: Any, weight: Any, ignored: int, reduction: str, cols: int, dtype: Any
) -> tuple[Any, Any, Any]:
    """Return what `losses.reduction_of` does, with a loss of `dtype`."""
    mean = losses.mean_of if torch.compiler.is_compiling() else functools.partial(_mean, dtype)
    of = (rows, target, ignored, reduction, weight, cols, mean)
    loss, weights, counted = losses.reduction_of(*of)
    return loss.to(dtype), weights, counted


def _mean(dtype: Any, rows: Any, target: Any, ignored: int, weights: Any) -> tuple[Any, Any]:
    """Do what `losses.mean_of` does by four launches, of which each would be 2 us.

    `out` spares those that only convert.
    """
    if weights is None:
        counted = torch.ne(target, ignored, out=torch.empty_like(rows)).sum()
    else:
        counted = weights.sum()
    return torch.div(rows.sum(), counted, out=rows.new_empty((), dtype=dtype)), counted


class CrossEntropy(Function):
    """The loss, with what its gradient needs."""

    @staticmethod
    def forward(
        x: Any,
        target: Any,
        weight: Any,
        ignored: int,
        reduction: str,
        smoothing: float,
        z_loss: float,
        dtype: Any,
    ) -> Any:
        """Return the loss of `dtype`, lse, the weights of rows and what divided their sum."""
        rows, lse = losses.losses_of_rows(x.detach(), target, ignored, smoothing, z_loss)
        cols = x.shape[-1]
        loss, *more = reduced_losses(rows, target, weight, ignored, reduction, cols, dtype)
        return loss, lse, *more

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save x, target and all results but the loss."""
        x, target, _, ignored, _, smoothing, z_loss, _ = inputs
        _, *more = output
        ctx.mark_non_differentiable(*(each for each in more if each is not None))
        ctx.set_materialize_grads(False)  # or zeros for each of them are written
        ctx.options = (ignored, smoothing, z_loss)
        ctx.save_for_backward(x, target, *more)

    @staticmethod
    def backward(ctx: Any, g: Any, *_: Any) -> tuple[Any, ...]:
        """Return dx."""
        if g is None:
            return (None,) * 8
        x, target, lse, weights, counted = ctx.saved_tensors
        if g.dim() and not any(g.stride()) and g.numel():  # expanded, as that of a sum is
            g = g[(0,) * g.dim()]
        if counted is not None:
            g = g / counted
        upstream = g.to(lse.dtype) if weights is None else g * weights
        run = applied(CrossEntropyBackward, x, upstream)
        return run(x, target, lse, upstream, *ctx.options), *(None,) * 7


def _like_rows(x: Any, *_: Any) -> tuple[Any, Any]:
    """Return empty tensors like the results of the operator."""
    rows = torch.empty(x.shape[:-1], dtype=wide(x), device=x.device)
    return rows, torch.empty_like(rows)


@operator(_like_rows)
def cross_entropy_rows(
    x: torch.Tensor, target: torch.Tensor, ignored: int, smoothing: float, z_loss: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of each row, and lse."""
    return losses.losses_of_rows(x, target, ignored, smoothing, z_loss)


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


def _gradient(ctx: Any, g: Any, _: Any) -> tuple[Any, ...]:
    x, target, lse = ctx.saved_tensors
    return cross_entropy_backward(x, target, lse, g, *ctx.options), *(None,) * 4


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, target, *ctx.options = inputs
    _, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(x, target, lse)


differentiate(cross_entropy_rows, _gradient, _keep)
