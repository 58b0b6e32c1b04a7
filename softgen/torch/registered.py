"""Operators in PyTorch's registry, as torch.compile needs them.

torch.library.custom_op does the same and more. Its frames of Python around each call, which look
for results that share memory with arguments, take 5 us beside the dispatcher's 5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from softgen.call.warm import WarmCalls
from softgen.torch.direct import Fixed
from softgen.torch.gradients import Function, applied
from softgen.torch.inductor import DIRECT, FIXED, write_directly

# Kept as long as the operators are to be there.
_LIBRARY = torch.library.Library("softgen", "FRAGMENT")

_schema_of: Callable[..., str] = getattr(torch.library, "infer_schema", None) or (
    torch._library.infer_schema.infer_schema  # its place in PyTorch 2.4
)

# What each operator was registered with: its function, its `fake`, and its calls.
_registered: dict[Any, tuple[Callable[..., Any], Callable[..., Any], WarmCalls | None]] = {}

# Inductor lays inputs out as in eager mode. It does that by itself where it has no lowering.
_STRIDES = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)


def operator(
    fake: Callable[..., Any], calls: WarmCalls | None = None
) -> Callable[[Callable[..., Any]], Any]:
    """Register a function under its name. `fake` returns an empty tensor like its result.

    The function changes no argument, and no result shares memory with one or with another. Results
    are contiguous whatever the dimension: that is what `fake` says of them. `calls` are those of a
    function of x, dim and dtype, or of dy, y, dim and dtype, which compiled code launches.
    """
    return lambda run: _defined(run.__name__, run, fake, calls)


def _defined(
    name: str, run: Callable[..., Any], fake: Callable[..., Any], calls: WarmCalls | None
) -> Any:
    def traced(*arguments: Any) -> Any:
        write_directly(found)
        return fake(*arguments)

    schema = _schema_of(run, mutates_args=())
    _LIBRARY.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag, _STRIDES))
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"softgen::{name}", traced, lib=_LIBRARY)
    found = getattr(torch.ops.softgen, name).default
    setattr(found, DIRECT, run)
    if calls is not None:
        setattr(found, FIXED, Fixed(calls, run))
    _registered[found] = run, fake, calls
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

    _LIBRARY.impl(name, tracked, "Autograd")
