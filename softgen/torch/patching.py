"""softgen in the place of torch.nn.functional's functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from softgen.torch import functional, losses
from softgen.torch.dtypes import FLOATS

_originals: dict[str, Callable[..., Any]] = {}


def patch() -> None:
    """Put softgen in the place of functions of torch.nn.functional, until `unpatch`.

    Those are softmax, log_softmax and cross_entropy. A call takes softgen where its tensor is on a
    GPU, of a float of 16 to 64 bits, and not empty; and where `dim` is given, or targets are class
    indices in rows, without both weights and smoothing. Any other call goes to PyTorch, as do the
    functions of `torch` and the methods of tensors. Patching twice is patching once.
    """
    for name, (either, mine) in SERVED.items():
        if name not in _originals:
            _originals[name] = getattr(torch.nn.functional, name)
            setattr(torch.nn.functional, name, either(mine, _originals[name]))


def unpatch() -> None:
    """Put torch.nn.functional's own functions back."""
    for name in list(_originals):
        setattr(torch.nn.functional, name, _originals.pop(name))


def _served(input: Any) -> bool:
    """Whether softgen computes functions of it."""
    return (
        type(input) in (torch.Tensor, torch.nn.Parameter)
        and input.is_cuda
        and input.dtype in FLOATS
        and input.numel() > 0
    )


def _along_dim(mine: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function along `dim` that is either."""

    @functools.wraps(theirs)
    def call(input: Any, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
        if _served(input) and dim is not None and (dtype is None or dtype in FLOATS):
            return mine(input, dim, dtype=dtype)
        return theirs(input, dim, _stacklevel=_stacklevel + 1, dtype=dtype)

    return call


def _of_classes(mine: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Return the loss that is either."""

    @functools.wraps(theirs)
    def call(
        input: Any,
        target: Any,
        weight: Any = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:
        served = (
            _served(input)
            and isinstance(target, torch.Tensor)
            and target.dtype is torch.int64
            and target.device == input.device
            and input.dim() in (1, 2)
            and target.shape == input.shape[:-1]
            and size_average is None
            and reduce is None
            and (weight is None or (_weighs(weight, input) and not label_smoothing))
        )
        if served:
            options = (weight, None, ignore_index, None, reduction, label_smoothing)
            return mine(input, target, *options)
        return theirs(
            *(input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        )

    return call


def _weighs(weight: Any, input: Any) -> bool:
    """Whether softgen takes the weights."""
    return (
        weight.dtype is input.dtype
        and weight.device == input.device
        and tuple(weight.shape) == tuple(input.shape[-1:])
        and not weight.requires_grad
    )


# What makes the function that takes a call to softgen's or to PyTorch's, and softgen's.
SERVED: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "softmax": (_along_dim, functional.softmax),
    "log_softmax": (_along_dim, functional.log_softmax),
    "cross_entropy": (_of_classes, losses.cross_entropy),
}
