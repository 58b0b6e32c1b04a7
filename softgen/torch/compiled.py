"""What `patch` does to code that torch.compile compiles: a pass over its graph.

Inductor fuses a conversion into its own softmax and loss, and cannot fuse it into softgen's
operators: float32 numbers would be written for them. The pass looks for a conversion in front, and
gives an operator the tensor before it. It runs before gradients are derived, so that the operator's
own gradient, of the 16-bit type, takes the place of two.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch._inductor import config

from softgen.call import eager
from softgen.torch import functional, losses, patching
from softgen.torch.dtypes import HALVES

try:
    from torch._inductor.custom_graph_pass import CustomGraphPass
except ImportError:  # PyTorch 2.4 and 2.5
    CustomGraphPass = object

# An operator costs the host 10 us more than inductor's own kernels. In that time an H200 reads so
# many elements of 16 bits; softgen saves one read.
FEWEST_ELEMENTS = 1 << 24

VIEWS = ("view", "reshape", "flatten", "contiguous")
CONVERSIONS = ("float", "to", "type", "type_as")
# What models do to targets between a conversion and a loss. None of it changes a tensor.
HARMLESS = (
    *(*VIEWS, *CONVERSIONS, "pad", "getitem", "size", "add", "sub", "mul", "floordiv"),
    *("long", "clone", "eq", "ne", "where", "masked_fill"),
)
# What inductor does not fuse with its neighbours: of their results nothing is saved by fusing.
UNFUSED = ("linear", "matmul", "bmm", "mm", "addmm", "baddbmm")


class Pass(CustomGraphPass):  # type: ignore[misc]
    """The pass, behind those that were there before."""

    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(self, graph: Any) -> None:
        """Run the passes that were there before, and this one while `patch` holds."""
        for each in _several(self.before):
            each(graph)
        if patching.is_patched():
            take_along(graph)

    def uuid(self) -> Any:
        """Return what inductor keeps compiled code under; None if a pass before has no such."""
        before = [getattr(each, "uuid", lambda: None)() for each in _several(self.before)]
        return None if None in before else (_digest(), patching.is_patched(), *before)


def install() -> None:
    """Add the pass to those of this thread, once."""
    now = config.pre_grad_custom_pass
    if not isinstance(now, Pass):
        config.pre_grad_custom_pass = Pass(now)


def remove() -> None:
    """Put back the passes of this thread; where they changed since, Pass does nothing more."""
    now = config.pre_grad_custom_pass
    if isinstance(now, Pass):
        config.pre_grad_custom_pass = now.before


def _several(passes: Any) -> tuple[Any, ...]:
    """Return passes as PyTorch 2.13 and later takes them: None, one, or several."""
    if passes is None:
        return ()
    return tuple(passes) if isinstance(passes, list | tuple) else (passes,)


@functools.cache
def _digest() -> str:
    """Return what tells softgen.torch from one of other text."""
    texts = (path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return hashlib.sha256(b"".join(texts)).hexdigest()


def take_along(graph: Any) -> None:
    """Replace calls of a converted tensor by softgen's operators, where that costs nothing."""
    for node in list(graph.nodes):
        # A function of torch.nn.functional, or its wrapper, which has its name.
        name = getattr(node.target, "__name__", None)
        where = getattr(node.target, "__module__", None)
        if node.op == "call_function" and where == F.__name__ and name in REPLACED:
            REPLACED[name](graph, node, _arguments(name, node))


