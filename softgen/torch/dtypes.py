"""The dtypes of PyTorch that softgen computes, and in which it does."""

from __future__ import annotations

from typing import Any

import torch

HALVES = (torch.float16, torch.bfloat16)
FLOAT8S = (torch.float8_e4m3fn, torch.float8_e5m2)  # of results without a gradient
FLOATS = (*HALVES, torch.float32, torch.float64)


def wide(x: Any) -> Any:
    """Return the dtype of all arithmetic on a tensor, and of what is saved for its gradient."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32
