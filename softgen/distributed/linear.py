"""Losses from hidden states, where each process has some rows of the last layer's weight."""

from __future__ import annotations

from typing import Any

import torch

from softgen.call.losses import require_reduction, weights_of
from softgen.distributed import operators
from softgen.distributed.dtensor import Sharded
from softgen.distributed.exchange import exchange_named, name_of
from softgen.errors import NotSupportedError
from softgen.problems.functions.cross_entropy import IGNORE_INDEX
from softgen.torch.chunks import require_mode
from softgen.torch.dtensor import is_dtensor
from softgen.torch.dtypes import dtype_of_loss
from softgen.torch.layers import given_layer, require_fitting, softcap_of
from softgen.torch.linear import divisor_of, flat_rows, of_all_rows
from softgen.torch.losses import class_weights, numbers_of


def linear_cross_entropy(
    input: Any,  # the names are those of softgen.torch
    linear_weight_local: Any,
    target: Any,
    *,
    linear_bias_local: Any = None,
    weight: Any = None,
    ignore_index: int = IGNORE_INDEX,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    num_items: Any = None,
    valid_rows: int | None = None,
    mode: str = "fast",
    chunk: int | None = None,
    accumulate: Any = None,
    dtype: Any = None,
    group: Any = None,
    offset: int | None = None,
) -> Any:
    """Return the cross entropy of input @ W.T + bias, whose classes lie in shards.

    The logits are made a chunk of rows at a time, of this process's classes alone.

    Args:
        input: hidden states (..., hidden), the same in all processes; float16, bfloat16, float32
            or float64. Under torch.autocast the products are of its dtype.
        linear_weight_local: this process's rows of W, (classes, hidden), of input's dtype. Their
            number may differ, and be 0. Or a DTensor that is sharded along dimension 0.
        target: the class of each row among those of all processes, the same in each: int32 or
            int64, of input's shape without the last dimension.
        linear_bias_local: the bias of this process's classes, (classes,), of input's dtype; or a
            DTensor that is sharded likewise.
        weight: what the loss of each class is multiplied by, (classes of all processes,), the same
            in each; any float dtype, without a gradient. With label_smoothing PyTorch's operations
            make the gradient of a chunk: 16 bits take one more chunk in memory, in float32.
        ignore_index: a target that counts for nothing.
        reduction: "mean" over the rows that count, "sum", or "none" for a loss a row.
        label_smoothing: as in `cross_entropy`.
        softcap: as in `softgen.torch.linear_cross_entropy`. PyTorch's operations do it to a copy
            of a chunk: there are two more chunks in memory, in float32 (float64 for float64).
        z_loss: the weight of lse^2, which is added to the loss of each row.
        num_items: as in `softgen.torch.linear_cross_entropy`, the same in all processes.
        valid_rows: as in `softgen.torch.linear_cross_entropy`, the same in all processes.
        mode: as in `softgen.torch.linear_cross_entropy`, the same in all processes.
        chunk: as in `softgen.torch.linear_cross_entropy`, the same in all processes.
        accumulate: as in `softgen.torch.linear_cross_entropy`.
        dtype: as in `softgen.torch.linear_cross_entropy`.
        group: as in `softmax`; the DTensor's own for a DTensor.
        offset: the number of the first class here. By default the processes ask each other at the
            first call with so many classes; with `weight` they do even where it is given.

    Returns:
        The loss: a number, or one of each row in the shape of target; the same bits in all
        processes.

    Each chunk is one exchange of `cross_entropy`. The gradient of input is added up over the
    processes, by one all-reduce in this call; for reduction "none" and for float16 in `backward`,
    which is then a collective. All processes want the same gradients. They are not differentiable
    again. A target that no process has gives NaN. Raises what `cross_entropy` and
    `softgen.torch.linear_cross_entropy` raise.
    """
    require_reduction(reduction)
    require_mode(mode, chunk)
    ignored, smoothing, z_loss = numbers_of(ignore_index, label_smoothing, z_loss)
    softcap = softcap_of(softcap)
    if is_dtensor(input) or is_dtensor(target):
        raise NotSupportedError(
            "input and target are tensors that are the same in all processes; pass full_tensor() "
            "of a DTensor"
        )
    placed = Sharded.of(linear_weight_local, group, 0)
    bias = None if linear_bias_local is None else Sharded.of(linear_bias_local, group, 0).x
    x, head, bias = given_layer(input, placed.x, bias)
    dtype = dtype_of_loss(dtype, x)
    require_fitting(x, head, target, reduction, num_items, accumulate)
    classes = -1 if placed.source is None else placed.source.shape[0]
    place, name = (placed.first(offset), classes), name_of(placed.group)
    x, target, kept = flat_rows(x, target, ignored, valid_rows)
    of_rows = None
    if weight is not None:
        every = weight.shape
        if not torch.compiler.is_compiling():
            every = torch.Size((exchange_named(name, head).all_columns(classes, head.t()),))
        weight = class_weights(weight, every, head)
    divisor = divisor_of(reduction, num_items, target, ignored, weight, head)
    if weight is not None and not smoothing:
        of_rows, weight = weights_of(weight, target, ignored, weight.shape[0]), None
    # A sum of float16 may be too large before it is scaled.
    ahead = reduction != "none" and torch.is_grad_enabled() and x.dtype is not torch.float16
    wanted = [int(ahead and t is not None and t.requires_grad) for t in (x, head, bias)]
    options = (ignored, smoothing, z_loss, softcap, mode, chunk, accumulate or head.dtype)
    rows, summed, *_ = operators.linear_losses(
        *(x, head, target, bias, of_rows, divisor, weight, wanted), *place, *options, name
    )
    if reduction != "none":
        return summed.to(dtype)
    loss = rows if of_rows is None else rows * of_rows
    return of_all_rows(loss, kept, input.shape[:-1]).to(dtype)
