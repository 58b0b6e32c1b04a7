"""softmax with hooks: the kernel forward, and a gradient of its kernel and PyTorch's operations.

With p the softmax of z, what hooks made of x, and y = w p, where w is 0 for what is dropped and
else `out_scale` times what makes up for it:

    dz = p (w dy - S), with S = sum(w dy p): softmax_backward(w dy, p)
    dbias = dz, summed over what bias is broadcast over
    dsink = -exp(sink - lse) S, summed likewise
    dx = dz (1 - tanh(scale x / c)^2) scale, and dscale = sum(dz (1 - tanh(scale x / c)^2) x)

w is the same as in the forward pass: y is 0 where it is. p is y without dropout and out_scale, and
computed again with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from softgen.call import api
from softgen.call.hooks import NAMES, the_axis
from softgen.errors import InvalidTypeError
from softgen.names import unknown
from softgen.spec.hooks.dropout import kept_scale_of, threshold_of
from softgen.torch.dtypes import wide
from softgen.torch.operators import SoftmaxBackward
from softgen.torch.registry import Operator, Tensor, like_x, registered, tuning

# In the order of an operator's arguments. The first three have gradients.
TENSORS = ("scale", "bias", "sink", "mask", "lengths", "out_scale")
NUMBERS = (
    *("scale", "softcap", "causal", "causal_offset", "empty_rows", "out_scale"),
    *("dropout", "seed", "seed_offset"),
)
EITHER = ("scale", "out_scale")
LEAVING = ("out_scale", "dropout", "seed", "seed_offset")


def softmax(x: Any, dim: int, dtype: Any, hooks: Mapping[str, Any], invariant: Any) -> Any:
    """Return softmax with hooks along a dimension."""
    for name, given in hooks.items():
        if name not in NAMES:
            raise InvalidTypeError(unknown("argument", name, NAMES))
        if name in TENSORS and name not in EITHER and not isinstance(given, Tensor | None):
            raise InvalidTypeError(f"{name} must be a tensor, got {type(given).__qualname__}")
    given = {name: isinstance(hooks.get(name), Tensor) for name in NAMES}
    tensors = [hooks[name] if given[name] else None for name in TENSORS]
    numbers = [None if given[name] else _signed(hooks.get(name)) for name in NUMBERS]
    sink = hooks.get("sink")
    wants_lse = sink is not None and sink.requires_grad and torch.is_grad_enabled()
    request = (*numbers, the_axis(x.dim(), dim), dtype, wants_lse, invariant)
    return HookedSoftmax.call(x, *tensors, *request)[0]


def _signed(number: Any) -> Any:
    """Return 64 bits as an operator takes them."""
    return number - 2**64 if isinstance(number, int) and number >= 2**63 else number


def _named(tensors: Sequence[Any], numbers: Sequence[Any]) -> dict[str, Any]:
    """Return the hooks that are given, by name."""
    pairs = (*zip(NUMBERS, numbers, strict=True), *zip(TENSORS, tensors, strict=True))
    return {name: each for name, each in pairs if each is not None}


@registered("hooked_softmax_backward")
class HookedGradient(Operator):
    """dx, dscale, dbias and dsink, by the kernel and by operations that torch.compile sees."""

    of = "softmax with hooks"
    composite = True

    @staticmethod
    def launch(
        dy: torch.Tensor,
        y: torch.Tensor,
        x: torch.Tensor | None,
        lse: torch.Tensor | None,
        scale_rows: torch.Tensor | None,
        bias: torch.Tensor | None,
        sink: torch.Tensor | None,
        mask: torch.Tensor | None,
        lengths: torch.Tensor | None,
        out_scale_rows: torch.Tensor | None,
        scale: float | None,
        softcap: float | None,
        causal: bool | None,
        causal_offset: int | None,
        empty_rows: str | None,
        out_scale: float | None,
        dropout: float | None,
        seed: int | None,
        seed_offset: int | None,
        axis: int,
        dtype: torch.dtype,
        needs: list[bool],
        batch_invariant: bool | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return what is needed of them, of x's `dtype` and of that of each.

        A bias is here for its shape and type alone, unless results are modified.
        """
        numbers = (scale, softcap, causal, causal_offset, empty_rows, out_scale, dropout)
        leaves = out_scale is not None or out_scale_rows is not None or bool(dropout)
        p = y
        if leaves:
            tensors = (scale_rows, bias, sink, mask, lengths)
            request = (*numbers[:5], *[None] * 4, axis, y.dtype, False, batch_invariant)
            p, _ = HookedSoftmax.call(x, *tensors, None, *request)
            factor = _of_rows(out_scale if out_scale_rows is None else out_scale_rows, y, axis)
            weight = kept_scale_of(threshold_of(dropout or 0.0))
            dy = dy * (weight if factor is None else weight * factor) * (y != 0)
        dz = SoftmaxBackward.call(dy, p, axis, dtype, batch_invariant)
        dx = dscale = dbias = dsink = None
        if needs[2] and bias is not None:
            dbias = dz.sum_to_size(bias.shape).to(bias.dtype)
        if needs[3] and sink is not None and lse is not None:
            total = (dy * p).sum(axis, dtype=wide(y))
            share = torch.where(lse == -torch.inf, 0, torch.exp(sink - lse))  # of no row at all
            dsink = -(share * total).sum_to_size(sink.shape).to(sink.dtype)
        factor = scale if scale_rows is None else _of_rows(scale_rows, y, axis)
        if softcap is not None and x is not None:
            scaled = x if factor is None else x * factor
            dz = (dz * (1 - torch.tanh(scaled / softcap).square())).to(dtype)
        if needs[1] and scale_rows is not None:
            # What is hidden may be no number, and has no part in it.
            parts = torch.where(dz == 0, 0, dz * x)
            dscale = parts.sum(axis, dtype=scale_rows.dtype).sum_to_size(scale_rows.shape)
        if needs[0]:
            dx = dz if factor is None else (dz * factor).to(dtype)
        return dx, dscale, dbias, dsink

    @staticmethod
    def fake(dy: Any, y: Any, x: Any, lse: Any, *request: Any) -> Any:
        """Return tensors like them."""
        *_, dtype, needs, _ = request
        given = request[:3]
        like = [like_x(y, dtype=dtype), *(each if each is None else like_x(each) for each in given)]
        return tuple(each if needed else None for each, needed in zip(like, needs, strict=True))


