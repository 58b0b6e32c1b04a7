"""What torch.compile writes for an operator: a call of its function, past PyTorch's dispatcher.

For an operator that it does not know inductor writes a call by the dispatcher, which takes 10 us
and finds a function of Python behind it. There is nothing left to dispatch: what is compiled calls
Triton's kernels by their functions too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

# The attribute of an operator that compiled code calls. PyTorch keeps such code on disk, from one
# version of softgen to the next: the name stays.
DIRECT = "direct"

_known: set[Any] = set()


def write_directly(operator: Any) -> None:
    """Let inductor write a call of the operator's DIRECT, if inductor is what compiles.

    To import it takes seconds; where it compiles it is there.
    """
    lowering: Any = sys.modules.get("torch._inductor.lowering")
    if operator in _known or not hasattr(lowering, "register_lowering"):
        return
    _known.add(operator)
    register = lowering.register_lowering(operator, type_promotion_kind=None)
    register(_lowering_of(operator, lowering.fallback_handler(operator)))


def _lowering_of(operator: Any, fallback: Callable[..., Any]) -> Callable[..., Any]:
    """Return what makes a node of a call: that which calls by the dispatcher, under another name.

    Args:
        operator: one of softgen's.
        fallback: what makes the node of an operator that inductor does not know.
    """
    path = f"torch.ops.{operator._schema.name.replace('::', '.')}.default.{DIRECT}"

    def lower(*arguments: Any) -> Any:
        from torch._inductor.ir import FallbackKernel
        from torch._inductor.virtualized import V

        found = fallback(*arguments)
        first = found[0] if isinstance(found, (tuple, list)) else found
        node = first.data.data.inputs[0]
        if type(node) is FallbackKernel and not V.graph.cpp_wrapper:
            node.python_kernel_name = path
        return found

    return lower
