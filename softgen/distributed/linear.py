"""Losses from hidden states, where each process has some rows of the last layer's weight."""

from __future__ import annotations

from typing import Any

import torch

from softgen.call.losses import require_reduction, smoothing_of
from softgen.call.scalars import finite, whole
from softgen.distributed import operators
from softgen.distributed.dtensor import Sharded
from softgen.distributed.exchange import name_of
from softgen.distributed.losses import integers, start_in
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError
from softgen.spec.functions.cross_entropy import IGNORE_INDEX
from softgen.torch.chunks import require_mode
from softgen.torch.dtensor import is_dtensor
from softgen.torch.dtypes import wide
from softgen.torch.linear import given_layer


def linear_cross_entropy(
    input: Any,  # the names are those of softgen.torch
    linear_weight_local: Any,
    target: Any,
    *,
    ignore_index: int = IGNORE_INDEX,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    mode: str = "fast",
    chunk: int | None = None,
    accumulate: Any = None,
    group: Any = None,
    offset: int | None = None,
) -> Any:
    """Return the cross entropy of input @ weight.T, the weight sharded over the classes.

    The logits are made a chunk of rows at a time, of this process's classes alone.

    Args:
        input: hidden states (..., hidden), the same in all processes; float16, bfloat16, float32
            or float64. Under torch.autocast the products are of its dtype.
        linear_weight_local: this process's rows of the weight, (classes, hidden), of input's dtype.
            Their number may differ, and be 0. Or a DTensor that is sharded along dimension 0.
        target: the class of each row among those of all processes, the same in each: int32 or
            int64, of input's shape without the last dimension.
        ignore_index: a target that counts for nothing.
        reduction: "mean" over the rows that count, "sum", or "none" for a loss a row.
        label_smoothing: as in `cross_entropy`.
        z_loss: the weight of lse^2, which is added to the loss of each row.
        mode: as in `softgen.torch.linear_cross_entropy`, the same in all processes.
        chunk: as in `softgen.torch.linear_cross_entropy`, the same in all processes.
        accumulate: as in `softgen.torch.linear_cross_entropy`.
        group: as in `softmax`; the DTensor's own for a DTensor.
        offset: the number of the first class here. By default the processes ask each other at the
            first call with so many classes.

    Returns:
        The loss in the dtype of the logits, under torch.autocast float32 for 16 bits; the same bits
        in all processes.

    Each chunk is one exchange of `cross_entropy`. The gradient of input is added up over the
    processes, by one all-reduce in this call; for reduction "none" and for float16 in `backward`,
    which is then a collective. All processes want the same gradients. They are not differentiable
    again. A target that no process has gives NaN. Raises what `cross_entropy` and
    `softgen.torch.linear_cross_entropy` raise.
    """
    require_reduction(None, reduction, 0, z_loss)
    require_mode(mode, chunk)
    ignored, z_loss = whole("ignore_index", ignore_index), finite("z_loss", z_loss)
    smoothing = smoothing_of(label_smoothing)
    if is_dtensor(input) or is_dtensor(target):
        raise NotSupportedError(
            "input and target are tensors that are the same in all processes; pass full_tensor() "
            "of a DTensor"
        )
    placed = Sharded.of(linear_weight_local, group, 0)
    x, weight, _, dtype = given_layer(input, placed.x, None)
    target = integers("target", target)
    if target.shape != input.shape[:-1]:
        raise InvalidValueError(
            f"target must have the shape {tuple(input.shape[:-1])}, got {tuple(target.shape)}"
        )
    if accumulate not in (None, weight.dtype, wide(weight)):
        raise InvalidTypeError(
            f"accumulate must be {weight.dtype} or {wide(weight)}, got {accumulate!r}"
        )
    classes = -1 if placed.source is None else placed.source.shape[0]
    x, target = x.reshape(-1, x.shape[-1]), target.reshape(-1)
    # A sum of float16 may be too large before it is scaled.
    ahead = reduction != "none" and torch.is_grad_enabled() and x.dtype is not torch.float16
    wanted = (ahead and x.requires_grad, ahead and weight.requires_grad)
    options = (ignored, smoothing, z_loss, mode, chunk, accumulate or weight.dtype)
    place = (start_in(offset, placed), classes)
    rows, summed, *_ = operators.linear_losses(
        x, weight, target, *wanted, *place, *options, name_of(placed.group)
    )
    if reduction == "none":
        return rows.reshape(input.shape[:-1]).to(dtype)
    loss = summed if any(wanted) else rows.sum()
    if reduction == "mean":
        divisor = (target != ignored).sum()
        nothing = divisor == 0  # the mean is NaN, and its gradient 0
        loss = (loss / divisor.masked_fill(nothing, 1)).masked_fill(nothing, torch.nan)
    return loss.to(dtype)