def _arguments(name: str, node: Any) -> dict[str, Any]:
    """Return all arguments of a call by name."""
    bound = inspect.signature(getattr(F, name)).bind(*node.args, **node.kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _take_loss(graph: Any, node: Any, given: dict[str, Any]) -> None:
    x, target = given["input"], given["target"]
    plain = given["weight"] is given["size_average"] is given["reduce"] is None
    shape, of = _tensor(x), _tensor(target)
    if not plain or shape is None or of is None or shape.dtype is not torch.float32:
        return
    if (shape.dim(), of.dim(), of.dtype) != (2, 1, torch.int64):
        return
    options = tuple(given[each] for each in ("ignore_index", "reduction", "label_smoothing"))
    if any(isinstance(each, torch.fx.Node) for each in options):
        return
    found = _before_conversion(x, node)
    if found is None or not _pays(*found):
        return
    with graph.inserting_before(node):
        request = (_viewed(graph, *found), target, *options)
        new = graph.call_function(cross_entropy_of_halves, request)
    _replace(graph, node, new, x)


def _take_softmax(mine: Any, graph: Any, node: Any, given: dict[str, Any]) -> None:
    x, dim, dtype = given["input"], given["dim"], given["dtype"]
    shape = _tensor(x)
    if shape is None or not isinstance(dim, int):
        return
    if shape.dtype in HALVES and dtype is torch.float32:
        found: tuple[Any, list[Any]] | None = (x, [])
    elif shape.dtype is torch.float32 and dtype in (None, torch.float32):
        found = _before_conversion(x, node)
    else:
        return
    if found is None or not _pays(*found) or not all(map(_is_unfused, node.users)):
        return
    with graph.inserting_before(node):
        request = (_viewed(graph, *found), dim)
        new = graph.call_function(mine, request, {"dtype": torch.float32})
    _replace(graph, node, new, x)


REPLACED: dict[str, Callable[[Any, Any, dict[str, Any]], None]] = {
    "cross_entropy": _take_loss,
    "softmax": functools.partial(_take_softmax, functional.softmax),
    "log_softmax": functools.partial(_take_softmax, functional.log_softmax),
}


def cross_entropy_of_halves(
    x: Any, target: Any, ignored: int, reduction: str, smoothing: float
) -> Any:
    """Return the float32 loss of 16-bit logits (rows, classes), whose gradient has their type."""
    options = (ignored, reduction, float(smoothing), 0.0, torch.float32, None)
    return losses.CrossEntropy.call(x, target, None, *options)[0]


def _tensor(node: Any) -> Any:
    """Return the tensor without memory that stands for a node's result; None if it is no tensor."""
    found = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
    return found if isinstance(found, torch.Tensor) else None


def _before_conversion(node: Any, call: Any) -> tuple[Any, list[Any]] | None:
    """Return the 16-bit tensor that a call's float32 one is a view of, and the views, or None.

    Nobody else may use what lies between: it would be written all the same. And nothing between may
    change a tensor: the call reads it later than the conversion did.
    """
    views: list[Any] = []
    while True:
        if len(node.users) > 1 or node.op != "call_method":
            return None
        source: Any = node.args[0]
        before, after = _tensor(source), _tensor(node)
        if node.target in VIEWS:
            views.append(node)
        elif node.target not in CONVERSIONS:
            return None
        elif before is None or before.dtype is not after.dtype:
            break
        node = source
    if before is None or before.dtype not in HALVES or before.device != after.device:
        return None
    if before.requires_grad is not after.requires_grad:  # converted under no_grad
        return None
    while call.prev is not node:
        call = call.prev
        if call.op not in ("placeholder", "get_attr") and _name(call) not in HARMLESS:
            return None
    return source, views[::-1]


def _pays(x: Any, views: list[Any]) -> bool:
    """Whether softgen reads x, a view of it, where it lies: large, and there without inductor."""
    tensor, written = _tensor(x), x
    while written.op == "call_method" and written.target in VIEWS:
        written = written.args[0]
    there = _is_unfused(written) or any(user.op == "output" for user in written.users)
    return (
        there
        and tensor.device.type == eager.DEVICE
        and _size(tensor) >= FEWEST_ELEMENTS
        and (not views or tensor.is_contiguous())
    )


def _size(tensor: Any) -> int:
    """Return how many elements there are; where the shape is dynamic, as traced."""
    count = tensor.numel()
    return count if isinstance(count, int) else count.node.hint or 0


def _is_unfused(node: Any) -> bool:
    """Whether inductor fuses nothing into a node."""
    return node.op in ("placeholder", "get_attr", "output") or _name(node) in UNFUSED


def _name(node: Any) -> Any:
    """Return the name of the function or method that a node calls."""
    return node.target if node.op == "call_method" else getattr(node.target, "__name__", None)


def _viewed(graph: Any, x: Any, views: list[Any]) -> Any:
    """Return the views of x, as they were of what it was converted to."""
    for view in views:
        x = graph.call_method(view.target, (x, *view.args[1:]), view.kwargs)
    return x


def _replace(graph: Any, node: Any, new: Any, x: Any) -> None:
    """Put a node in another's place, and drop the conversion of its input x and its views."""
    new.meta.update(node.meta)
    node.replace_all_uses_with(new)
    graph.erase_node(node)
    while not x.users:
        source = x.args[0]
        graph.erase_node(x)
        x = source
