"""Rows of the table of operators: the functions along `dim`, those of tokens, and their gradients.

losses.py and hooked.py have the other rows, registry.py what a row becomes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from softgen.call import gradients, tokens
from softgen.call.dispatch import FunctionCalls, calls_of
from softgen.call.eager import is_eager
from softgen.errors import InvalidValueError
from softgen.torch.dtypes import wide
from softgen.torch.registry import (
    Operator,
    is_compiling,
    is_deterministic,
    is_grad_enabled,
    keep,
    launched,
    like_x,
    plain,
    registered,
    tuning,
    without_tangent,
)


class _OfResult(Operator):
    """Base of functions along `dim` whose gradient needs their result alone.

    Attributes:
        calls: of the function, past the checks of options in `softgen.call.api`.
        untracked_calls: those of `with_fast_call`, with entries of their own.
    """

    calls: FunctionCalls
    untracked_calls: TensorCalls

    @classmethod
    def launch(
        cls, x: torch.Tensor, dim: int, dtype: torch.dtype | None, batch_invariant: bool | None
    ) -> torch.Tensor:
        """Return the result, of `dtype`; x's by default, which spares the dispatcher 0.6 us."""
        return launched(cls.calls, x, (), dim, dtype, batch_invariant)

    @staticmethod
    def fake(x: Any, dim: int, dtype: Any, batch_invariant: Any) -> Any:
        """Return a tensor like the result."""
        return like_x(x, dtype=dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the result."""
        x, ctx.dim, dtype, ctx.invariant = inputs
        ctx.dtype = None if dtype is None else x.dtype
        keep(ctx, output)


class _GradientOfResult(Operator):
    """Base of the gradients of functions that are `_OfResult`.

    Attributes:
        calls: of the gradient, as in `_OfResult`.
        untracked_calls: as in `_OfResult`.
    """

    calls: FunctionCalls
    untracked_calls: TensorCalls

    @classmethod
    def launch(
        cls,
        dy: torch.Tensor,
        y: torch.Tensor,
        dim: int,
        dtype: torch.dtype | None,
        batch_invariant: bool | None,
    ) -> torch.Tensor:
        """Return dx, of `dtype`; dy's by default."""
        return launched(cls.calls, dy, (y,), dim, dtype, batch_invariant)

    @staticmethod
    def fake(dy: Any, y: Any, dim: int, dtype: Any, batch_invariant: Any) -> Any:
        """Return a tensor like the result."""
        return like_x(dy, dtype=dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save dy and y."""
        dy, y, ctx.dim, _, _ = inputs
        ctx.dtype = output.dtype
        keep(ctx, dy, y)


class TensorCalls(FunctionCalls):
    """Calls of tensors that autograd does not follow, along `dim`.

    A call that has an entry asks nothing but whether it is like the one before: the generated run
    finds out whether a kernel may be launched. What has no entry, and may not be launched, goes to
    the row's general `call`.
    """

    def __init__(self, function: str, otherwise: Callable[..., Any]) -> None:
        super().__init__(function)
        self.otherwise = otherwise

    def dispatch(self, request: Any, x: Any, out: Any, dim: Any, dtype: Any, *asked: Any) -> Any:
        """Return the result of a call that has no entry."""
        *_, invariant, rest = asked
        if is_eager(x, *rest):
            return super().dispatch(request, x, out, dim, dtype, *asked)
        return self.otherwise(x, *rest, dim, dtype, invariant)


def with_fast_call(row: Any) -> Any:
    """Put a faster `call` in the place of the one that `registered` gave a row along `dim`.

    It does the same. Tensors that autograd does not follow go to `row.untracked_calls`, whose
    generated run makes the checks that the general `call` makes first.
    """
    otherwise, tracked = row.call, row.tracked
    calls = row.untracked_calls = TensorCalls(row.calls.function, otherwise)

    def call(x: Any, dim: int, dtype: Any, invariant: bool | None) -> Any:
        if is_compiling():
            return otherwise(x, dim, dtype, invariant)
        if x.requires_grad and is_grad_enabled():
            return (tracked if is_eager(x) else otherwise)(x, dim, dtype, invariant)
        tune = "off" if is_deterministic() else None
        return calls[type(x)](x, None, dim, dtype, tune, None, invariant, ())

    def gradient(dy: Any, y: Any, dim: int, dtype: Any, invariant: bool | None) -> Any:
        if is_compiling() or (is_grad_enabled() and (dy.requires_grad or y.requires_grad)):
            return otherwise(dy, y, dim, dtype, invariant)
        if not dy.is_contiguous() and 0 in dy.stride():
            dy = dy.contiguous()  # of a sum: the call would copy it too, and keep no entry
        tune = "off" if is_deterministic() else None
        return calls[type(dy)](dy, None, dim, dtype, tune, None, invariant, (y,))

    row.call = staticmethod(gradient if issubclass(row, _GradientOfResult) else call)
    return row


@with_fast_call
@registered("softmax_backward")
class SoftmaxBackward(_GradientOfResult):
    """dx = y (dy - sum(dy y))."""

    of = "softmax"
    calls = calls_of("softmax_backward")

    @staticmethod
    def backward(ctx: Any, g: Any) -> tuple[Any, ...]:
        """Return the gradients with respect to dy and y, by PyTorch's own operations."""
        dy, y = ctx.saved_tensors
        g, dim = g.to(y.dtype), ctx.dim
        weighed = (g * y).sum(dim, keepdim=True)
        of_y = g * (dy - (dy * y).sum(dim, keepdim=True)) - dy * weighed
        return y * (g - weighed), of_y, None, None, None

    @staticmethod
    def tangent(ctx: Any, of_dy: Any, of_y: Any, *_: Any) -> Any:
        """Return the tangent of dx."""
        dy, y = map(without_tangent, ctx.saved_tensors)
        total, dim = (dy * y).sum(ctx.dim, keepdim=True), ctx.dim
        moved = (of_dy * y + dy * of_y).sum(dim, keepdim=True)
        return (of_y * (dy - total) + y * (of_dy - moved)).to(ctx.dtype)


@with_fast_call
@registered("log_softmax_backward")
class LogSoftmaxBackward(_GradientOfResult):
    """dx = dy - exp(y) sum(dy)."""

    of = "log_softmax"
    calls = calls_of("log_softmax_backward")

    @staticmethod
    def backward(ctx: Any, g: Any) -> tuple[Any, ...]:
        """Return the gradients with respect to dy and y, by PyTorch's own operations."""
        dy, y = ctx.saved_tensors
        g, dim, p = g.to(y.dtype), ctx.dim, torch.exp(y)
        of_dy = g - (g * p).sum(dim, keepdim=True)
        return of_dy, -g * p * dy.sum(dim, keepdim=True), None, None, None

    @staticmethod
    def tangent(ctx: Any, of_dy: Any, of_y: Any, *_: Any) -> Any:
        """Return the tangent of dx."""
        dy, y = map(without_tangent, ctx.saved_tensors)
        total, moved = (each.sum(ctx.dim, keepdim=True) for each in (dy, of_dy))
        return (of_dy - torch.exp(y) * (of_y * total + moved)).to(ctx.dtype)


@with_fast_call
@registered("softmax")
class Softmax(_OfResult):
    """softmax."""

    of = "softmax"
    calls = calls_of("softmax")

    @staticmethod
    def backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
        """Return dx, of x's dtype."""
        (y,) = ctx.saved_tensors
        dx = SoftmaxBackward.call(dy, y, ctx.dim, ctx.dtype, ctx.invariant)
        return dx, None, None, None

    @staticmethod
    def tangent(ctx: Any, t: Any, *_: Any) -> Any:
        """Return y (t - sum(t y)): the gradient is symmetric."""
        (y,) = ctx.saved_tensors
        return SoftmaxBackward.call(t.to(y.dtype), y, ctx.dim, y.dtype, ctx.invariant)


@with_fast_call
@registered("log_softmax")
class LogSoftmax(_OfResult):
    """log_softmax."""

    of = "log_softmax"
    calls = calls_of("log_softmax")

    @staticmethod
    def backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
        """Return dx, of x's dtype."""
        (y,) = ctx.saved_tensors
        dx = LogSoftmaxBackward.call(dy, y, ctx.dim, ctx.dtype, ctx.invariant)
        return dx, None, None, None

    @staticmethod
    def tangent(ctx: Any, t: Any, *_: Any) -> Any:
        """Return t - sum(p t)."""
        (y,) = ctx.saved_tensors
        t = t.to(y.dtype)
        return t - (torch.exp(y) * t).sum(ctx.dim, keepdim=True)


# Functions with a result a row. Their `dim` is a list of dimensions, from 0 on and rising. It is
# empty only for a tensor without dimensions.


def _like_rows(x: Any, dim: list[int]) -> Any:
    """Return an empty tensor with an element a row, in the type of the arithmetic."""
    rows = [size for i, size in enumerate(x.shape) if i not in dim]
    return torch.empty(rows, dtype=wide(x), device=x.device)


def _axis(dim: list[int]) -> Any:
    """Return dimensions as calls take them: one is the same int in each, and known at a glance."""
    return dim[0] if len(dim) == 1 else tuple(dim) or None


def _kept(rows: Any, dim: list[int]) -> Any:
    """Return what there is one of per row so that it broadcasts over elements."""
    for each in dim:
        rows = rows.unsqueeze(each)
    return rows


@registered("logsumexp_backward")
class LogSumExpBackward(Operator):
    """dx = upstream * exp(x - lse)."""

    of = "logsumexp"
    calls = calls_of("logsumexp_backward")

    @staticmethod
    def launch(
        x: torch.Tensor,
        lse: torch.Tensor,
        upstream: torch.Tensor,
        dim: list[int],
        batch_invariant: bool | None,
    ) -> torch.Tensor:
        """Return dx of x's dtype."""
        rest = (lse, upstream.contiguous())
        return launched(LogSumExpBackward.calls, x, rest, _axis(dim), None, batch_invariant)

    fake = staticmethod(like_x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the tensors."""
        *tensors, ctx.dim, _ = inputs
        keep(ctx, *tensors)

    @staticmethod
    def backward(ctx: Any, g: Any) -> tuple[Any, ...]:
        """Return the gradients with respect to x, lse and upstream, by PyTorch's operations."""
        x, lse, upstream = ctx.saved_tensors
        of_upstream = g * torch.exp(x - _kept(lse, ctx.dim))
        of_x = of_upstream * _kept(upstream, ctx.dim)
        sums = [each.sum(ctx.dim) if ctx.dim else each for each in (of_x, of_upstream)]
        return of_x.to(x.dtype), -sums[0], sums[1], None, None

    @staticmethod
    def tangent(ctx: Any, of_x: Any, of_lse: Any, of_upstream: Any, *_: Any) -> Any:
        """Return the tangent of dx."""
        x, *rows = map(without_tangent, ctx.saved_tensors)
        lse, upstream, of_lse, of_upstream = (
            _kept(each, ctx.dim) for each in (*rows, of_lse, of_upstream)
        )
        moved = upstream * (of_x - of_lse) + of_upstream
        return (torch.exp(x - lse) * moved).to(x.dtype)


@registered("logsumexp")
class LogSumExp(Operator):
    """logsumexp in the type of the arithmetic, as the gradient needs it."""

    of = "logsumexp"
    calls = calls_of("logsumexp")

    @staticmethod
    def launch(x: torch.Tensor, dim: list[int], batch_invariant: bool | None) -> torch.Tensor:
        """Return lse, float32 (float64 for float64)."""
        return launched(LogSumExp.calls, x, (), _axis(dim), wide(x), batch_invariant)

    @staticmethod
    def fake(x: Any, dim: list[int], batch_invariant: Any) -> Any:
        """Return a tensor like lse."""
        return _like_rows(x, dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save x and lse."""
        x, ctx.dim, ctx.invariant = inputs
        keep(ctx, x, output)

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> tuple[Any, ...]:
        """Return dx."""
        x, lse = ctx.saved_tensors
        return LogSumExpBackward.call(x, lse, upstream, ctx.dim, ctx.invariant), None, None

    @staticmethod
    def tangent(ctx: Any, t: Any, *_: Any) -> Any:
        """Return sum(p t)."""
        x, lse = map(without_tangent, ctx.saved_tensors)
        parts = torch.exp(x - _kept(lse, ctx.dim)) * t
        return parts.sum(ctx.dim) if ctx.dim else parts


@registered("entropy_backward")
class EntropyBackward(Operator):
    """dx = -p (log p + H) upstream."""

    of = "entropy"
    calls = calls_of("entropy_backward")

    @staticmethod
    def launch(
        x: torch.Tensor,
        lse: torch.Tensor,
        entropy: torch.Tensor,
        upstream: torch.Tensor,
        dim: list[int],
        batch_invariant: bool | None,
    ) -> torch.Tensor:
        """Return dx of x's dtype."""
        rest = (lse, entropy, upstream.contiguous())
        return launched(EntropyBackward.calls, x, rest, _axis(dim), None, batch_invariant)

    fake = staticmethod(like_x)


@registered("entropy")
class Entropy(Operator):
    """The entropy and lse in the type of the arithmetic, as the gradient needs them."""

    of = "entropy"
    calls = calls_of("entropy_lse")

    @staticmethod
    def launch(
        x: torch.Tensor, dim: list[int], batch_invariant: bool | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the entropy and lse, float32 (float64 for float64)."""
        found: tuple[torch.Tensor, torch.Tensor]
        found = launched(Entropy.calls, x, (), _axis(dim), wide(x), batch_invariant)
        return found

    @staticmethod
    def fake(x: Any, dim: list[int], batch_invariant: Any) -> Any:
        """Return tensors like both."""
        return _like_rows(x, dim), _like_rows(x, dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save x and both."""
        x, ctx.dim, ctx.invariant = inputs
        entropy, lse = output
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)  # or zeros for lse are written
        ctx.save_for_backward(x, lse, entropy)

    @staticmethod
    def backward(ctx: Any, upstream: Any, _: Any) -> tuple[Any, ...]:
        """Return dx."""
        if upstream is None:
            return None, None, None
        x, lse, entropy = ctx.saved_tensors
        request = (x, lse, entropy, upstream, ctx.dim, ctx.invariant)
        return EntropyBackward.call(*request), None, None


def temperature_of(given: Any, x: Any) -> tuple[float | None, Any]:
    """Return a temperature as operators take it: a number, or one a row; of both one is None."""
    if not isinstance(given, torch.Tensor):
        return None if given is None else float(given), None
    if given.requires_grad:
        raise InvalidValueError("temperature has no gradient here; pass temperature.detach()")
    rows = x.shape[:-1]
    fits = zip(reversed(given.shape), reversed(rows), strict=False)
    if given.dim() > len(rows) or any(size not in (1, of_x) for size, of_x in fits):
        raise InvalidValueError(
            f"temperature must broadcast to {tuple(rows)}, got shape {tuple(given.shape)}"
        )
    return None, given.to(wide(x))


@registered("token_log_probs_backward")
class TokenLogProbsBackward(Operator):
    """The gradient of log-probabilities and, where there is one, of the entropy."""

    of = "token_log_probs"

    @staticmethod
    def launch(
        x: torch.Tensor,
        ids: torch.Tensor,
        lse: torch.Tensor,
        upstream: torch.Tensor,
        entropy: torch.Tensor | None,
        of_entropy: torch.Tensor | None,
        temperatures: torch.Tensor | None,
        temperature: float | None,
        batch_invariant: bool | None,
    ) -> torch.Tensor:
        """Return dx of x's dtype."""
        return gradients.token_log_probs_backward(
            *(plain(x), ids, lse, upstream, entropy, of_entropy),
            temperature=temperature if temperatures is None else temperatures,
            tune=tuning(),
            batch_invariant=batch_invariant,
        )

    fake = staticmethod(like_x)


@registered("token_log_probs")
class TokenLogProbs(Operator):
    """Log-probabilities of ids in the type of the arithmetic, lse, and the entropy if asked for."""

    of = "token_log_probs"

    @staticmethod
    def launch(
        x: torch.Tensor,
        ids: torch.Tensor,
        temperatures: torch.Tensor | None,
        temperature: float | None,
        return_entropy: bool,
        batch_invariant: bool | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return them, float32 (float64 for float64)."""
        found = tokens.token_log_probs(
            *(plain(x), ids),
            temperature=temperature if temperatures is None else temperatures,
            dtype=wide(x),
            return_lse=True,
            return_entropy=return_entropy,
            tune=tuning(),
            batch_invariant=batch_invariant,
        )
        log_probs, lse, *entropy = found
        return log_probs, lse, entropy[0] if entropy else None

    @staticmethod
    def fake(x: Any, ids: Any, temperatures: Any, temperature: Any, entropy: bool, _: Any) -> Any:
        """Return tensors like them."""
        made = torch.empty(ids.shape, dtype=wide(x), device=x.device)
        rows = [torch.empty(x.shape[:-1], dtype=wide(x), device=x.device) for _ in range(2)]
        return made, rows[0], rows[1] if entropy else None

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save x, ids and the results of rows."""
        x, ids, temperatures, ctx.temperature, returned, ctx.invariant = inputs
        _, lse, entropy = output
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, ids, lse, entropy if returned else None, temperatures)

    @staticmethod
    def backward(ctx: Any, upstream: Any, _: Any, of_entropy: Any) -> tuple[Any, ...]:
        """Return dx."""
        nones = (None,) * 5
        if upstream is None and of_entropy is None:
            return None, *nones
        x, ids, lse, entropy, temperatures = ctx.saved_tensors
        if upstream is None:
            upstream = torch.zeros_like(ids, dtype=lse.dtype)  # a DTensor where they are one
        if of_entropy is None:
            entropy = None
        both = (entropy, of_entropy)
        request = (x, ids, lse, upstream, *both, temperatures, ctx.temperature, ctx.invariant)
        return TokenLogProbsBackward.call(*request), *nones
