"""DTensors: each process computes the rows that it has, where it has them whole.

A rule says of each operator how results are placed. It is called in the place of the operator, for
a DTensor, and calls it on what lies here.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from softgen.errors import NotSupportedError

# A result with one number a row.
ROWS = "rows"


class Rule(NamedTuple):
    """Which tensors of an operator have an element a column. The others have what belongs to rows.

    An argument `dim` says along which dimensions rows lie. Without one it is the last.

    Attributes:
        elements: the arguments that have these dimensions, by their names. The first says how the
            others, and the results, are placed.
        results: of each result the argument whose shape it has, or ROWS.
    """

    elements: tuple[str, ...]
    results: tuple[str, ...]


_ELEMENTS = Rule(("x",), ("x",))
_OF_RESULT = Rule(("y", "dy"), ("y",))

# By the names of rows of the table. PyTorch refuses DTensors for an operator without a rule.
RULES = {
    "softmax": _ELEMENTS,
    "softmax_backward": _OF_RESULT,
    "log_softmax": _ELEMENTS,
    "log_softmax_backward": _OF_RESULT,
    "logsumexp": Rule(("x",), (ROWS,)),
    "logsumexp_backward": _ELEMENTS,
    "entropy": Rule(("x",), (ROWS, ROWS)),
    "entropy_backward": _ELEMENTS,
    "token_log_probs": Rule(("x",), ("ids", ROWS, ROWS)),
    "token_log_probs_backward": _ELEMENTS,
    "cross_entropy": Rule(("x",), (ROWS,) * 4),
    "cross_entropy_backward": _ELEMENTS,
    "probability_losses": Rule(("x", "probs"), (ROWS,) * 3),
    "probability_losses_backward": Rule(("x", "probs"), ("x",)),
}


def there(result: Any) -> Any:
    """Return a result of an operator, or None for the tensor in the place of one not asked for."""
    return None if result is None or result.shape == (0,) else result


def is_dtensor(x: Any) -> bool:
    """Whether x is one. Nobody has one without that module, which takes seconds to import."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def prepare(*given: Any) -> bool:
    """Have the operators of RULES take DTensors, once one is given; return whether one is."""
    return any(is_dtensor(each) for each in given) and _all_served()


def _all_served() -> bool:
    if _waiting:
        _have_detached()
    while _waiting:
        name, rule = _waiting.popitem()
        for each in (name, f"{name}_kernel"):  # the latter is what autograd calls
            packet = getattr(torch.ops.softgen, each, None)
            for overload in packet.overloads() if packet is not None else ():
                serve(getattr(packet, overload), rule)
    return True


_waiting = dict(RULES)
# As torch.compiler.assume_constant_result has it, which imports the compiler.
vars(_all_served)["_dynamo_marked_constant"] = True


def _have_detached() -> None:
    """Have DTensors take detach_, by which autograd returns results: PyTorch 2.11 has no rule."""
    from torch.distributed.tensor import DTensor

    def run(kind: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0]

    torch.library.register_torch_dispatch(torch.ops.aten.detach_.default, DTensor, run)


def serve(operator: Any, rule: Rule) -> None:
    """Have an operator take DTensors by a rule."""
    from torch.distributed.tensor import DTensor

    names = [each.name for each in operator._schema.arguments]

    def run(kind: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(zip(names, args, strict=False)) | (kwargs or {})
        with torch.no_grad():
            return _served(operator, rule, given)

    torch.library.register_torch_dispatch(operator, DTensor, run)


def _served(operator: Any, rule: Rule, given: dict[str, Any]) -> Any:
    """Return the results of an operator that is given DTensors."""
    from torch.distributed.tensor import Replicate, Shard

    tensors = {name: each for name, each in given.items() if isinstance(each, torch.Tensor)}
    for name, each in tensors.items():
        if not is_dtensor(each) and each.dim():
            raise NotSupportedError(
                f"{name} is a tensor beside DTensors; place it by "
                "torch.distributed.tensor.distribute_tensor()"
            )
    x = given[rule.elements[0]]
    dim, ndim = given.get("dim", -1), max(1, x.dim())
    reduced = {each % ndim for each in ([dim] if isinstance(dim, int) else dim)}
    mesh, placements = x.device_mesh, [_whole_rows(each, reduced, ndim) for each in x.placements]
    kept = [each for each in range(x.dim()) if each not in reduced]

    def of_rows(shape: Sequence[int]) -> list[Any]:
        """Return how a tensor is placed that has what there is one of per row, or broadcasts."""
        absent, found = max(0, len(kept) - len(shape)), []
        for each in placements:
            at = kept.index(each.dim) - absent if each.is_shard() else -1
            here = at >= 0 and shape[at] == x.shape[each.dim]
            found.append(Shard(at) if here else Replicate())
        return found

    placed = dict(given)
    for name, each in tensors.items():
        if is_dtensor(each):
            wanted = placements if name in rule.elements else of_rows(each.shape)
            placed[name] = each.redistribute(mesh, wanted).to_local()
    results = operator(**placed)
    here = placed[rule.elements[0]].shape
    has_rows = math.prod(here[each] for each in kept) > 0

    def placed_as(result: Any, like: str) -> Any:
        # Of a process without rows what was asked for has that shape too.
        if there(result) is None and has_rows:
            return result
        shape = [x.shape[i] for i in kept] if like == ROWS else given[like].shape
        return whole(result, mesh, placements if like in rule.elements else of_rows(shape), shape)

    if isinstance(results, torch.Tensor):
        return placed_as(results, rule.results[0])
    return tuple(placed_as(*pair) for pair in zip(results, rule.results, strict=True))


def _whole_rows(placement: Any, reduced: set[int], ndim: int) -> Any:
    """Return how a tensor had better be placed of which each process has rows, none in parts."""
    from torch.distributed.tensor import Replicate, Shard

    dim = shard_dim(placement, ndim)
    if dim in reduced:
        raise NotSupportedError(
            f"this DTensor is sharded along dimension {dim}, and so are its rows; take "
            "softgen.distributed, which computes rows in shards of the last dimension, or "
            "redistribute it"
        )
    return Replicate() if dim is None else Shard(dim)


def shard_dim(placement: Any, ndim: int) -> int | None:
    """Return the dimension that a placement shards in chunks, or None."""
    if not placement.is_shard():
        return None
    if type(placement).__name__ != "Shard":
        raise NotSupportedError(f"a DTensor must be placed by Shard, got {placement}")
    dim: int = placement.dim % ndim
    return dim


def whole(result: Any, mesh: Any, placements: Sequence[Any], shape: Sequence[int]) -> Any:
    """Return the DTensor of which each process has a result, in chunks that may be uneven."""
    from torch.distributed.tensor import DTensor

    strides = [math.prod(max(1, size) for size in shape[i + 1 :]) for i in range(len(shape))]
    return DTensor.from_local(
        *(result, mesh, placements),
        run_check=False,
        shape=torch.Size(shape),
        stride=tuple(strides),
    )
