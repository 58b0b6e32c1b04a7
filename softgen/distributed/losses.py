"""Entropies, log-probabilities of tokens, and cross entropy, of a vocabulary in shards."""

from __future__ import annotations

from typing import Any

import torch

from softgen.call.ids import count_of, require_one_a_row
from softgen.call.losses import reduced, require_reduction
from softgen.call.scalars import is_number
from softgen.distributed import operators
from softgen.distributed.dtensor import Sharded
from softgen.distributed.exchange import name_of
from softgen.distributed.functional import checked, result_dtype
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError
from softgen.problems.functions.cross_entropy import IGNORE_INDEX
from softgen.torch.layers import integers
from softgen.torch.losses import numbers_of
from softgen.torch.operators import temperature_of

# An ignore_index that no id is.
_NONE_IGNORED = -(2**63)


def entropy(
    x_local: Any,
    *,
    temperature: Any = None,
    keepdim: bool = False,
    dtype: Any = None,
    group: Any = None,
) -> Any:
    """Return -sum(p log p) of p = softmax(x / temperature), in nats, of whole rows.

    Args:
        x_local: as in `softmax`.
        temperature: above 0, the same in each process: a number, or a tensor that broadcasts over
            the rows. It has no gradient.
        keepdim: whether the result keeps the last dimension, with length 1.
        dtype: as in `softmax`.
        group: as in `softmax`.

    Returns:
        A tensor of the rows' shape, with the same bits in all processes, or a DTensor that is
        replicated over the group.

    Where x is -inf p log p is 0. NaN for a row with NaN or +inf, or of nothing but -inf. The
    gradient of the result has to be the same in all processes; `backward` sends nothing.
    """
    placed = Sharded.of(x_local, group)
    x = checked(placed.x)
    dtype = result_dtype(dtype, x)
    number, of_rows = _temperature(temperature, x)
    found, _ = operators.entropy(x, number, of_rows, name_of(placed.group))
    found = placed.rows(found.to(dtype))
    return found[..., None] if keepdim else found


def token_log_probs(
    x_local: Any,
    ids: Any,
    *,
    temperature: Any = None,
    return_lse: bool = False,
    return_entropy: bool = False,
    group: Any = None,
    offset: int | None = None,
) -> Any:
    """Return log_softmax(x / temperature) at the columns `ids` of each row, in all processes.

    Args:
        x_local: as in `softmax`.
        ids: numbers of columns among those of all processes, the same in each: int32 or int64, one
            a row, or up to 64, in one more dimension.
        temperature: above 0, the same in each: a number, or a tensor that broadcasts over the rows.
            It has no gradient.
        return_lse: whether to return log(sum(exp(x / temperature))) too. It has no gradient.
        return_entropy: whether to return the entropy of each row too, as `entropy` does. The
            log-probabilities then come from lse, and are off by its rounding: 7.6e-6 near 200.
        group: as in `softmax`.
        offset: the number of x_local's first column. By default the processes ask each other at the
            first call with so many columns.

    Returns:
        float32 (float64 for float64), of ids' shape, with the same bits in all processes; with
        `return_lse` or `return_entropy` a tuple of it, lse and the entropy, of what is asked for.
        Replicated over the group for a DTensor.

    NaN for an id that no process has. The gradient of the result has to be the same in
    all processes; `backward` sends nothing. Raises what `softmax` and `softgen.token_log_probs`
    raise.
    """
    placed = Sharded.of(x_local, group)
    x, ids = checked(placed.x), integers("ids", placed.like_rows(ids))
    count = count_of(ids.shape, x.shape)
    number, of_rows = _temperature(temperature, x)
    start, name = placed.first(offset), name_of(placed.group)
    several = ids if ids.dim() == x.dim() else ids[..., None]
    entropies: Any = None
    if return_entropy:
        request = (x, several, number, of_rows, start, name)
        log_probs, lse, entropies = operators.token_log_probs_entropy(*request)
    elif temperature is None and count == 1:
        of_one = ids.reshape(x.shape[:-1])
        losses, lse = operators.losses(x, of_one, start, 1, _NONE_IGNORED, 0.0, 0.0, False, name)
        log_probs, lse = -losses, lse.masked_fill(lse == torch.inf, torch.nan)
    else:
        log_probs, lse = operators.token_log_probs(x, several, number, of_rows, start, name)
    log_probs = placed.rows(log_probs.reshape(ids.shape))
    if not return_lse and not return_entropy:
        return log_probs
    more = [lse] * return_lse + [entropies] * return_entropy
    return log_probs, *map(placed.rows, more)


