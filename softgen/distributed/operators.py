"""Rows that lie in shards as registered operators, with their gradients.

PyTorch sees an operator and what it returns, so that torch.compile breaks no graph, and tensors
without memory (FakeTensor) or with results on their way (AsyncCollectiveTensor) are its business.
A group travels by its name, as in torch's functional collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from softgen.call.losses import smoothing_of, weights_of
from softgen.distributed import local
from softgen.distributed.exchange import exchange_named
from softgen.distributed.vocabulary import chosen, logits_at, nearest, scale_by_row
from softgen.errors import NotSupportedError
from softgen.torch.chunks import Head
from softgen.torch.dtypes import wide
from softgen.torch.linear import scaled_by
from softgen.torch.losses import is_overwritable

# Kept as long as the operators are to be there.
_LIBRARY = torch.library.Library("softgen", "FRAGMENT")


def _not_again(ctx: Any, *upstream: Any) -> Any:
    raise NotSupportedError(
        "the gradients of softgen.distributed are not differentiable again; leave "
        "create_graph=True out"
    )


def _operator(
    fake: Callable[..., Any],
    backward: Callable[..., Any] = _not_again,
    keep: Callable[..., None] | None = None,
    sends: bool = True,
) -> Callable[..., Any]:
    """Register a function as `softgen::sharded_<its name>`; it changes nothing that it is given.

    torch.library.custom_op does the same, and imports the compiler with the first call: 4 s.

    Args:
        fake: returns empty tensors like the results, which share no memory with what it is given.
        backward: as of a torch.autograd.Function.
        keep: its `setup_context`.
        sends: whether processes exchange something. Compiled code keeps the order of these
            operators: where widths differ, inductor could order them in each process in its own
            way, and the parts of one call would be taken for those of another.
    """

    def register(run: Callable[..., Any]) -> Any:
        short = f"sharded_{run.__name__}"
        name, schema = f"softgen::{short}", torch.library.infer_schema(run, mutates_args=())
        _LIBRARY.define(f"{short}{schema}", tags=torch.Tag.pt2_compliant_tag)
        _LIBRARY.impl(short, run, "CompositeExplicitAutograd")
        torch.library.register_fake(name, fake, lib=_LIBRARY)
        torch.library.register_autograd(name, backward, setup_context=keep, lib=_LIBRARY)
        if sends and hasattr(_LIBRARY, "_register_effectful_op"):  # in PyTorch 2.10 and later
            from torch._library.effects import EffectType

            _LIBRARY._register_effectful_op(name, EffectType.ORDERED)
        return getattr(torch.ops.softgen, short).default

    return register


def _like(x: Any, dtype: Any = None) -> Any:
    return torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)


def _like_rows(x: Any) -> Any:
    return torch.empty(x.shape[:-1], dtype=wide(x), device=x.device)


def _keep_result(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, _, ctx.log, ctx.group = inputs
    ctx.dtype = x.dtype
    ctx.save_for_backward(output)


def _of_result(ctx: Any, dy: Any) -> tuple[Any, None, None, None]:
    """Return y (dy - sum(dy y)), or dy - exp(y) sum(dy) of a logarithm; over all shards."""
    (y,) = ctx.saved_tensors
    up = dy.to(wide(y))
    sums = total((up if ctx.log else up * y).sum(-1), ctx.group)[..., None]
    dx = up - y.to(up.dtype).exp() * sums if ctx.log else (up - sums) * y
    return dx.to(ctx.dtype), None, None, None


@_operator(lambda x, dtype, log, group: _like(x, dtype), _of_result, _keep_result)
def softmax(x: torch.Tensor, dtype: torch.dtype, log: bool, group: str) -> torch.Tensor:
    """Return this shard of the softmax, of `dtype`, or its logarithm."""
    return exchange_named(group, x).softmax(x.detach(), dtype, log).contiguous()


@_operator(lambda sums, group: _like(sums))
def total(sums: torch.Tensor, group: str) -> torch.Tensor:
    """Return the sums over the processes, one a row."""
    return exchange_named(group, sums).total(sums.detach().clone())


def _keep_lse(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(inputs[0], output)


def _of_logsumexp(ctx: Any, upstream: Any) -> tuple[Any, None]:
    return logsumexp_backward(*ctx.saved_tensors, upstream), None


@_operator(lambda x, group: _like_rows(x), _of_logsumexp, _keep_lse)
def logsumexp(x: torch.Tensor, group: str) -> torch.Tensor:
    """Return lse of the rows, in the type of the arithmetic."""
    return exchange_named(group, x).logsumexp(x.detach())


@_operator(lambda x, lse, upstream: _like(x), sends=False)
def logsumexp_backward(x: torch.Tensor, lse: torch.Tensor, upstream: torch.Tensor) -> torch.Tensor:
    """Return upstream * exp(x - lse)."""
    if not x.numel():
        return _like(x)
    rows = lse.detach(), upstream.detach()
    return local.logsumexp_backward(x.detach(), *rows).contiguous()


def _keep_entropy(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, ctx.number, of_rows, _ = inputs
    entropy, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)  # or zeros for lse are written
    ctx.save_for_backward(x, lse, entropy, of_rows)


def _of_entropy(ctx: Any, g: Any, _: Any) -> tuple[Any, ...]:
    if g is None:
        return (None,) * 4
    *saved, of_rows = ctx.saved_tensors
    return entropy_backward(*saved, g, ctx.number, of_rows), None, None, None


# Here and in token_log_probs of two temperatures one is None: a number, or one of each row.
@_operator(lambda x, *_: (_like_rows(x), _like_rows(x)), _of_entropy, _keep_entropy)
def entropy(
    x: torch.Tensor, number: float | None, of_rows: torch.Tensor | None, group: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the entropy of the rows and lse, in the type of the arithmetic."""
    exchange = exchange_named(group, x)
    found, lse, _ = exchange.entropy(x.detach(), _scale(number, of_rows))
    return found, lse


