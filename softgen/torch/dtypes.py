"""The dtypes of PyTorch that softgen computes, and in which it does."""

from __future__ import annotations

from typing import Any

import torch

from softgen.errors import InvalidTypeError

HALVES = (torch.float16, torch.bfloat16)
FLOAT8S = (torch.float8_e4m3fn, torch.float8_e5m2)  # of results without a gradient
FLOATS = (*HALVES, torch.float32, torch.float64)


def dtype_of_loss(dtype: Any, x: Any) -> Any:
    """Return the dtype of a loss of logits like x; one that is asked for is checked."""
    if dtype is not None and dtype not in FLOATS:
        raise InvalidTypeError(f"dtype must be a float of 16 to 64 bits, got {dtype}")
    widens = x.dtype in HALVES and is_autocast(x)
    return dtype or (torch.float32 if widens else x.dtype)


def is_autocast(x: Any) -> Any:
    """Whether autocast is on for a tensor's device."""
    # torch.compile of PyTorch 2.11 cannot trace torch.amp.is_autocast_available.
    return x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)


def wide(x: Any) -> Any:
    """Return the dtype of all arithmetic on a tensor, and of what is saved for its gradient."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32
