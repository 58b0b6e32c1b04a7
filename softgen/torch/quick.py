"""Autograd of a call like one before: one comparison, then PyTorch's machinery, then the launch.

An eager call of `torch.autograd.Function` takes 2 us that no Python code can save. Arguments beside
the tensor, attributes of its context, a frame for each step and questions that were answered before
would take 3 us more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

import torch

from softgen.call.warm import MOST_CALLS
from softgen.call.warm_run import ALIGNMENT_MASK, Environment, environment, never
from softgen.torch.again import NOTHING, again, gradient_again
from softgen.torch.gradients import TRANSFORMING, applied

Tensor, is_grad_enabled = torch.Tensor, torch.is_grad_enabled
FEW = 4
# Of a class whose gradients lie otherwise each time: to learn one takes 10 us.
MOST_TRIES = 16
KINDS = (Tensor, torch.nn.Parameter)


class Quick:
    """The requests of a function, a class `OfResult`, that were seen before.

    A model asks for a few in turn. They are compared one by one, 0.3 us each; a key takes 4 us.

    Attributes:
        recent: the last few of them, each as `last`.
        last: of the last request, what `Again.alike` is, the dimension, the dtype that the caller
            gave, both words of the environment, and what returns the result for a tensor like it:
            where that requires grad, a function of autograd, which asks whether grad is enabled.
            Who calls compares it before anything else.
    """

    __slots__ = ("function", "known", "last", "recent")

    def __init__(self, function: Any) -> None:
        self.function = function
        self.known: dict[Hashable, tuple[Any, ...] | None] = {}
        self.forget()

    def forget(self) -> None:
        """Forget all of them."""
        self.known.clear()
        self.last: tuple[Any, ...] = (never, *(None,) * 5)
        self.recent: tuple[tuple[Any, ...], ...] = ()

    def _make_last(self, found: tuple[Any, ...]) -> None:
        self.last = found
        self.recent = (found, *self.recent[: FEW - 1])

    def __call__(self, x: Any, dim: int, given: Any, dtype: Any) -> Any:
        """Return the result for a request that is not the last, and make it that if it is warm.

        Args:
            x: a tensor.
            dim: along which.
            given: the dtype that the caller gave.
            dtype: that of the result.
        """
        now = mode, invariant = environment()
        for found in self.recent:
            alike, was_dim, was_given, was_mode, was_invariant, run = found
            if (
                dim is was_dim
                and given is was_given
                and mode is was_mode
                and invariant is was_invariant
                and alike(x)
            ):
                self.last = found
                return run(x)
        function = self.function
        # True and 1.0 are found under the dimension 1, and are refused by what does not look there.
        if type(x) not in KINDS or type(dim) is not int or TRANSFORMING():
            return applied(function, x)(x, dim, dtype)
        tracked = x.requires_grad and is_grad_enabled()
        try:
            key = (
                *(type(x), x.shape, x.stride(), x.dtype, x.get_device(), tracked, dim, given),
                *(dtype, torch.is_autocast_enabled("cuda"), x.data_ptr() & ALIGNMENT_MASK),
                *now,
            )
            seen = self.known.get(key)
        except (TypeError, RuntimeError):  # a dtype without a hash, a tensor without memory
            return applied(function, x)(x, dim, dtype)
        if seen is not None:
            self._make_last((*seen[:3], *now, seen[-1]))
            return seen[-1](x)
        if tracked:
            y = tracked_by(function, dim, dtype, x.dtype, now)(x)
        else:
            y = function.forward(x, dim, dtype)
        if tracked or not x.requires_grad:
            self._learn(key, x, dim, given, dtype, tracked, now)
        return y

    def _learn(
        self,
        key: Hashable,
        x: Any,
        dim: int,
        given: Any,
        dtype: Any,
        tracked: bool,
        now: Environment,
    ) -> None:
        """Keep a request that has come twice: a class takes 0.1 ms to make."""
        if key not in self.known:
            if len(self.known) >= MOST_CALLS:
                self.known.clear()
            self.known[key] = None
            return
        warm = again(self.function.calls, x, dim, dtype)
        if warm is NOTHING:
            return
        if tracked:
            run = _class_of(self.function, dim, x.dtype, now, warm.run)
        else:
            run = functools.partial(warm.run, None)
        self.known[key] = found = (warm.alike, dim, given, *now, run)
        self._make_last(found)


@functools.cache
def tracked_by(
    function: Any, dim: int, dtype: Any, x_dtype: Any, now: Environment
) -> Callable[[Any], Any]:
    """Return what applies a function to any tensors of `x_dtype`, in the environment `now`."""
    calls = function.calls

    def run(ctx: Any, x: Any) -> Any:
        if type(x) is not Tensor:  # a Parameter, of which no call is warm
            x = x.detach()
        y = calls[type(x)](x, None, dim, dtype, None, None, None, ())
        ctx.save_for_backward(y)
        return y

    return _class_of(function, dim, x_dtype, now, run)


def _class_of(
    function: Any, dim: int, x_dtype: Any, now: Environment, run: Callable[..., Any]
) -> Callable[[Any], Any]:
    """Return what applies a function by autograd; run(context, x) computes and saves its result.

    It is applied in the environment `now` alone, in which its gradient is then computed too: to ask
    again in the thread of autograd's engine would take 0.6 us.
    """
    gradient = function.gradient
    calls = gradient.calls
    tries = 0

    def backward(ctx: Any, dy: Any) -> Any:
        (y,) = ctx.saved_tensors
        return otherwise(dy, y)

    def otherwise(dy: Any, y: Any) -> Any:
        nonlocal tries
        if is_grad_enabled() or TRANSFORMING():
            return applied(gradient, dy, y)(dy, y, dim, x_dtype)
        dx = calls[type(dy)](dy, None, dim, x_dtype, None, None, None, (y,))
        if type(dy) is Tensor and tries < MOST_TRIES and environment() == now:
            tries += 1
            quick = gradient_again(calls, dy, y, dim, x_dtype, otherwise)
            if quick is not None:
                become(quick)
        return dx

    apply, become = differentiable(function.__name__, run, backward)
    return apply


def differentiable(
    name: str, forward: Callable[..., Any], backward: Callable[..., Any]
) -> tuple[Callable[..., Any], Callable[[Callable[..., Any]], None]]:
    """Return what applies a function by autograd, and what gives it another backward.

    Args:
        name: of the node in PyTorch's graph, without "Backward".
        forward: forward(context, *tensors) returns the result, and saves what backward needs.
        backward: backward(context, dy) returns the gradients.
    """
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    made: Any = type(name, (torch.autograd.Function,), methods)
    node = getattr(made, "_backward_cls", None)

    def become(backward: Callable[..., Any]) -> None:
        made.backward = staticmethod(backward)
        if node is not None:  # what PyTorch puts there looks for `backward` at each call, 1.5 us
            node.apply = backward

    become(backward)
    # Past what torch.autograd.Function.apply does for transforms, 1 us.
    apply: Callable[..., Any] = super(torch.autograd.Function, made).apply
    return apply, become