def cross_entropy(
    x_local: Any,
    target: Any,
    *,
    ignore_index: int = IGNORE_INDEX,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    return_lse: bool = False,
    dtype: Any = None,
    overwrite: bool = False,
    group: Any = None,
    offset: int | None = None,
) -> Any:
    """Return the cross entropy of rows with class indices, in all processes.

    Args:
        x_local: logits, as in `softmax`.
        target: the class of each row among those of all processes, the same in each: int32 or
            int64, of the shape of the rows.
        ignore_index: a target that counts for nothing: its loss is 0, its lse -inf.
        reduction: "mean" over the rows that count, "sum", or "none" for a loss a row.
        label_smoothing: 0 to 1: how much of the target's probability the columns of all processes
            share. Above 0 the shard is read once more, and the processes ask each other how many
            columns there are, at the first call with so many, even where `offset` is given.
        z_loss: the weight of lse^2, which is added to the loss of each row.
        return_lse: whether to return log(sum(exp(x))) of the rows too, without a gradient: float32
            (float64 for float64).
        dtype: dtype of the loss; x_local's by default, under torch.autocast float32 for 16-bit
            logits.
        overwrite: whether the gradient may take the memory of x_local, as in
            `softgen.torch.cross_entropy`.
        group: as in `softmax`.
        offset: as in `token_log_probs`.

    Returns:
        The loss, with the same bits in all processes. Replicated over the group for a DTensor.

    A target that no process has gives NaN. The gradient of the result has to be the same
    in all processes; `backward` sends nothing. Raises what `softmax` and `softgen.cross_entropy`
    raise, and NotSupportedError to reduce a DTensor whose rows are sharded too.
    """
    require_reduction(reduction)
    ignored, smoothing, z_loss = numbers_of(ignore_index, label_smoothing, z_loss)
    placed = Sharded.of(x_local, group)
    x, target = checked(placed.x), integers("target", placed.like_rows(target))
    require_one_a_row(target.shape, x.shape)
    dtype = result_dtype(dtype, x)
    if reduction != "none" and placed.shards_rows():
        raise NotSupportedError(
            'the rows of this DTensor are sharded; take reduction="none" and reduce its result'
        )
    start, name = placed.first(offset), name_of(placed.group)
    classes = -1 if placed.source is None else placed.source.shape[-1]
    request = (x, target, start, classes, ignored, smoothing, z_loss, overwrite, name)
    loss, lse = operators.losses(*request)
    loss = placed.rows(reduced(loss, target, ignored, reduction).to(dtype))
    return (loss, placed.rows(lse)) if return_lse else loss


def _temperature(value: Any, x: Any) -> tuple[float | None, Any]:
    """Return a number, or one a row as a tensor; of both one is None, or both for 1."""
    if isinstance(value, torch.Tensor):
        return None, temperature_of(value, x)[1].expand(x.shape[:-1])
    if value is not None and (isinstance(value, bool) or not is_number(value)):
        raise InvalidTypeError(f"temperature must be a number or a tensor, got {value!r}")
    if value is not None and not value > 0:
        raise InvalidValueError(f"temperature must be above 0, got {value!r}")
    return temperature_of(value, x)
