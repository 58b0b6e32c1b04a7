"""Autograd of what is a number a row or one in all, where nothing beside it is asked for.

A request like one before goes past all checks: one comparison, PyTorch's machinery, then the warm
calls. Its class is for any shape, so that nothing is learnt of one but how to know it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from softgen.call.library import library_of
from softgen.call.torch_library import TorchLibrary
from softgen.call.warm_run import never
from softgen.torch.gradients import TRANSFORMING
from softgen.torch.quick import FEW, KINDS, differentiable

Tensor, is_grad_enabled = torch.Tensor, torch.is_grad_enabled


class Seen:
    """The last few requests of a function, of which a model makes some in turn.

    Attributes:
        last: of the last request, whether tensors are like its own, its options as the caller gave
            them, and run(*tensors). Who calls compares it before anything else.
        recent: the last few of them.
    """

    __slots__ = ("last", "options", "recent")

    def __init__(self, options: int) -> None:
        """Know no request; each has so many options."""
        self.options = options
        self.forget()

    def forget(self) -> None:
        """Forget all of them."""
        self.last: tuple[Any, ...] = (never, (None,) * self.options, None)
        self.recent: tuple[tuple[Any, ...], ...] = ()

    def find(self, options: tuple[Any, ...], *tensors: Any) -> Callable[..., Any] | None:
        """Return the run of a request like these, and make it the last; None for a new one."""
        for found in self.recent:
            alike, was, run = found
            if all(a is b for a, b in zip(options, was, strict=True)) and alike(*tensors):
                self.last = found
                served: Callable[..., Any] = run
                return served
        return None

    def keep(self, run: Callable[..., Any], options: tuple[Any, ...], *tensors: Any) -> None:
        """Keep a request that was served."""
        x, *others = tensors
        alike = torch_library_of(x).guard(*tensors)
        if type(x) in KINDS and all(type(each) is Tensor for each in others) and alike is not never:
            self.last = found = (alike, options, run)
            self.recent = (found, *self.recent[: FEW - 1])


def torch_library_of(x: Any) -> TorchLibrary:
    """Return the library of a tensor; raise what `library_of` raises for one on the CPU."""
    library, _ = library_of(x.detach())
    assert isinstance(library, TorchLibrary)
    return library


def is_eager() -> bool:
    """Whether a call is neither recorded nor transformed."""
    return not (torch.compiler.is_compiling() or TRANSFORMING())


def tracked(
    name: str,
    forward: Callable[..., tuple[Any, ...]],
    gradient: Callable[..., Any],
    again: Callable[..., Any],
    untracked: Callable[..., Any] | None = None,
    *,
    others: int = 1,
) -> Callable[..., Any]:
    """Return run(x, *others), which returns a result with autograd where x asks for it.

    Args:
        name: of the node in PyTorch's graph, without "Backward".
        forward: forward(x, *others) returns the result and what its gradient needs beside x and
            the others.
        gradient: gradient(g, x, *saved) returns dx, of what nobody tracks.
        again: does the same, of what is differentiated again.
        untracked: returns the result alone, quicker than `forward`.
        others: how many there are; they have no gradient.
    """
    nones = (None,) * others

    def tracking(ctx: Any, x: Any, *others: Any) -> Any:
        result, *more = forward(x if type(x) is Tensor else x.detach(), *others)
        ctx.save_for_backward(x, *others, *more)
        return result

    def backward(ctx: Any, g: Any) -> Any:
        x, *saved = ctx.saved_tensors
        if is_grad_enabled() or TRANSFORMING():
            dx = again(g, x, *saved)
        else:
            dx = gradient(g, x if type(x) is Tensor else x.detach(), *saved)
        return dx, *nones

    alone = untracked or (lambda *tensors: forward(*tensors)[0])
    apply, _ = differentiable(name, tracking, backward)

    def run(x: Any, *others: Any) -> Any:
        if x.requires_grad and is_grad_enabled():
            return apply(x, *others)
        return alone(x if type(x) is Tensor else x.detach(), *others)

    return run
