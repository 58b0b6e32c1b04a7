"""What people write in PyTorch for a call: the expression that `torch` and `torch.compile` run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from softgen.bench.shape import Shape

# Functions of one input, by the names that PyTorch has for them; each writes into `out=`.
BY_NAME = ("softmax", "log_softmax", "logsumexp")
BACKWARD = ("softmax_backward", "log_softmax_backward")

Expression = Callable[..., Any]


def _cross_entropy(x: Any, target: Any, *_: Any) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(x, target, reduction="none")


def _cross_entropy_grad(x: Any, target: Any, _: int, upstream: float, *numbers: Any) -> Any:
    """Return what autograd does for the sum of the losses times `upstream`."""
    import torch

    log_p = x.log_softmax(-1)
    of_log_p = torch.zeros_like(log_p).scatter(-1, target[:, None], -upstream)
    return torch.ops.aten._log_softmax_backward_data(of_log_p, log_p, -1, x.dtype)


def _cross_entropy_backward(
    x: Any, target: Any, _: int, lse: Any, upstream: float, *numbers: Any
) -> Any:
    import torch

    p = (x - lse[:, None]).exp()
    hit = torch.arange(x.shape[1], device=x.device) == target[:, None]
    return torch.where(hit, p - 1, p) * upstream


def _token_log_probs(x: Any, ids: Any) -> Any:
    return x.log_softmax(-1).gather(-1, ids[:, None])[:, 0]


def _entropy(x: Any) -> Any:
    log_p = x.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def _entropy_backward(x: Any, lse: Any, entropy: Any, upstream: Any) -> Any:
    log_p = x - lse[:, None]
    return -log_p.exp() * (log_p + entropy[:, None]) * upstream[:, None]


def _logsumexp_backward(x: Any, lse: Any, upstream: Any) -> Any:
    return (x - lse[:, None]).exp() * upstream[:, None]


# Expressions of rows of logits, by softgen's names for the functions. Their arguments are those of
# the kernel, in its order. Each gives the first result of the kernel, and no other.
OF_LOGITS: dict[str, Expression] = {
    "cross_entropy": _cross_entropy,
    "cross_entropy_grad": _cross_entropy_grad,
    "cross_entropy_backward": _cross_entropy_backward,
    "token_log_probs": _token_log_probs,
    "entropy": _entropy,
    "entropy_backward": _entropy_backward,
    "logsumexp_backward": _logsumexp_backward,
}
OF_TORCH = (*BY_NAME, *BACKWARD, *OF_LOGITS)


def expression(shape: Shape) -> Expression:
    """Return f(*inputs, **given): the result of a call with PyTorch's functions.

    `given` are the arguments of the shape's hook, arrays as tensors.
    """
    import torch

    name, axis = shape.function.name, shape.axis
    if name in BACKWARD:
        operation = getattr(torch.ops.aten, f"_{name}_data")
        return lambda dy, y: operation(dy, y, axis, y.dtype)
    if name in OF_LOGITS:
        return OF_LOGITS[name]
    function = getattr(torch, name)
    if not (shape.case and shape.case.hook):
        return lambda x: function(x, axis)
    return lambda x, **given: _left(torch, function(_entered(torch, x, **given), axis), **given)


def _entered(
    torch: Any,
    x: Any,
    scale: Any = None,
    softcap: float | None = None,
    bias: Any = None,
    mask: Any = None,
    lengths: Any = None,
    causal: bool = False,
    sink: Any = None,
    **_: Any,
) -> Any:
    """Return x of shape (batch, head, query, key) as a function takes it."""
    queries, keys = x.shape[-2:]
    if scale is not None:
        x = x * (scale if isinstance(scale, float) else scale[..., None].to(x.dtype))
    if softcap is not None:
        x = softcap * torch.tanh(x / softcap)
    if bias is not None:
        x = x + bias
    if mask is not None:
        x = x.masked_fill(~mask, float("-inf"))
    if lengths is not None or causal:
        column = torch.arange(keys, device=x.device)
        if lengths is not None:
            x = torch.where(column < lengths[..., None], x, float("-inf"))
        if causal:
            position = torch.arange(queries, device=x.device)[:, None]
            x = torch.where(column <= position + (keys - queries), x, float("-inf"))
    if sink is not None:
        x = torch.cat((x, sink[..., None].expand(*x.shape[:-1], 1).to(x.dtype)), -1)
    return x


def _left(
    torch: Any,
    y: Any,
    sink: Any = None,
    empty_rows: str = "nan",
    out_scale: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> Any:
    """Return the result of a call from that of the function."""
    if sink is not None:
        y = y[..., :-1]
    if empty_rows == "zero":
        y = torch.nan_to_num(y, nan=0.0)
    if out_scale is not None:
        y = y * out_scale
    return torch.nn.functional.dropout(y, dropout) if dropout else y
