"""The functions with a result a column, and logsumexp."""

from __future__ import annotations

from typing import Any

import torch

from softgen.distributed import operators
from softgen.distributed.dtensor import Sharded
from softgen.distributed.exchange import name_of
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError
from softgen.problems.dtypes import DType, Float8, result_type
from softgen.torch.dtypes import FLOATS, HALVES, is_autocast


def softmax(x_local: Any, *, dtype: Any = None, group: Any = None) -> Any:
    """Return this process's columns of the softmax of rows whose columns all processes share.

    Args:
        x_local: this process's columns, (..., columns), float16, bfloat16, float32 or float64; of
            the same rows and dtype in all processes. Columns may differ, and there may be none. Or
            a DTensor that is sharded along its last dimension.
        dtype: dtype of the result; x_local's by default, under torch.autocast float32 for 16-bit
            inputs.
        group: the process group, the default one if None; the DTensor's own for a DTensor.

    Returns:
        A tensor of x_local's shape, or a DTensor placed as it is.

    All processes of the group call this, and then `backward` if any does: it adds up a number a
    row over them. The gradient is not differentiable again. A row with NaN or +inf anywhere, or of
    nothing but -inf, is NaN in all processes.

    Raises NotSupportedError before torch.distributed is initialised, and what `softgen.softmax`
    raises.
    """
    return _elements(x_local, dtype, False, group)


def log_softmax(x_local: Any, *, dtype: Any = None, group: Any = None) -> Any:
    """Return this process's columns of the logarithm of the softmax; see `softmax`.

    -inf gives -inf where the rest of the row is finite.
    """
    return _elements(x_local, dtype, True, group)


def logsumexp(x_local: Any, *, keepdim: bool = False, dtype: Any = None, group: Any = None) -> Any:
    """Return log(sum(exp(x))) of rows whose columns all processes share: the same bits in each.

    Args:
        x_local: as in `softmax`.
        keepdim: whether the result keeps the last dimension, with length 1.
        dtype: as in `softmax`.
        group: as in `softmax`.

    Returns:
        A tensor of the rows' shape, or a DTensor that is replicated over the group.

    The gradient is exp(x - lse) times that of the result, which has to be the same in all
    processes, as where each computes the same loss. -inf for a row of -inf, +inf where there is
    +inf.
    """
    placed = Sharded.of(x_local, group)
    x = checked(placed.x)
    dtype = result_dtype(dtype, x)
    lse = placed.rows(operators.logsumexp(x, name_of(placed.group)).to(dtype))
    return lse[..., None] if keepdim else lse


def checked(x: Any) -> Any:
    """Return x; raise InvalidTypeError or InvalidValueError unless it is a tensor of rows."""
    if not isinstance(x, torch.Tensor):
        raise InvalidTypeError(f"softgen.distributed takes tensors, got {type(x).__qualname__}")
    if x.dtype not in FLOATS:
        raise InvalidTypeError(f"x_local must be a float of 16 to 64 bits, got {x.dtype}")
    if not x.dim():
        raise InvalidValueError("x_local must have columns along its last dimension, got none")
    return x


def result_dtype(dtype: Any, x: Any) -> Any:
    """Return PyTorch's dtype of results; raise InvalidTypeError or NotSupportedError for others.

    None is x's; under torch.autocast float32 for 16 bits.
    """
    if dtype is None:
        kept = x.dtype in HALVES and is_autocast(x)
        return torch.float32 if kept else x.dtype
    if isinstance(dtype, torch.dtype) and dtype in FLOATS:
        return dtype
    found = result_type(dtype)
    if isinstance(found, Float8):
        raise NotSupportedError(
            f"softgen.distributed has no 8-bit results, got dtype {found.value}; take one of "
            f"{', '.join(DType)}"
        )
    return getattr(torch, found.value)


def _elements(x_local: Any, dtype: Any, log: bool, group: Any) -> Any:
    """Return this shard of the softmax, or its logarithm."""
    placed = Sharded.of(x_local, group)
    x = checked(placed.x)
    dtype = result_dtype(dtype, x)
    if dtype is torch.float64:  # the pairs are then float64 as well
        x = x.to(dtype)
    return placed.elements(operators.softmax(x, dtype, log, name_of(placed.group)))
