"""Log-probabilities of tokens, and cross entropy, of a vocabulary that lies in shards."""

from __future__ import annotations

from typing import Any

import torch

from softgen.call.ids import count_of, require_one_a_row
from softgen.call.losses import require_reduction
from softgen.call.scalars import finite, is_number, whole
from softgen.distributed.dtensor import Sharded
from softgen.distributed.exchange import exchange_of
from softgen.distributed.functional import checked, eager
from softgen.distributed.gradients import CrossEntropy, Losses, TokenLogProbs
from softgen.distributed.starts import start_of
from softgen.distributed.vocabulary import chosen, first_column
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError
from softgen.spec.functions.cross_entropy import IGNORE_INDEX
from softgen.torch.dtypes import HALVES, wide
from softgen.torch.registry import applied

# An ignore_index that no id is.
_NONE_IGNORED = -(2**63)


@eager
def token_log_probs(
    x_local: Any,
    ids: Any,
    *,
    temperature: Any = None,
    return_lse: bool = False,
    group: Any = None,
    offset: int | None = None,
) -> Any:
    """Return log_softmax(x / temperature) at the columns `ids` of each row, in all processes.

    Args:
        x_local: as in `softmax`.
        ids: numbers of columns among those of all processes, the same in each: int32 or int64, one
            a row, or up to 16, in one more dimension.
        temperature: above 0, the same in each: a number, or a tensor that broadcasts over the rows.
            It has no gradient.
        return_lse: whether to return log(sum(exp(x / temperature))) too. It has no gradient.
        group: as in `softmax`.
        offset: the number of x_local's first column. By default the processes ask each other at the
            first call with so many columns.

    Returns:
        float32 (float64 for float64), of ids' shape, with the same bits in all processes; or a pair
        of it and lse. Replicated over the group for a DTensor.

    NaN for an id that no process has. The gradient takes that of the result, which has to be the
    same in all processes, and sends nothing. Raises what `softmax` and `softgen.token_log_probs`
    raise.
    """
    placed = Sharded.of(x_local, group)
    x, ids = checked(placed.x), _integers("ids", placed.like_rows(ids))
    several = ids.dim() == x.dim()
    count = count_of(ids.shape, x.shape)
    temperature = _temperature(temperature, x)
    start = None if offset is None else start_of(offset)
    exchange = exchange_of(placed.group, x)
    start = _start(start, placed, x, exchange.group)
    tracked = x.requires_grad and torch.is_grad_enabled()
    if temperature is None and count == 1:
        log_probs, lse = _of_one(x, ids.reshape(x.shape[:-1]), start, exchange)
        log_probs = placed.rows(log_probs.reshape(ids.shape))
        return (log_probs, placed.rows(lse)) if return_lse else log_probs
    scale = None if temperature is None else 1 / temperature
    found = chosen(x.detach(), ids if several else ids[..., None], start, scale)
    m, d, logits = exchange.pairs(x.detach(), scale, found.logits)
    known = logits != torch.inf
    log_sum = torch.log(d)
    log_probs = torch.where(known, (logits - m[..., None]) - log_sum[..., None], torch.nan)
    lse = m + log_sum
    if tracked:
        log_probs = TokenLogProbs.apply(x, log_probs, lse, found, known, temperature)
    log_probs = placed.rows(log_probs if several else log_probs[..., 0])
    return (log_probs, placed.rows(lse)) if return_lse else log_probs


def _of_one(x: Any, ids: Any, start: int, exchange: Any) -> tuple[Any, Any]:
    """Return the log-probability of an id a row, which is a loss less than 0, and lse."""
    asked = Losses(ids, start, _NONE_IGNORED)
    losses, lse = _losses(x, asked, exchange)
    return -losses, lse.masked_fill(lse == torch.inf, torch.nan)


def _losses(x: Any, asked: Losses, exchange: Any) -> tuple[Any, Any]:
    """Return the losses that are asked for, and lse."""
    loss, lse, *_ = applied(CrossEntropy, x)(x, asked, exchange)
    return loss, lse


@eager
def cross_entropy(
    x_local: Any,
    target: Any,
    *,
    ignore_index: int = IGNORE_INDEX,
    reduction: str = "mean",
    z_loss: float = 0.0,
    return_lse: bool = False,
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
        z_loss: the weight of lse^2, which is added to the loss of each row.
        return_lse: whether to return log(sum(exp(x))) of the rows too, without a gradient: float32
            (float64 for float64).
        group: as in `softmax`.
        offset: as in `token_log_probs`.

    Returns:
        The loss in x_local's dtype, under torch.autocast float32 for 16-bit logits; the same bits
        in all processes. Replicated over the group for a DTensor.

    A target that no process has gives NaN. The gradient takes that of the result, which has to be
    the same in all processes, and sends nothing. Raises what `softmax` and `softgen.cross_entropy`
    raise, and NotSupportedError to reduce a DTensor whose rows are sharded too.
    """
    require_reduction(None, reduction, 0, z_loss)
    ignored, z_loss = whole("ignore_index", ignore_index), finite("z_loss", z_loss)
    start = None if offset is None else start_of(offset)
    placed = Sharded.of(x_local, group)
    x, target = checked(placed.x), _integers("target", placed.like_rows(target))
    require_one_a_row(target.shape, x.shape)
    if reduction != "none" and placed.shards_rows:
        raise NotSupportedError(
            'the rows of this DTensor are sharded; take reduction="none" and reduce its result'
        )
    exchange = exchange_of(placed.group, x)
    start = _start(start, placed, x, exchange.group)
    kept = x.dtype in HALVES and torch.is_autocast_enabled(x.device.type)
    options = (ignored, z_loss, reduction, wide(x) if kept else x.dtype)
    loss, lse = _losses(x, Losses(target, start, *options), exchange)
    loss = placed.rows(loss)
    return (loss, placed.rows(lse)) if return_lse else loss


def _start(offset: int | None, placed: Sharded, x: Any, group: Any) -> int:
    """Return the number of the shard's first column."""
    known = placed.offset if offset is None else offset
    return first_column(x, group) if known is None else known


def _integers(name: str, array: Any) -> Any:
    if not isinstance(array, torch.Tensor) or array.dtype not in (torch.int32, torch.int64):
        given = array.dtype if isinstance(array, torch.Tensor) else type(array).__qualname__
        raise InvalidTypeError(f"{name} must be a tensor of int32 or int64, got {given}")
    return array


def _temperature(value: Any, x: Any) -> Any:
    """Return a number, one a row as a tensor, or None for 1."""
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            raise InvalidValueError("temperature has no gradient here; pass temperature.detach()")
        try:
            return value.to(wide(x)).expand(x.shape[:-1])
        except RuntimeError:
            raise InvalidValueError(
                f"temperature must broadcast to {tuple(x.shape[:-1])}, got shape "
                f"{tuple(value.shape)}"
            ) from None
    if value is None:
        return None
    if isinstance(value, bool) or not is_number(value):
        raise InvalidTypeError(f"temperature must be a number or a tensor, got {value!r}")
    if not value > 0:
        raise InvalidValueError(f"temperature must be above 0, got {value!r}")
    return float(value)
