"""Checks of losses of hidden states: a last layer, and what does not fit it."""

from __future__ import annotations

from typing import Any

import torch

from softgen.call.scalars import above_zero, finite
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError
from softgen.torch.dtensor import is_dtensor
from softgen.torch.dtypes import FLOATS, is_autocast, wide
from softgen.torch.registry import Tensor, is_compiling


def given_layer(x: Any, weight: Any, bias: Any) -> tuple[Any, Any, Any]:
    """Return the last layer's tensors as autocast has them."""
    names = ("input", "linear_weight", "linear_bias")
    for name, each in zip(names, (x, weight, bias), strict=True):
        if is_dtensor(each):
            raise NotSupportedError(
                f"{name} is a DTensor. Under FSDP2 let softgen.torch.LinearCrossEntropy own the "
                f"weight, so that it is whole in its forward; else pass {name}.full_tensor()"
            )
        if not isinstance(each, Tensor) and (each is not None or name != "linear_bias"):
            raise InvalidTypeError(f"{name} must be a tensor, got {type(each).__qualname__}")
    if x.dim() == 0 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        turned = x.dim() and weight.dim() == 2 and x.shape[-1] == weight.shape[0]
        raise InvalidValueError(
            "input must be (..., hidden) and linear_weight (classes, hidden), got "
            f"{tuple(x.shape)} and {tuple(weight.shape)}{'; pass linear_weight.T' * bool(turned)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise InvalidValueError(
            f"linear_bias must have the shape {tuple(weight.shape[:1])}, got {tuple(bias.shape)}"
        )
    if is_autocast(x) and x.dtype is not torch.float64:
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    if x.dtype not in FLOATS:
        raise InvalidTypeError(f"input must be of {', '.join(map(str, FLOATS))}, got {x.dtype}")
    for name, each in zip(names[1:], (weight, bias), strict=True):
        if each is not None and each.dtype is not x.dtype:
            raise InvalidTypeError(
                f"{name} must be of input's dtype {x.dtype}, got {each.dtype}; convert it, or call "
                "under torch.autocast"
            )
    return x, weight, bias


def softcap_of(value: Any) -> float | None:
    """Return a caller's softcap; raise unless it is above 0. Compiled code does not check it."""
    if value is None:
        return None
    return float(value) if is_compiling() else above_zero("softcap", value)


def integers(name: str, array: Any) -> Any:
    """Return a tensor of numbers of columns; raise InvalidTypeError for anything else."""
    if not isinstance(array, Tensor) or array.dtype not in (torch.int32, torch.int64):
        given = array.dtype if isinstance(array, Tensor) else type(array).__qualname__
        raise InvalidTypeError(f"{name} must be a tensor of int32 or int64, got {given}")
    return array


def require_fitting(
    x: Any, weight: Any, target: Any, reduction: str, num_items: Any, accumulate: Any
) -> None:
    """Raise for arguments of a loss that do not fit its last layer or each other."""
    if num_items is not None:
        if reduction != "mean":
            raise InvalidValueError(f"num_items is of a mean, got reduction {reduction!r}")
        _require_items(num_items)
    if isinstance(target, Tensor) and target.is_floating_point():
        raise InvalidTypeError(
            f"target must be class indices of int32 or int64, got {target.dtype}; for "
            "probabilities take softgen.torch.cross_entropy of logits"
        )
    if integers("target", target).shape != x.shape[:-1]:
        raise InvalidValueError(
            f"target must have the shape {tuple(x.shape[:-1])}, got {tuple(target.shape)}"
        )
    if accumulate not in (None, weight.dtype, wide(weight)):
        accepted = " or ".join(map(str, dict.fromkeys((weight.dtype, wide(weight)))))
        raise InvalidTypeError(f"accumulate must be {accepted}, got {accumulate!r}")


def _require_items(number: Any) -> None:
    """Raise for what divides no mean; the number in a tensor is not looked at."""
    if not isinstance(number, Tensor):
        if not is_compiling() and finite("num_items", number) < 0:
            raise InvalidValueError(f"num_items must be 0 or more, got {number!r}")
    elif number.requires_grad:
        raise InvalidValueError("num_items has no gradient here; pass num_items.detach()")
    elif number.numel() != 1:
        raise InvalidValueError(
            f"num_items must be a tensor of one element, got {tuple(number.shape)}"
        )
