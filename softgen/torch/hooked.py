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

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from softgen.call import api, gradients
from softgen.call.hooks import the_axis
from softgen.errors import NotSupportedError
from softgen.spec.hooks.dropout import kept_scale_of, threshold_of
from softgen.torch.dtypes import wide
from softgen.torch.gradients import Function, applied
from softgen.torch.rows import GradientOfRows

# In the order of an operator's arguments behind x. Numbers and words come behind them.
TENSORS = ("scale", "bias", "sink", "mask", "lengths")
DIFFERENTIABLE = TENSORS[:3]
LEAVING = ("out_scale", "dropout", "seed", "seed_offset")

Softmax = Callable[..., tuple[Any, Any]]


def softmax(x: Any, dim: int, dtype: Any, hooks: Mapping[str, Any]) -> Any:
    """Return softmax with hooks along a dimension, with autograd and under torch.compile."""
    axis = the_axis(x.dim(), dim)
    tensors, rest = separated(hooks)
    if axis != -1:
        rest["axis"] = axis
    wants_lse = _differentiated(tensors[2])
    if torch.compiler.is_compiling():
        if isinstance(rest.get("out_scale"), torch.Tensor):
            raise NotSupportedError(
                "out_scale is a number under torch.compile; multiply the result by a tensor"
            )
        from softgen.torch.hooked_operators import softmax as compiled

        return compiled(x, tensors, dtype, rest, wants_lse)
    run = applied(HookedSoftmax, x, *(each for each in tensors[:3] if each is not None))
    return run(x, *tensors, dtype, rest, wants_lse)[0]


