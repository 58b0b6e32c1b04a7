"""Losses of hidden states: the logits are made a chunk of rows at a time, and never all of them.

Where a gradient is wanted of a sum or a mean, the pass that computes a chunk's losses computes its
gradients too; the backward pass scales them. Gradients of losses of rows, of float16
and of log-probabilities are computed in the backward pass, which makes the logits again: what each
row is times is known only there, and numbers of float16 that are not scaled yet may be too small.
Mode "fast" keeps the logits of the last chunk for it, in the memory that it takes anyway.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from softgen.call import gradients, losses, means, tokens
from softgen.call.eager import is_eager
from softgen.call.library import library_of
from softgen.call.scalars import whole
from softgen.errors import InvalidValueError
from softgen.problems.dtypes import DType
from softgen.problems.functions.cross_entropy import IGNORE_INDEX
from softgen.torch.chunks import Head, require_mode
from softgen.torch.dtensor import there
from softgen.torch.dtypes import dtype_of_loss, wide
from softgen.torch.layers import given_layer, integers, require_fitting, softcap_of
from softgen.torch.losses import class_weights, numbers_of
from softgen.torch.operators import temperature_of
from softgen.torch.registry import (
    Operator,
    Tensor,
    is_compiling,
    is_grad_enabled,
    registered,
    tuning,
)


def linear_cross_entropy(
    input: Any,  # the names are torch's
    linear_weight: Any,
    target: Any,
    *,
    linear_bias: Any = None,
    weight: Any = None,
    reduction: str = "mean",
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    num_items: Any = None,
    valid_rows: int | None = None,
    mode: str = "fast",
    chunk: int | None = None,
    accumulate: Any = None,
    dtype: Any = None,
) -> Any:
    """Return cross_entropy(input @ linear_weight.T + linear_bias, target) without all the logits.

    Args:
        input: hidden states (..., hidden); float16, bfloat16, float32 or float64. Under
            torch.autocast the products are of its dtype, as those of F.linear.
        linear_weight: (classes, hidden), of input's dtype.
        target: the class of each row, int64 or int32, of input's shape without the last dimension.
        linear_bias: (classes,), of input's dtype.
        weight: what the loss of each class is times, as in `softgen.cross_entropy`. With
            label_smoothing two more chunks are in memory, in float32 (float64 for float64), and
            with softcap three: up to two thirds of the logits in mode "lean".
        reduction: "mean", "sum" or "none".
        ignore_index: a target that counts for nothing.
        label_smoothing: as in PyTorch.
        softcap: logits become softcap * tanh(logits / softcap).
        z_loss: the weight of lse^2, which is added to the loss of each row.
        num_items: what a mean divides the sum by, in place of the number of rows that count: a
            number or a tensor of one element. For a mean over several calls.
        valid_rows: how many targets are not ignore_index, where the host knows: the other rows
            are left out of the products. Any rows beyond so many are left out too.
        mode: "fast": chunks of up to 4096 rows. "lean": at most a tenth of the logits beyond
            inputs and gradients, above 100 rows.
        chunk: rows of a chunk, in place of the mode's.
        accumulate: the dtype in which the gradient of linear_weight is added up over chunks; that
            of linear_weight by default. torch.float32 takes as much memory more.
        dtype: of the loss; that of the logits by default, and under torch.autocast float32 for
            those of 16 bits.

    Returns:
        The loss: a number, or one of each row in the shape of target.

    Gradients are of input, linear_weight and linear_bias, and products are made of those that are
    wanted. They are not differentiable again. A mean does not wait for the GPU. A target that is
    no class gives NaN. Raises InvalidTypeError, InvalidValueError or NotSupportedError.
    """
    x, head, bias = given_layer(input, linear_weight, linear_bias)
    dtype = dtype_of_loss(dtype, x)
    require_mode(mode, chunk)
    losses.require_reduction(reduction)
    require_fitting(x, head, target, reduction, num_items, accumulate)
    if weight is not None:
        weight = class_weights(weight, head.shape[:1], head)
    ignored, smoothing, z_loss = numbers_of(ignore_index, label_smoothing, z_loss)
    softcap = softcap_of(softcap)
    x, target, kept = flat_rows(x, target, ignored, valid_rows)
    wanted = [int(_is_wanted(each)) for each in (x, head, bias)]
    of_sum = reduction != "none"
    divisor = divisor_of(reduction, num_items, target, ignored, weight, head)
    ahead = of_sum and any(wanted) and x.dtype is not torch.float16
    options = (ignored, smoothing, softcap, z_loss, mode, chunk, accumulate or head.dtype)
    hold = not ahead and _holds(mode, x, head, bias)
    request = (of_sum, wanted if ahead else [0] * 3, hold, *options)
    loss = LinearCrossEntropy.call(x, head, target, bias, weight, divisor, *request)[0]
    return (loss if of_sum else of_all_rows(loss, kept, input.shape[:-1])).to(dtype)


def linear_token_log_probs(
    input: Any,
    linear_weight: Any,
    ids: Any,
    *,
    linear_bias: Any = None,
    temperature: Any = None,
    return_lse: bool = False,
    return_entropy: bool = False,
    mode: str = "fast",
    chunk: int | None = None,
) -> Any:
    """Return the log-probabilities of ids under input @ linear_weight.T + linear_bias.

    As token_log_probs of the logits, which are made a chunk of rows at a time, here and in the
    gradient.

    Args:
        input: hidden states (..., hidden), as in `linear_cross_entropy`.
        linear_weight: (classes, hidden), of input's dtype.
        ids: as in `softgen.torch.token_log_probs`: one a row, or up to 64, in one more dimension.
        linear_bias: (classes,), of input's dtype.
        temperature: above 0: a number, or a tensor that broadcasts over the rows. It has no
            gradient.
        return_lse: whether to return log(sum(exp(logits / temperature))) of each row too. It has
            no gradient.
        return_entropy: whether to return the entropy of each row too.
        mode: as in `linear_cross_entropy`.
        chunk: as in `linear_cross_entropy`.

    Returns:
        A tensor of ids' shape, float32 (float64 for float64), or a tuple of it, lse and the
        entropies, of what is asked for.

    The gradients are not differentiable again. Raises what `softgen.token_log_probs` raises.
    """
    x, head, bias = given_layer(input, linear_weight, linear_bias)
    require_mode(mode, chunk)
    integers("ids", ids)
    shape = input.shape[:-1]
    if ids.shape[: len(shape)] != shape or ids.dim() > len(shape) + 1:
        raise InvalidValueError(
            f"ids must have the shape {tuple(shape)}, or one dimension more, got {tuple(ids.shape)}"
        )
    number, of_rows = temperature_of(temperature, x)
    if of_rows is not None:
        of_rows = of_rows.expand(shape).reshape(-1)
    flat = ids.reshape(-1, *ids.shape[len(shape) :])
    options = (number, return_entropy, _holds(mode, x, head, bias), mode, chunk)
    log_probs, lse, entropy, _ = LinearTokenLogProbs.call(
        x.reshape(shape.numel(), x.shape[-1]), head, flat, bias, of_rows, *options
    )
    rows = [each for each, asked in ((lse, return_lse), (entropy, return_entropy)) if asked]
    log_probs = log_probs.reshape(ids.shape)
    return (log_probs, *(each.reshape(shape) for each in rows)) if rows else log_probs


def flat_rows(x: Any, target: Any, ignored: int, valid_rows: int | None) -> tuple[Any, Any, Any]:
    """Return hidden states and targets as rows: those that count, and which they are, or None."""
    x, target = x.reshape(target.numel(), x.shape[-1]), target.reshape(-1)
    if valid_rows is None:
        return x, target, None
    if not is_compiling() and whole("valid_rows", valid_rows) < 0:
        raise InvalidValueError(f"valid_rows must be 0 or more, got {valid_rows}")
    kept = torch.argsort((target == ignored).int(), stable=True)[:valid_rows]
    return x.index_select(0, kept), target.index_select(0, kept), kept


def of_all_rows(loss: Any, kept: Any, shape: torch.Size) -> Any:
    """Return the losses of `flat_rows` in the shape of the targets: 0 for rows left out."""
    if kept is not None:
        loss = loss.new_zeros(shape.numel()).index_copy(0, kept, loss)
    return loss.reshape(shape)


def divisor_of(
    reduction: str, num_items: Any, target: Any, ignored: int, weight: Any, head: Any
) -> Any:
    """Return what divides the sum, or None for 1. It is beside the last layer: no host waits."""
    if num_items is not None:
        if not isinstance(num_items, Tensor):
            return torch.full((), num_items, dtype=wide(head), device=head.device)
        return num_items.detach().reshape(()).to(head.device, wide(head), non_blocking=True)
    if reduction != "mean":
        return None
    counts = target != ignored
    if weight is not None:
        counts = losses.weights_of(weight, target, ignored, weight.shape[0])
    return counts.sum().to(wide(head))


def _is_wanted(each: Any) -> bool:
    return each is not None and is_grad_enabled() and each.requires_grad


def _holds(mode: str, x: Any, *more: Any) -> bool:
    """Whether logits are kept for the backward pass, which overwrites them: no graph may know."""
    wanted = any(map(_is_wanted, (x, *more)))
    return mode == "fast" and wanted and not is_compiling() and is_eager(x)


class _OfHidden(Operator):
    """Base of functions of hidden states; tangents are refused."""

    @staticmethod
    def held(ctx: Any) -> Any:
        """Return the logits that the forward pass kept, once: they are overwritten."""
        held, ctx.held = ctx.held, None
        return None if is_grad_enabled() or is_compiling() else there(held)

    @classmethod
    def vmap(cls, size: int, *arguments: Any) -> Any:
        """Return the results of a batch, one after another: each may have a weight of its own."""
        found = [
            cls.call(*(each[i] if isinstance(each, Tensor) else each for each in arguments))
            for i in range(size)
        ]
        together = zip(*found, strict=True)
        return tuple(None if each[0] is None else torch.stack(each) for each in together)


def _like_wanted(given: Sequence[Any], dtypes: Sequence[Any], wanted: Sequence[int]) -> list[Any]:
    """Return contiguous tensors like those whose gradient is wanted, and None for the others."""
    return [
        torch.empty(each.shape, dtype=dtype, device=each.device) if want else None
        for each, dtype, want in zip(given, dtypes, wanted, strict=True)
    ]


def scaled_by(made: Any, g: Any, dtype: Any) -> Any:
    """Return a gradient times g, of a dtype; it takes the memory of what is scaled.

    What is recorded would be changed behind the recorder's back, so it is copied. Numbers of 16
    bits are multiplied in float32.
    """
    if there(made) is None:
        return None
    g = g.reshape(1).to(wide(made))
    if is_compiling() or not is_eager(made, g):
        return (made * g).to(dtype)
    _scaler(made.dtype, made.device)(made, g, made.numel())
    return made.to(dtype)


@functools.cache
def _scaler(dtype: Any, device: Any) -> Callable[[Any, Any, int], None]:
    """Return what multiplies gradients of a dtype where they are."""
    library, x = library_of(torch.empty(0, dtype=dtype, device=device))
    return means.scaler(library, DType.of(dtype), library.device(x))


def _softcaps(
    softcap: float | None, smoothing: float, class_weights: Any
) -> tuple[float | None, float | None]:
    """Return the softcap of a `Head`, and that of kernels: smoothed weights have none there."""
    return (softcap, None) if smoothing and class_weights is not None else (None, softcap)


@registered("linear_cross_entropy_backward")
class LinearCrossEntropyBackward(_OfHidden):
    """The gradients, of logits that are made again."""

    of = "linear_cross_entropy"

    @staticmethod
    def launch(
        x: torch.Tensor,
        weight: torch.Tensor,
        target: torch.Tensor,
        bias: torch.Tensor | None,
        class_weights: torch.Tensor | None,
        lse: torch.Tensor,
        g: torch.Tensor,
        held: torch.Tensor | None,
        wanted: list[int],
        ignored: int,
        smoothing: float,
        softcap: float | None,
        z_loss: float,
        mode: str,
        chunk: int | None,
        accumulate: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return those of x, weight and bias that are wanted, of the dtype of each.

        Args:
            x: hidden states (rows, hidden).
            weight: (classes, hidden).
            target: (rows,).
            bias: (classes,), or None.
            class_weights: (classes,), or None.
            lse: of the rows, as the forward pass returned it.
            g: the gradient with respect to the sum, or to the loss of each row.
            held: the memory of the last chunk's logits, which is overwritten, or None.
            wanted: of x, weight and bias.
            ignored: the target of rows that count for nothing.
            smoothing: the label_smoothing.
            softcap: of the logits, or None.
            z_loss: the weight of lse^2.
            mode: "fast" or "lean".
            chunk: rows of a chunk, or None.
            accumulate: the dtype in which the gradient of the weight is added up.
        """
        by_head, by_kernel = _softcaps(softcap, smoothing, class_weights)
        head = Head(x, weight, bias, mode, chunk, wanted, accumulate, held, by_head)
        g = g.to(lse.dtype)
        for part, logits in reversed(head):
            losses.cross_entropy_backward(
                *(logits, target[part], lse[part], g[part] if g.dim() else g),
                ignore_index=ignored,
                label_smoothing=smoothing,
                z_loss=z_loss,
                weight=class_weights,
                softcap=by_kernel,
                out=logits,
                tune=tuning(),
            )
            head.add(part, logits)
        dweight, dbias = head.dweight, head.dbias
        return (
            head.dx,
            None if dweight is None else dweight.to(weight.dtype),
            None if dbias is None or bias is None else dbias.to(bias.dtype),
        )

    @staticmethod
    def fake(x: Any, weight: Any, target: Any, bias: Any, *rest: Any) -> Any:
        """Return tensors like them."""
        return tuple(_like_wanted((x, weight, bias), (x.dtype,) * 3, rest[4]))


