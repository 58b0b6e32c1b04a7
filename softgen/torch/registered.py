"""Operators in PyTorch's registry, as torch.compile needs them.

torch.library.custom_op does the same and more. Its frames of Python around each call, which look
for results that share memory with arguments, take 5 us beside the dispatcher's 5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Kept as long as the operators are to be there.
_LIBRARY = torch.library.Library("softgen", "FRAGMENT")

_schema_of: Callable[..., str] = getattr(torch.library, "infer_schema", None) or (
    torch._library.infer_schema.infer_schema  # its place in PyTorch 2.4
)


def operator(fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Register a function under its name. `fake` returns an empty tensor like its result.

    The function changes no argument, and no result shares memory with one or with another. Results
    are contiguous whatever the dimension: that is what `fake` says of them.
    """

    def register(run: Callable[..., Any]) -> Any:
        name = run.__name__
        schema = _schema_of(run, mutates_args=())
        _LIBRARY.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
        _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"softgen::{name}", fake, lib=_LIBRARY)
        return getattr(torch.ops.softgen, name).default

    return register


def differentiate(
    operator: Any, backward: Callable[..., Any], setup_context: Callable[..., None]
) -> None:
    """Give an operator a gradient, as torch.library.register_autograd takes it."""
    torch.library.register_autograd(operator, backward, setup_context=setup_context, lib=_LIBRARY)