def separated(hooks: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the hooks that are tensors, None where one is not given, and the others by name."""
    tensors = [hooks.get(name) for name in TENSORS]
    number = not isinstance(tensors[0], torch.Tensor)
    rest = {name: given for name, given in hooks.items() if name not in TENSORS}
    if number:
        rest |= {"scale": tensors[0]}
        tensors[0] = None
    return tensors, rest


def computed(x: Any, tensors: Any, dtype: Any, rest: Mapping[str, Any], wants_lse: bool) -> Any:
    """Return y, and lse or None, by the kernel."""
    given = {name: each for name, each in zip(TENSORS, tensors, strict=True) if each is not None}
    found = api.softmax(x, dtype=dtype, return_lse=wants_lse, **{**rest, **given})
    return found if wants_lse else (found, None)


class Kept(NamedTuple):
    """What a gradient asks for beside tensors.

    Attributes:
        rest: the hooks that are no tensors, and the axis if it is not the last.
        dtype: of x.
        bias_shape: of the bias, None without one.
        bias_dtype: likewise.
    """

    rest: dict[str, Any]
    dtype: Any
    bias_shape: Any
    bias_dtype: Any


class HookedSoftmax(Function):
    """softmax with hooks; y, and lse where the gradient of a sink asks for it."""

    @staticmethod
    def forward(x: Any, *request: Any) -> tuple[Any, Any]:
        """Return y and lse."""
        *tensors, dtype, rest, wants_lse = request
        plain = [each if each is None else each.detach() for each in tensors]
        found: tuple[Any, Any] = computed(x.detach(), plain, dtype, rest, wants_lse)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save what the gradient asks for."""
        x, *tensors, _, rest, _ = inputs
        if output[1] is not None:
            ctx.mark_non_differentiable(output[1])
        keep(ctx, x, tensors, rest, output)

    @staticmethod
    def backward(ctx: Any, dy: Any, _: Any) -> tuple[Any, ...]:
        """Return dx, and what is asked for of dscale, dbias and dsink."""
        saved = ctx.saved_tensors  # once: a checkpoint gives each of them once
        run = applied(HookedGradient, dy, *(each for each in saved if each is not None))
        found = run(dy, ctx.kept, ctx.needs_input_grad, *saved)
        return (*found, *[None] * (len(TENSORS) - len(DIFFERENTIABLE) + 3))


class HookedGradient(GradientOfRows):
    """Those gradients."""

    of = "softmax with hooks"

    @staticmethod
    def forward(dy: Any, kept: Kept, needs: tuple[bool, ...], *saved: Any) -> tuple[Any, ...]:
        """Return dx, dscale, dbias and dsink."""
        plain = [each if each is None else each.detach() for each in saved]
        return gradients_of(
            *(dy.detach(), plain, kept, needs), computed, gradients.softmax_backward
        )


def keep(ctx: Any, x: Any, tensors: Any, rest: Mapping[str, Any], output: Any) -> None:
    """Save what `gradients_of` asks for."""
    y, lse = output
    leaves = leaving(rest)
    needs_x = leaves or rest.get("softcap") is not None or ctx.needs_input_grad[1]
    scale, bias, sink, mask, lengths = tensors
    again = [bias, mask, lengths] if leaves else [None] * 3
    like = (None, None) if bias is None else (bias.shape, bias.dtype)
    ctx.kept = Kept(dict(rest), x.dtype, *like)
    ctx.save_for_backward(x if needs_x else None, y, lse, scale, sink, *again)


def leaving(rest: Mapping[str, Any]) -> bool:
    """Whether results are modified."""
    return rest.get("out_scale") is not None or bool(rest.get("dropout"))


def gradients_of(
    dy: Any,
    saved: Any,
    kept: Kept,
    needs: tuple[bool, ...],
    softmax: Softmax,
    softmax_backward: Any,
) -> tuple[Any, ...]:
    """Return dx, dscale, dbias and dsink, None for what nobody asks for.

    Args:
        dy: of the result.
        saved: the tensors that `keep` saved.
        kept: what else it did.
        needs: whether somebody asks for them.
        softmax: as `computed`.
        softmax_backward: as `softgen.softmax_backward`.
    """
    x, y, lse, scale, sink, bias, mask, lengths = saved
    rest, dtype = kept.rest, kept.dtype
    axis = rest.get("axis", -1)
    p = y
    if leaving(rest):
        entering = {name: each for name, each in rest.items() if name not in LEAVING}
        p, _ = softmax(x, (scale, bias, sink, mask, lengths), y.dtype, entering, False)
        dropped = threshold_of(rest.get("dropout", 0.0))
        given = rest.get("out_scale")
        weight = kept_scale_of(dropped) * (1.0 if given is None else _of_rows(given, y, axis))
        dy = dy * weight * (y != 0)
    dz = softmax_backward(dy, p, axis, dtype=dtype)
    dbias = dsink = dscale = None
    if needs[2]:
        dbias = dz.sum_to_size(kept.bias_shape).to(kept.bias_dtype)
    if needs[3]:
        total = (dy * p).sum(axis, dtype=wide(y))
        share = torch.where(lse == -torch.inf, 0, torch.exp(sink - lse))  # of no row at all
        dsink = -(share * total).sum_to_size(sink.shape).to(sink.dtype)
    factor = rest.get("scale") if scale is None else _of_rows(scale, y, axis)
    if rest.get("softcap") is not None:
        c = rest["softcap"]
        scaled = x if factor is None else x * factor
        dz = (dz * (1 - torch.tanh(scaled / c).square())).to(dtype)
    if needs[1]:
        # What is hidden may be no number, and has no part in it.
        parts = torch.where(dz == 0, 0, dz * x)
        dscale = parts.sum(axis, dtype=scale.dtype).sum_to_size(scale.shape)
    dx = None
    if needs[0]:
        dx = dz if factor is None else (dz * factor).to(dtype)
    return dx, dscale, dbias, dsink


def _of_rows(given: Any, y: Any, axis: int) -> Any:
    """Return a number, or what broadcasts over the rows of y as what broadcasts to y."""
    if not isinstance(given, torch.Tensor):
        return given
    behind = y.dim() - 1 - axis % y.dim() if y.dim() else 0
    at = given.dim() - behind
    return given.unsqueeze(at) if at >= 0 else given


def _differentiated(sink: Any) -> bool:
    return sink is not None and sink.requires_grad and torch.is_grad_enabled()
