"""The views that are timed, of CuPy's arrays and PyTorch's tensors alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Of an array (batch, head, query, key), the last of one of long rows.
VIEWS: dict[str, Callable[[Any], Any]] = {
    "x[..., :1000]": lambda x: x[..., :1000],
    "x[..., :1001]": lambda x: x[..., :1001],
    "x[..., 3:1003]": lambda x: x[..., 3:1003],
    "x[..., 5:38]": lambda x: x[..., 5:38],
    "x[..., :4000]": lambda x: x[..., :4000],
    "x[:, :, ::2]": lambda x: x[:, :, ::2],
    "x[:, 1]": lambda x: x[:, 1],
    "x[:, 1:3, :, :2048]": lambda x: x[:, 1:3, :, :2048],
    "x[:, :6, ::2]": lambda x: x[:, :6, ::2],
    "x[::2, ::2, ::2, :512]": lambda x: x[::2, ::2, ::2, :512],
    "x.swapaxes(0, 1)": lambda x: x.swapaxes(0, 1),
    "x[:, :131000]": lambda x: x[:, :131000],
}
