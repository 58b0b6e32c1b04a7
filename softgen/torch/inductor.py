"""What torch.compile writes for an operator: a call of its function, past PyTorch's dispatcher.

For an operator that it does not know inductor writes a call by the dispatcher, which takes 8 us
and finds a function of Python behind it. There is nothing left to dispatch: what is compiled calls
Triton's kernels by their functions too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

# The attributes of an operator that compiled code calls: its function, and of some a quicker one by
# the text of a request that has nothing open. PyTorch keeps such code on disk, from one version of
# softgen to the next: the names stay.
DIRECT, FIXED = "direct", "fixed"

_known: set[Any] = set()


def write_directly(operator: Any) -> None:
    """Let inductor write a call of the operator's DIRECT or FIXED, if inductor is what compiles.

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
    path = f"torch.ops.{operator._schema.name.replace('::', '.')}.default"

    def lower(*arguments: Any) -> Any:
        from torch._inductor.ir import FallbackKernel, FixedLayout, IRNode
        from torch._inductor.virtualized import V

        found = fallback(*arguments)
        first = found[0] if isinstance(found, (tuple, list)) else found
        node = first.data.data.inputs[0]
        if type(node) is FallbackKernel and not V.graph.cpp_wrapper:
            layouts = [getattr(each, "layout", None) for each in node.inputs]
            fixed = all(isinstance(each, FixedLayout) for each in layouts)
            others = [each for each in arguments if not isinstance(each, IRNode)]
            text = _text_of(layouts, others) if fixed and hasattr(operator, FIXED) else ""
            node.python_kernel_name = f"{path}.{FIXED}[{text!r}]" if text else f"{path}.{DIRECT}"
        return found

    return lower


def _text_of(layouts: Sequence[Any], others: Sequence[Any]) -> str:
    """Return the text that names a request; "" if it has symbols.

    It has all that a call depends on but where tensors lie.

    Args:
        layouts: inductor's, of the tensors.
        others: the arguments beside them.
    """
    numbers = [[*each.size, *each.stride] for each in layouts]
    if any(not str(number).lstrip("-").isdigit() for each in numbers for number in each):
        return ""
    tensors = (f"{each.dtype} {each.device} {[*each.size]} {[*each.stride]}" for each in layouts)
    return ", ".join((*tensors, *map(str, others)))