@registered("hooked_softmax")
class HookedSoftmax(Operator):
    """softmax with hooks; y, and lse where the gradient of a sink asks for it."""

    of = "softmax with hooks"

    @staticmethod
    def launch(
        x: torch.Tensor,
        scale_rows: torch.Tensor | None,
        bias: torch.Tensor | None,
        sink: torch.Tensor | None,
        mask: torch.Tensor | None,
        lengths: torch.Tensor | None,
        out_scale_rows: torch.Tensor | None,
        scale: float | None,
        softcap: float | None,
        causal: bool | None,
        causal_offset: int | None,
        empty_rows: str | None,
        out_scale: float | None,
        dropout: float | None,
        seed: int | None,
        seed_offset: int | None,
        axis: int,
        dtype: torch.dtype,
        wants_lse: bool,
        batch_invariant: bool | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return y, and lse where it is wanted."""
        given = (scale_rows, bias, sink, mask, lengths, out_scale_rows)
        tensors = [each if each is None else each.detach() for each in given]
        numbers = (scale, softcap, causal, causal_offset, empty_rows, out_scale, dropout)
        found: Any = api.softmax(
            *(x.detach(), axis),
            dtype=dtype,
            tune=tuning(),
            batch_invariant=batch_invariant,
            return_lse=wants_lse,
            **_named(tensors, (*numbers, seed, seed_offset)),
        )
        return found if wants_lse else (found, None)

    @staticmethod
    def fake(x: Any, *request: Any) -> Any:
        """Return tensors like both."""
        *_, axis, dtype, wants_lse, _ = request
        rows = [n for i, n in enumerate(x.shape) if i != axis % max(1, x.dim())]
        lse = x.new_empty(rows, dtype=wide(x)) if wants_lse else None
        return like_x(x, dtype=dtype), lse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save what the gradient asks for."""
        x, scale, bias, sink, mask, lengths, out_scale, *numbers = inputs
        *numbers, axis, _, wants_lse, invariant = numbers
        named = _named(inputs[1:7], numbers)
        leaves = "out_scale" in named or bool(named.get("dropout"))
        y, lse = output
        if lse is not None:
            ctx.mark_non_differentiable(lse)
        needs_x = leaves or "softcap" in named or ctx.needs_input_grad[1]
        if not leaves:
            bias = bias if bias is None else bias.new_empty(()).expand(bias.shape)
            mask = lengths = None
        ctx.request = (*numbers, axis, x.dtype)
        ctx.invariant = invariant
        more = (lse if wants_lse else None, scale, bias)
        ctx.save_for_backward(y, x if needs_x else None, *more, sink, mask, lengths, out_scale)

    @staticmethod
    def backward(ctx: Any, dy: Any, _: Any) -> tuple[Any, ...]:
        """Return dx, and what is asked for of dscale, dbias and dsink."""
        needs = list(ctx.needs_input_grad[:4])
        found = HookedGradient.call(dy, *ctx.saved_tensors, *ctx.request, needs, ctx.invariant)
        asked = (each if needed else None for each, needed in zip(found, needs, strict=True))
        return (*asked, *[None] * (3 + len(NUMBERS) + 4))


def _of_rows(given: Any, y: Any, axis: int) -> Any:
    """Return a number, or what broadcasts over the rows of y as what broadcasts to y."""
    if not isinstance(given, torch.Tensor):
        return given
    behind = y.dim() - 1 - axis % y.dim() if y.dim() else 0
    at = given.dim() - behind
    return given.unsqueeze(at) if at >= 0 else given
