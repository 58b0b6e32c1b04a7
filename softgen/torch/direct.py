"""What compiled code calls for softmax and its gradient: a request like one before is launched.

A call site asks the same at each step. To compare it with what came before takes 0.4 us, where the
key of a warm call and its comparisons take 1.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from softgen.call.warm import WarmCalls
from softgen.torch.again import NOTHING, again

Tensor = torch.Tensor
# Of a function: the first few requests, each as what `Again` has and the rest of the request.
FEW = 4
_known: list[list[tuple[Any, ...]]] = []


def forget() -> None:
    """Forget all requests."""
    for each in _known:
        each.clear()


def of_input(calls: WarmCalls) -> Callable[[Any, int, Any], Any]:
    """Return run(x, dim, dtype) of a function of one tensor, for what nobody differentiates."""
    known: list[tuple[Any, ...]] = []
    _known.append(known)

    def run(x: Any, dim: int, dtype: Any) -> Any:
        for alike, launch, was_dim, was_dtype in known:
            if dim == was_dim and dtype is was_dtype and alike(x):
                return launch(None, x)
        return _learnt(known, calls, x, dim, dtype, ())

    return run


def of_gradient(calls: WarmCalls) -> Callable[[Any, Any, int, Any], Any]:
    """Return run(dy, y, dim, dtype) of a gradient, likewise; its result is contiguous."""
    known: list[tuple[Any, ...]] = []
    _known.append(known)

    def run(dy: Any, y: Any, dim: int, dtype: Any) -> Any:
        for alike, launch, was_dim, was_dtype in known:
            if dim == was_dim and dtype is was_dtype and alike(dy):
                return launch(None, dy, (y,))
        return _learnt(known, calls, dy, dim, dtype, (y,)).contiguous()

    return run


def _learnt(known: Any, calls: WarmCalls, x: Any, dim: int, dtype: Any, rest: Any) -> Any:
    plain = x if type(x) is Tensor else x.detach()  # no call of a Parameter is warm
    y = calls[Tensor](plain, None, dim, dtype, None, None, None, rest)
    if len(known) < FEW and (warm := again(calls, x, dim, dtype)) is not NOTHING:
        known.append((*warm, dim, dtype))
    return y