@_operator(lambda x, *_: _like(x), sends=False)
def entropy_backward(
    x: torch.Tensor,
    lse: torch.Tensor,
    entropy: torch.Tensor,
    upstream: torch.Tensor,
    number: float | None,
    of_rows: torch.Tensor | None,
) -> torch.Tensor:
    """Return -p (log p + entropy) * upstream / temperature."""
    if not x.numel():
        return _like(x)
    rows = lse.detach(), entropy.detach(), upstream.detach()
    return local.entropy_backward(x.detach(), *rows, _scale(number, of_rows)).contiguous()


def _keep_losses(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, target, first, classes, ignored, smoothing, z_loss, ctx.overwrite, group = inputs
    ctx.options = (first, classes, ignored, smoothing, z_loss, group)
    rows, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)  # or zeros for lse are written
    ctx.save_for_backward(x, target, lse, rows)


def _of_losses(ctx: Any, g: Any, _: Any) -> tuple[Any, ...]:
    if g is None:
        return (None,) * 9
    if g.dim() and g.numel() and not any(g.stride()):  # expanded, as that of a sum is
        g = g[(0,) * g.dim()]
    x, target, *_ = ctx.saved_tensors
    request = (*ctx.saved_tensors, g, *ctx.options)
    if ctx.overwrite and is_overwritable(x, target, g):
        return _of_shard(*request, out=x.detach()), *(None,) * 8
    return losses_backward(*request), *(None,) * 8