@registered("linear_cross_entropy")
class LinearCrossEntropy(_OfHidden):
    """The losses or their sum, lse, the gradients of a sum that are wanted here, and logits."""

    of = "linear_cross_entropy"

    @staticmethod
    def launch(
        x: torch.Tensor,
        weight: torch.Tensor,
        target: torch.Tensor,
        bias: torch.Tensor | None,
        class_weights: torch.Tensor | None,
        divisor: torch.Tensor | None,
        of_sum: bool,
        wanted: list[int],
        hold: bool,
        ignored: int,
        smoothing: float,
        softcap: float | None,
        z_loss: float,
        mode: str,
        chunk: int | None,
        accumulate: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return loss and lse in the type of the arithmetic, and the gradients that are wanted.

        If `hold`, the memory of the last chunk's logits too.
        Loss and gradients are divided by `divisor`, which has no dimensions. The gradient of the
        weight is of the dtype `accumulate`, that of the bias in the type of the arithmetic. Other
        arguments are as in LinearCrossEntropyBackward.
        """
        by_head, by_kernel = _softcaps(softcap, smoothing, class_weights)
        head = Head(x, weight, bias, mode, chunk, wanted, accumulate, softcap=by_head)
        gradient = any(wanted)
        found, lse = (x.new_empty(x.shape[:1], dtype=wide(x)) for _ in range(2))
        upstream: Any = 1.0 if divisor is None else divisor.reciprocal()
        options: dict[str, Any] = {
            "ignore_index": ignored,
            "label_smoothing": smoothing,
            "z_loss": z_loss,
            "weight": class_weights,
            "softcap": by_kernel,
            "tune": tuning(),
        }
        for part, logits in head:
            request = (logits, target[part])
            if gradient:
                _, found[part], lse[part] = losses.cross_entropy_grad(
                    *request, upstream, out=logits, **options
                )
                head.add(part, logits)
            else:
                found[part], lse[part] = losses.cross_entropy(
                    *request, reduction="none", return_lse=True, **options
                )
        loss = found.sum() if of_sum else found
        loss = loss if divisor is None else loss / divisor
        return loss, lse, head.dx, head.dweight, head.dbias, head.held if hold else None

    @staticmethod
    def fake(x: Any, weight: Any, target: Any, bias: Any, *rest: Any) -> Any:
        """Return tensors like them."""
        _, _, of_sum, wanted, *_, accumulate = rest
        lse = torch.empty(target.shape, dtype=wide(x), device=x.device)
        dtypes = (x.dtype, accumulate, wide(x))
        made = _like_wanted((x, weight, bias), dtypes, wanted)
        return lse.new_empty(()) if of_sum else torch.empty_like(lse), lse, *made, None

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the inputs and lse, and keep the gradients that were made."""
        x, weight, target, bias, class_weights, divisor, _, wanted, _, *ctx.options = inputs
        _, lse, *made, ctx.held = output
        ctx.mark_non_differentiable(*(each for each in output[1:] if each is not None))
        ctx.set_materialize_grads(False)  # or zeros for each of them are written
        # Not among the saved tensors: the first backward pass scales them where they are.
        ctx.made, ctx.dtype = made if any(wanted) else None, x.dtype
        ctx.save_for_backward(x, weight, target, bias, class_weights, lse, divisor)

    @staticmethod
    def backward(ctx: Any, g: Any, *_: Any) -> tuple[Any, ...]:
        """Return the gradients: those that were made, scaled, or, a second time, made again."""
        if g is None:
            return (None,) * 16
        needs = ctx.needs_input_grad
        wanted = [int(needs[i]) for i in (0, 1, 3)]
        made = None
        if not is_grad_enabled():
            made, ctx.made = ctx.made, None
        if made is None or any(
            want and there(each) is None for want, each in zip(wanted, made, strict=True)
        ):
            *saved, divisor = ctx.saved_tensors
            g = g if divisor is None else g / divisor
            found = LinearCrossEntropyBackward.call(
                *saved, g, _OfHidden.held(ctx), wanted, *ctx.options
            )
        else:
            found = [scaled_by(each, g, ctx.dtype) for each in made]
        dx, dweight, dbias = (
            each if want else None for each, want in zip(found, wanted, strict=True)
        )
        return dx, dweight, None, dbias, *(None,) * 12


@registered("linear_token_log_probs_backward")
class LinearTokenLogProbsBackward(_OfHidden):
    """The gradients, of logits that are made again."""

    of = "linear_token_log_probs"

    @staticmethod
    def launch(
        x: torch.Tensor,
        weight: torch.Tensor,
        ids: torch.Tensor,
        bias: torch.Tensor | None,
        temperatures: torch.Tensor | None,
        lse: torch.Tensor,
        upstream: torch.Tensor,
        entropy: torch.Tensor | None,
        of_entropy: torch.Tensor | None,
        held: torch.Tensor | None,
        wanted: list[int],
        temperature: float | None,
        mode: str,
        chunk: int | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return those of x, weight and bias that are wanted, of the dtype of each."""
        head = Head(x, weight, bias, mode, chunk, wanted, held=held)
        rows = (lse, upstream, entropy, of_entropy)
        for part, logits in reversed(head):
            gradients.token_log_probs_backward(
                *(logits, ids[part], *(None if each is None else each[part] for each in rows)),
                temperature=temperature if temperatures is None else temperatures[part],
                out=logits,
                tune=tuning(),
            )
            head.add(part, logits)
        dbias = head.dbias
        return head.dx, head.dweight, None if dbias is None else dbias.to(x.dtype)

    @staticmethod
    def fake(x: Any, weight: Any, ids: Any, bias: Any, *rest: Any) -> Any:
        """Return tensors like them."""
        return tuple(_like_wanted((x, weight, bias), (x.dtype,) * 3, rest[6]))


@registered("linear_token_log_probs")
class LinearTokenLogProbs(_OfHidden):
    """Log-probabilities of ids in the type of the arithmetic, lse, and what is asked for.

    That is the entropies, and the memory of the last chunk's logits.

    Of two temperatures one is None: a number, or one of each row.
    """

    of = "linear_token_log_probs"

    @staticmethod
    def launch(
        x: torch.Tensor,
        weight: torch.Tensor,
        ids: torch.Tensor,
        bias: torch.Tensor | None,
        temperatures: torch.Tensor | None,
        temperature: float | None,
        return_entropy: bool,
        hold: bool,
        mode: str,
        chunk: int | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return them, float32 (float64 for float64)."""
        made = [torch.empty(ids.shape, dtype=wide(x), device=x.device)]
        made += [x.new_empty(x.shape[:1], dtype=wide(x)) for _ in range(1 + return_entropy)]
        head = Head(x, weight, bias, mode, chunk)
        for part, logits in head:
            found = tokens.token_log_probs(
                *(logits, ids[part]),
                temperature=temperature if temperatures is None else temperatures[part],
                return_lse=True,
                return_entropy=return_entropy,
                tune=tuning(),
            )
            for whole_of, each in zip(made, found, strict=True):
                whole_of[part] = each
        log_probs, lse, *entropy = made
        return log_probs, lse, entropy[0] if entropy else None, head.held if hold else None

    @staticmethod
    def fake(x: Any, weight: Any, ids: Any, bias: Any, *rest: Any) -> Any:
        """Return tensors like them."""
        made = torch.empty(ids.shape, dtype=wide(x), device=x.device)
        rows = [torch.empty(x.shape[:1], dtype=wide(x), device=x.device) for _ in range(2)]
        return made, rows[0], rows[1] if rest[2] else None, None

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the inputs and the results of rows."""
        x, weight, ids, bias, temperatures, number, returned, _, *chunks = inputs
        _, lse, entropy, ctx.held = output
        ctx.mark_non_differentiable(*(each for each in (lse, ctx.held) if each is not None))
        ctx.set_materialize_grads(False)
        ctx.options = (number, *chunks)
        saved = (lse, entropy if returned else None)
        ctx.save_for_backward(x, weight, ids, bias, temperatures, *saved)

    @staticmethod
    def backward(ctx: Any, upstream: Any, *rest: Any) -> tuple[Any, ...]:
        """Return the gradients that are wanted."""
        of_entropy = rest[1]
        *inputs, lse, entropy = ctx.saved_tensors
        needs = ctx.needs_input_grad
        wanted = [int(needs[i]) for i in (0, 1, 3)]
        if upstream is None and of_entropy is None:
            return (None,) * 10
        if upstream is None:
            upstream = torch.zeros(inputs[2].shape, dtype=lse.dtype, device=lse.device)
        entropy = None if of_entropy is None else entropy
        rows = (lse, upstream, entropy, of_entropy, _OfHidden.held(ctx))
        found = LinearTokenLogProbsBackward.call(*inputs, *rows, wanted, *ctx.options)
        dx, dweight, dbias = (
            each if want else None for each, want in zip(found, wanted, strict=True)
        )
        return dx, dweight, None, dbias, *(None,) * 6
