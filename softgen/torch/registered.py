"""Operators in PyTorch's registry, as torch.compile needs them.

torch.library.custom_op does the same and more. Its frames of Python around each call, which look
for results that share memory with arguments, take 5 us beside the dispatcher's 5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from softgen.torch.gradients import Function, applied

# Kept as long as the operators are to be there.
_LIBRARY = torch.library.Library("softgen", "FRAGMENT")

_schema_of: Callable[..., str] = getattr(torch.library, "infer_schema", None) or (
    torch._library.infer_schema.infer_schema  # its place in PyTorch 2.4
)

# The overload that all operators are. PyTorch keeps compiled code on disk by the names in a graph,
# from one version of softgen to the next. What it made for the `default` ones called past the
# dispatcher, and on PyTorch 2.14 and later sometimes in place of another operator.
OVERLOAD = "v2"

# What each operator was registered with: its function and its `fake`.
_registered: dict[Any, tuple[Callable[..., Any], Callable[..., Any]]] = {}

# Inductor lays inputs out as in eager mode. It does that by itself where it has no lowering.
_STRIDES = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)


def operator(fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Register a function under its name. `fake` returns an empty tensor like its result.

    The function changes no argument, and no result shares memory with one or with another. Results
    are contiguous whatever the dimension: that is what `fake` says of them.
    """
    return lambda run: _defined(run.__name__, run, fake)


def _defined(name: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    schema = _schema_of(run, mutates_args=())
    overload = f"{name}.{OVERLOAD}"
    _LIBRARY.define(f"{overload}{schema}", tags=(torch.Tag.pt2_compliant_tag, _STRIDES))
    _LIBRARY.impl(overload, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"softgen::{overload}", fake, lib=_LIBRARY)
    found = getattr(getattr(torch.ops.softgen, name), OVERLOAD)
    _registered[found] = run, fake
    return found


def differentiate(
    operator: Any, backward: Callable[..., Any], setup_context: Callable[..., None]
) -> None:
    """Give an operator a gradient: the methods of a torch.autograd.Function of its arguments.

    A gradient in Python takes 11 us of each call, wanted or not, as torch.library.register_autograd
    has it. What torch.compile records knows what is differentiated: it is another operator, called
    `<name>_kernel`, that computes the same and has no gradient.
    """
    name = operator._schema.name.rpartition("::")[2]
    kernel = _defined(f"{name}_kernel", *_registered[operator])
    methods = {"forward": kernel, "setup_context": setup_context, "backward": backward}
    as_methods = {method: staticmethod(run) for method, run in methods.items()}
    function = type(name, (Function,), as_methods)

    def tracked(*arguments: Any) -> Any:
        tensors = (each for each in arguments if isinstance(each, torch.Tensor))
        return applied(function, *tensors)(*arguments)

    _LIBRARY.impl(f"{name}.{OVERLOAD}", tracked, "Autograd")
