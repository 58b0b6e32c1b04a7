"""What tests put in the place of a plain tensor and of a plain call."""

from __future__ import annotations

from typing import Any

import torch

# Any where PyTorch is not installed, as where the linters run.
Tensor: Any = torch.Tensor
TorchDispatchMode: Any = torch.utils._python_dispatch.TorchDispatchMode


class Sub(Tensor):  # type: ignore[misc]
    """A subclass that shares its memory, as many libraries have."""


class Mode(TorchDispatchMode):  # type: ignore[misc]
    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return f(*args, **(kwargs or {}))
