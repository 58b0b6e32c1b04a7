"""Rows over several GPUs on CuPy arrays, without PyTorch: by NCCL, through cupyx.distributed.

The functions are those of `softgen.distributed`, without gradients (docs/distributed.md).
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from softgen.call.ids import count_of, require_one_a_row
from softgen.call.losses import reduced, require_reduction
from softgen.call.scalars import whole
from softgen.call.tokens import arithmetic_of
from softgen.distributed.gathered import Gathered, offset_of
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.dtypes import DType
from softgen.problems.functions.cross_entropy import IGNORE_INDEX

# By communicator how many processes it has.
_sizes: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def softmax(x_local: Any, comm: Any, *, dtype: object = None) -> Any:
    """Return this process's columns of the softmax of rows whose columns all processes share.

    Args:
        x_local: this process's columns, a CuPy array (..., columns) on the current device, of the
            same rows and dtype in all processes. Columns may differ, and there may be none.
        comm: the communicator, as cupyx.distributed.init_process_group returns it for NCCL.
        dtype: dtype of the result; x_local's by default.

    All processes call this. Raises what `softgen.softmax` raises.
    """
    return _Nccl(comm).softmax(_wide_for(dtype, x_local), dtype)


def log_softmax(x_local: Any, comm: Any, *, dtype: object = None) -> Any:
    """Return this process's columns of the logarithm of the softmax; see `softmax`."""
    return _Nccl(comm).softmax(_wide_for(dtype, x_local), dtype, log=True)


def logsumexp(x_local: Any, comm: Any, *, keepdim: bool = False) -> Any:
    """Return log(sum(exp(x))) of whole rows, float32 (float64 for float64): one a row, everywhere.

    The arguments are those of `softmax`. With `keepdim` the result keeps the last axis.
    """
    lse = _Nccl(comm).logsumexp(_checked(x_local))
    return lse[..., None] if keepdim else lse


def token_log_probs(
    x_local: Any, ids: Any, comm: Any, *, return_lse: bool = False, offset: int | None = None
) -> Any:
    """Return log_softmax(x) at the columns `ids` of whole rows, in all processes.

    Args:
        x_local: as in `softmax`.
        ids: numbers of columns among those of all processes, the same in each: int32 or int64, one
            a row, or several, in one more axis.
        comm: as in `softmax`.
        return_lse: whether to return log(sum(exp(x))) too.
        offset: the number of x_local's first column. By default the processes ask each other at the
            first call with so many columns.

    Returns:
        float32 (float64 for float64), of ids' shape; or a pair of it and lse. NaN for an id that no
        process has.
    """
    x, ids = _checked(x_local), _integers("ids", ids)
    several = ids.ndim == x.ndim
    count_of(ids.shape, x.shape)
    m, log_sum, logits = _of_columns(x, ids if several else ids[..., None], comm, offset)
    log_probs = (logits - m[..., None]) - log_sum[..., None]
    log_probs = log_probs if several else log_probs[..., 0]
    return (log_probs, m + log_sum) if return_lse else log_probs


def cross_entropy(
    x_local: Any,
    target: Any,
    comm: Any,
    *,
    ignore_index: int = IGNORE_INDEX,
    reduction: str = "mean",
    offset: int | None = None,
) -> Any:
    """Return the cross entropy of whole rows with class indices, in all processes.

    Args:
        x_local: logits, as in `softmax`.
        target: the class of each row among those of all processes, the same in each: int32 or
            int64, of the shape of the rows.
        comm: as in `softmax`.
        ignore_index: a target that counts for nothing: its loss is 0.
        reduction: "mean" over the rows that count, "sum", or "none" for a loss a row.
        offset: as in `token_log_probs`.

    Returns:
        The loss in float32 (float64 for float64). NaN for a target that no process has.
    """
    require_reduction(reduction)
    ignored = whole("ignore_index", ignore_index)
    x, target = _checked(x_local), _integers("target", target)
    require_one_a_row(target.shape, x.shape)
    first = _first(x, comm, offset)
    losses, _ = _Nccl(comm).losses(x, target, first, ignored, 0.0)
    return reduced(losses, target, ignored, reduction)


class _Nccl(Gathered):
    """Parts of rows through a communicator."""

    @property
    def size(self) -> int:
        """How many processes it has, which it does not say: they count, once."""
        if self.group not in _sizes:
            one = _cupy().ones(1, "int32")
            count = _cupy().empty_like(one)
            self.group.all_reduce(one, count)
            _sizes[self.group] = int(count[0])
        return _sizes[self.group]

    def gather(self, mine: Any) -> Any:
        """Return (n, rows) of each process as (processes, n, rows), in the order of the ranks."""
        mine = _cupy().ascontiguousarray(mine)
        every = _cupy().empty((self.size, *mine.shape), mine.dtype)
        self.group.all_gather(mine, every, mine.size)
        return every

    @property
    def rank(self) -> int:
        """The number of this process."""
        return int(self.group.rank)

    def count(self, x: Any) -> Any:
        """Return how many columns the shard has, as an array (1, 1) for `gather`."""
        return _cupy().array([[x.shape[-1]]], "int64")


def _wide_for(dtype: object, x: Any) -> Any:
    """Return x, as float64 where the results are, so that the pairs are too."""
    x = _checked(x)
    double = dtype is not None and DType.of(dtype) is DType.FLOAT64
    return x.astype("float64") if double else x


def _of_columns(x: Any, ids: Any, comm: Any, offset: int | None) -> tuple[Any, Any, Any]:
    """Return of whole rows m, log(d), and the elements at the columns `ids`, (..., k).

    Elements are NaN where no process has the column.
    """
    cupy, cols, infinity = _cupy(), x.shape[-1], float("inf")
    columns = ids - _first(x, comm, offset)
    logits = cupy.full(ids.shape, infinity, arithmetic_of(x))
    if cols:
        nearest = columns.clip(0, cols - 1)
        found = cupy.take_along_axis(x, nearest, -1).astype(logits.dtype)
        logits = cupy.where(nearest == columns, found, logits)
    m, d, logits = _Nccl(comm).pairs(x, None, logits)
    # What has +inf among its logits has a pair of NaN.
    return m, cupy.log(d), cupy.where(logits == infinity, float("nan"), logits)


def _first(x: Any, comm: Any, offset: int | None) -> int:
    """Return the number of the shard's first column; where none is given, as the processes say."""
    return _Nccl(comm).first_column(-1 if offset is None else offset_of(offset), x)


def _integers(name: str, columns: Any) -> Any:
    """Return an array of numbers of columns; raise InvalidTypeError for anything else."""
    if not isinstance(columns, _cupy().ndarray) or columns.dtype.name not in ("int32", "int64"):
        given = getattr(columns, "dtype", type(columns).__qualname__)
        raise InvalidTypeError(f"{name} must be a CuPy array of int32 or int64, got {given}")
    return columns


def _checked(x: Any) -> Any:
    """Return x; raise InvalidTypeError or InvalidValueError unless it is an array of rows."""
    if not isinstance(x, _cupy().ndarray):
        raise InvalidTypeError(
            f"softgen.distributed.on_cupy takes CuPy arrays, got {type(x).__qualname__}"
        )
    if not x.ndim:
        raise InvalidValueError("x_local must have columns along its last axis, got no axis")
    arithmetic_of(x)  # it raises for a type that is not served, before others wait for this process
    return x


def _cupy() -> Any:
    import cupy

    return cupy