# In the following `first` is the number of the shard's first column, and `classes` that of the
# columns of all. Where either is below 0 the processes ask each other, once.
@_operator(lambda x, *_: (_like_rows(x), _like_rows(x)), _of_losses, _keep_losses)
def losses(
    x: torch.Tensor,
    target: torch.Tensor,
    first: int,
    classes: int,
    ignored: int,
    smoothing: float,
    z_loss: float,
    overwrite: bool,
    group: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cross entropy of each row, and lse; see Gathered.

    Where x is to be overwritten its gradient is written there.

    With `smoothing` PyTorch's operations read the shard once more, for the mean of each row.
    """
    given = (first, classes, ignored, smoothing, z_loss)
    return _losses(exchange_named(group, x), x.detach(), target, *given)


def _losses(
    exchange: Any,
    x: Any,
    target: Any,
    first: int,
    classes: int,
    ignored: int,
    smoothing: float,
    z_loss: float,
    weights: Any = None,
) -> tuple[Any, Any]:
    """Return the cross entropy of each row, and lse.

    With smoothing s there may be weights w of all C classes. With W their sum that is
    (1 - s) w[target] (lse - x[target]) + s / C (W lse - sum(w x)).
    """
    smoothing = smoothing_of(smoothing)  # compiled code has not checked it
    start = exchange.first_column(first, x)
    if not smoothing:
        found: tuple[Any, Any] = exchange.losses(x, target, start, ignored, z_loss)
        return found
    rows, lse = exchange.losses(x, target, start, ignored, 0.0)
    # 0 times the infinite loss of a target of probability 0 would be NaN. A row without a target
    # stays NaN.
    rows = (1 - smoothing) * rows if smoothing < 1 else rows.masked_fill(~rows.isnan(), 0)
    of_target: Any = 1
    if weights is None:
        mean = exchange.total(x.sum(-1, dtype=wide(x))) / exchange.all_columns(classes, x)
        rows = rows + smoothing * (lse - mean)
    else:
        mine = weights[start : start + x.shape[-1]]
        every = weights.sum() * lse - exchange.total(x.to(wide(x)) @ mine)
        of_target = weights_of(weights, target, ignored, len(weights))
        rows = of_target * rows + smoothing / len(weights) * every
    if z_loss:
        rows = rows + z_loss * of_target * lse * lse
    return rows.masked_fill_(target == ignored, 0), lse


def _of_weighed_rows(
    exchange: Any,
    x: Any,
    target: Any,
    lse: Any,
    rows: Any,
    upstream: Any,
    weights: Any,
    first: int,
    classes: int,
    ignored: int,
    smoothing: float,
    z_loss: float,
) -> None:
    """Let x become the gradient of `_losses` with weights, times the upstream u.

    With p = exp(x - lse) and t the target that is, in the type of the arithmetic,
    u p ((1 - s) w[t] + s W / C + 2 z_loss w[t] lse) - u (1 - s) w[t] [column is t] - u s w / C.
    """
    start = exchange.first_column(first, x)
    counts, share = target != ignored, smoothing / len(weights)
    of_target = weights_of(weights, target, ignored, len(weights))
    u = torch.where(counts, upstream.to(lse.dtype).masked_fill(rows.isnan(), torch.nan), 0)
    lse = torch.where(counts, lse, 0)
    scale = u * ((1 - smoothing + 2 * z_loss * lse) * of_target + share * weights.sum())
    dx = x.to(lse.dtype).masked_fill_(~counts[:, None], 0)
    dx.sub_(lse[:, None]).exp_().mul_(scale[:, None])
    dx.addr_(u, weights[start : start + x.shape[-1]], alpha=-share)
    at, is_mine = nearest(x, target[:, None].long(), start)
    less = is_mine * ((1 - smoothing) * u * of_target)[:, None]
    x.copy_(dx.scatter_(-1, at, dx.gather(-1, at) - less))


@_operator(lambda x, *_: _like(x), sends=False)
def losses_backward(
    x: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    rows: torch.Tensor,
    upstream: torch.Tensor,
    first: int,
    classes: int,
    ignored: int,
    smoothing: float,
    z_loss: float,
    group: str,
) -> torch.Tensor:
    """Return dx from lse, the loss of each row, and `upstream`, one a row or one for all."""
    given = (first, classes, ignored, smoothing, z_loss, group)
    return _of_shard(x, target, lse, rows, upstream, *given).contiguous()


def _of_shard(
    x: Any, target: Any, lse: Any, rows: Any, upstream: Any, *given: Any, out: Any = None
) -> Any:
    """Return dx, which is written to `out` unless that is None."""
    if not x.numel():
        return _like(x)
    *place, name = given
    of_rows = (lse.detach(), rows.detach(), upstream.detach())
    return _of_rows(exchange_named(name, x), x.detach(), out, target, *of_rows, *place)


def _of_rows(
    exchange: Any,
    x: Any,
    out: Any,
    target: Any,
    lse: Any,
    rows: Any,
    upstream: Any,
    first: int,
    classes: int,
    ignored: int,
    smoothing: float,
    z_loss: float,
) -> Any:
    """Return dx of losses, which is written to `out` unless that is None."""
    start = exchange.first_column(first, x)
    every = exchange.all_columns(classes, x) if smoothing else 1
    more = (upstream.to(lse.dtype).contiguous(), smoothing, z_loss, rows, start, every, out)
    return local.cross_entropy_backward(x, target, ignored, lse, *more)


def _like_linear(x: Any, weight: Any, target: Any, bias: Any, *rest: Any) -> Any:
    wanted, accumulate = rest[3], rest[-2]
    made = _like_wanted((x, weight, bias), wanted, (x.dtype, accumulate, wide(x)))
    return _like_rows(x), x.new_empty((), dtype=wide(x)), _like_rows(x), *made


def _like_wanted(given: Any, wanted: Any, dtypes: Any) -> tuple[Any, ...]:
    """Return tensors like the gradients that are wanted, and empty ones for the others."""
    return tuple(
        _like(each, dtype) if want else given[0].new_empty(0, dtype=dtype)
        for each, want, dtype in zip(given, wanted, dtypes, strict=True)
    )


def _keep_linear(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    tensors, wanted, ctx.options = inputs[:7], inputs[7], inputs[8:]
    rows, _, lse, *made = output
    ctx.mark_non_differentiable(lse, *made)
    ctx.set_materialize_grads(False)
    # Not among the saved tensors: the first backward pass scales them where they are.
    ctx.made = made if any(wanted) else None
    ctx.save_for_backward(*tensors, lse, rows)


def _of_linear(ctx: Any, of_rows: Any, of_sum: Any, *_: Any) -> tuple[Any, ...]:
    if of_rows is None and of_sum is None:
        return (None,) * 18
    x, weight, target, bias, factors, divisor, weights, lse, rows = ctx.saved_tensors
    wanted = [int(ctx.needs_input_grad[i]) for i in (0, 1, 3)]
    made, ctx.made = ctx.made, None
    if made is not None and of_rows is None and not torch.is_grad_enabled():
        # Nothing is scaled of a process without classes, whose gradient of bias is of shape (0,).
        found = [scaled_by(t, of_sum, x.dtype) if t.numel() else t.to(x.dtype) for t in made]
    else:
        g = 0 if of_rows is None else of_rows
        if of_sum is not None:
            g = g + of_sum * _shares(lse, factors, divisor)
        request = (x, weight, target, bias, weights, lse, rows, g, wanted, *ctx.options)
        found = linear_losses_backward(*request)
    dx, dweight, dbias = (each if want else None for each, want in zip(found, wanted, strict=True))
    return dx, dweight, None, dbias, *(None,) * 14


def _shares(lse: Any, factors: Any, divisor: Any) -> Any:
    """Return the factors of the losses in their sum: a number for all rows, or one a row."""
    shares = lse.new_ones(1) if factors is None else factors
    return shares if divisor is None else shares / divisor


@_operator(_like_linear, _of_linear, _keep_linear)
def linear_losses(
    x: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    factors: torch.Tensor | None,
    divisor: torch.Tensor | None,
    class_weights: torch.Tensor | None,
    wanted: list[int],
    first: int,
    classes: int,
    ignored: int,
    smoothing: float,
    z_loss: float,
    softcap: float | None,
    mode: str,
    chunk: int | None,
    accumulate: torch.dtype,
    group: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the losses of rows of x @ weight.T + bias, a sum, lse, and gradients of the sum.

    Args:
        x: hidden states (rows, hidden), the same in all processes.
        weight: (columns of this process, hidden).
        target: (rows,).
        bias: (columns of this process,), or None.
        factors: what the loss of each row is multiplied by in the sum, (rows,), or None.
        divisor: what divides the sum, of no dimensions, or None.
        class_weights: of all classes, with smoothing: they are in the losses of rows; or None.
        wanted: whether the gradients of x, weight and bias are wanted. That of x is added up over
            the processes, that of weight has the dtype `accumulate`, that of bias the type of the
            arithmetic.
        first: as in `losses`.
        classes: as in `losses`.
        ignored: the target of rows that count for nothing.
        smoothing: the label_smoothing.
        z_loss: the weight of lse^2.
        softcap: of `Head`.
        mode: of `Head`.
        chunk: of `Head`.
        accumulate: the dtype in which the gradient of the weight is added up over chunks.
        group: the name of the process group.

    Gradients that are not wanted here are made by `linear_losses_backward`; the others are scaled.
    """
    exchange, place = exchange_named(group, x), (first, classes, ignored, smoothing, z_loss)
    head = _head(x, weight, bias, mode, chunk, wanted, accumulate, None, softcap)
    rows, lse = _like_rows(x), _like_rows(x)
    shares = _shares(lse, factors, divisor)
    for part, logits in head:
        given = (logits, target[part], *place, class_weights)
        rows[part], lse[part] = _losses(exchange, *given)
        if any(wanted):
            upstream = shares if factors is None else shares[part]
            more = (target[part], lse[part], rows[part], upstream, class_weights, *place)
            _add_gradient(head, exchange, part, logits, *more)
    summed = (rows if factors is None else rows * factors).sum()
    summed = summed if divisor is None else summed / divisor
    return rows, summed, lse, *_gradients(head, exchange, x, (x.dtype, accumulate, wide(x)))


def _like_linear_gradients(x: Any, weight: Any, target: Any, bias: Any, *rest: Any) -> Any:
    return _like_wanted((x, weight, bias), rest[4], (x.dtype,) * 3)


@_operator(_like_linear_gradients)
def linear_losses_backward(
    x: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    class_weights: torch.Tensor | None,
    lse: torch.Tensor,
    rows: torch.Tensor,
    upstream: torch.Tensor,
    wanted: list[int],
    first: int,
    classes: int,
    ignored: int,
    smoothing: float,
    z_loss: float,
    softcap: float | None,
    mode: str,
    chunk: int | None,
    accumulate: torch.dtype,
    group: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of x, weight and bias, of logits that are made again.

    The arguments are those of `linear_losses`, what it returned, and `upstream`, one a row or one
    for all.
    """
    exchange, place = exchange_named(group, x), (first, classes, ignored, smoothing, z_loss)
    head = _head(x, weight, bias, mode, chunk, wanted, accumulate, None, softcap)
    g = upstream.detach().expand(rows.shape)
    for part, logits in head:
        of_rows = (lse.detach()[part], rows.detach()[part], g[part])
        more = (target[part], *of_rows, class_weights, *place)
        _add_gradient(head, exchange, part, logits, *more)
    dx, dweight, dbias = _gradients(head, exchange, x, (x.dtype,) * 3)
    return dx, dweight, dbias


def _head(x: Any, weight: Any, bias: Any, *rest: Any) -> Head:
    """Return the last layer, which nobody tracks here."""
    return Head(x.detach(), weight.detach(), None if bias is None else bias.detach(), *rest)


def _add_gradient(
    head: Any,
    exchange: Any,
    part: slice,
    logits: Any,
    target: Any,
    lse: Any,
    rows: Any,
    upstream: Any,
    class_weights: Any,
    *place: Any,
) -> None:
    """Let logits become their gradient, and add what it makes."""
    of_rows = (target, lse, rows, upstream)
    if logits.numel() and class_weights is None:
        _of_rows(exchange, logits, logits, *of_rows, *place)
    elif logits.numel():
        _of_weighed_rows(exchange, logits, *of_rows, class_weights, *place)
    head.add(part, logits)


def _gradients(head: Any, exchange: Any, x: Any, dtypes: Any) -> Any:
    """Return the gradients that were made, in these dtypes; that of x is of all processes."""
    dx = None if head.dx is None else exchange.total(head.dx)
    return tuple(
        x.new_empty(0, dtype=dtype) if each is None else each.to(dtype)
        for each, dtype in zip((dx, head.dweight, head.dbias), dtypes, strict=True)
    )


def _keep_tokens(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, ids, ctx.number, of_rows, *ctx.options = inputs
    log_probs, lse, *entropy = output
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, ids, lse, log_probs, of_rows, *entropy)


def _of_tokens(ctx: Any, g: Any, _: Any, of_entropy: Any = None) -> tuple[Any, ...]:
    if g is None and of_entropy is None:
        return (None,) * 6
    x, ids, lse, log_probs, of_rows, *entropy = ctx.saved_tensors
    g = torch.zeros_like(log_probs) if g is None else g
    both = (None, None) if of_entropy is None else (*entropy, of_entropy)
    given = (x, ids, lse, log_probs, g, *both, ctx.number, of_rows, *ctx.options)
    return token_log_probs_backward(*given), *(None,) * 5


def _like_ids(x: Any, ids: Any, *_: Any) -> tuple[Any, Any]:
    return torch.empty(ids.shape, dtype=wide(x), device=x.device), _like_rows(x)


@_operator(_like_ids, _of_tokens, _keep_tokens)
def token_log_probs(
    x: torch.Tensor,
    ids: torch.Tensor,
    number: float | None,
    of_rows: torch.Tensor | None,
    first: int,
    group: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probabilities of ids, (..., k), and lse."""
    x, exchange, scale = x.detach(), exchange_named(group, x), _scale(number, of_rows)
    start = exchange.first_column(first, x)
    m, d, logits = exchange.pairs(x, scale, chosen(x, ids, start, scale))
    log_sum = torch.log(d)
    log_probs = (logits - m[..., None]) - log_sum[..., None]
    log_probs = log_probs.masked_fill_(logits == torch.inf, torch.nan)
    return log_probs.contiguous(), m + log_sum


@_operator(lambda x, ids, *_: (*_like_ids(x, ids), _like_rows(x)), _of_tokens, _keep_tokens)
def token_log_probs_entropy(
    x: torch.Tensor,
    ids: torch.Tensor,
    number: float | None,
    of_rows: torch.Tensor | None,
    first: int,
    group: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the log-probabilities of ids, (..., k), lse, and the entropy: x is read once.

    The log-probabilities are off by the rounding of lse.
    """
    x, exchange, scale = x.detach(), exchange_named(group, x), _scale(number, of_rows)
    start = exchange.first_column(first, x)
    entropy, lse, logits = exchange.entropy(x, scale, chosen(x, ids, start, scale))
    lse = lse.masked_fill(lse == torch.inf, torch.nan)
    log_probs = (logits - lse[..., None]).masked_fill_(logits == torch.inf, torch.nan)
    return log_probs.contiguous(), lse, entropy


@_operator(lambda x, *_: _like(x), sends=False)
def token_log_probs_backward(
    x: torch.Tensor,
    ids: torch.Tensor,
    lse: torch.Tensor,
    log_probs: torch.Tensor,
    upstream: torch.Tensor,
    entropy: torch.Tensor | None,
    of_entropy: torch.Tensor | None,
    number: float | None,
    of_rows: torch.Tensor | None,
    first: int,
    group: str,
) -> torch.Tensor:
    """Return dx, of log-probabilities and of entropies, which may be None with their upstream.

    The kernel wants columns of this shard. For those that are none here it gets others, whose
    elements are then put right.
    """
    if not x.numel():
        return _like(x)
    x, lse = x.detach(), lse.detach()
    temperature, scale = (number if of_rows is None else of_rows), _scale(number, of_rows)
    start = exchange_named(group, x).first_column(first, x)
    at, mine = nearest(x, ids, start)
    # An id of no process, or a row that is NaN anyway.
    g = upstream.detach().masked_fill(log_probs.isnan() & (upstream != 0), torch.nan)
    if entropy is not None and of_entropy is not None:
        entropy, of_entropy = entropy.detach(), of_entropy.detach()
    dx = local.token_log_probs_backward(x, at, lse, g, entropy, of_entropy, temperature)
    log_p = logits_at(x, at, scale) - lse[..., None]
    p = torch.exp(log_p)
    # Several ids of a row may be one column.
    hits = ((at[..., :, None] == at[..., None, :]) * (mine * g)[..., None, :]).sum(-1)
    right = hits - p * g.sum(-1, keepdim=True)
    if entropy is not None and of_entropy is not None:
        less = log_p.masked_fill_(p == 0, 0) + entropy[..., None]
        right = right - p * less * of_entropy[..., None]
    right = right if scale is None else right * scale_by_row(scale)
    return dx.scatter_(-1, at.to(torch.int64), right.to(dx.dtype)).contiguous()


def _scale(number: float | None, of_rows: Any) -> Any:
    """Return 1 / temperature: a number, one a row, or None for 1."""
    temperature = number if of_rows is None else of_rows
    return None if temperature is None else 1 / temperature
