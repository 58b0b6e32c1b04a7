"""What reinforcement learning asks of logits, in one read: log p of tokens, and entropies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softgen.call.axes import axis_of, with_axes_kept
from softgen.call.ids import Ids, ids_of, require_columns, scale_of, temperature_of
from softgen.call.library import library_of
from softgen.call.options import HookedAxisOptions, HookedOptions, call
from softgen.errors import InvalidValueError
from softgen.problems.dtypes import compute_type
from softgen.problems.functions.topk_softmax import MOST_CHOSEN
from softgen.problems.problem import whole_number

if TYPE_CHECKING:
    from typing_extensions import Unpack


def entropy(
    x: Any,
    axis: int | tuple[int, ...] | None = -1,
    *,
    dtype: object = None,
    out: Any = None,
    keepdim: bool = False,
    return_lse: bool = False,
    **options: Unpack[HookedAxisOptions],
) -> Any:
    """Return -sum(p log p) of p = softmax(x) along `axis`, in nats: x is read once.

    Args:
        x: as in `softmax`.
        axis: as in `softmax`.
        dtype: dtype of the result; x's by default.
        out: where to write, an array of the result's shape (without keepdim), dtype and device.
        keepdim: whether results keep the axes, with length 1.
        return_lse: whether to return log(sum(exp(x))) of each row too, as `softmax` does.
        options: as in `softmax`, but for empty_rows, out_scale, dropout and its seed. A sink counts
            as one more column.

    Returns:
        An array of x's library, of x's shape without the axis; with `return_lse` a pair.

    Where x is -inf p log p is 0. NaN for a row with NaN or +inf, or of nothing but -inf. Raises
    what `softmax` raises.
    """
    name = "entropy_lse" if return_lse else "entropy"
    found = call(name, x, options, HookedAxisOptions, axis=axis, dtype=dtype, out=out)
    if not keepdim:
        return found
    axis, ndim = axis_of(axis, options.get("dim")), library_of(x)[1].ndim
    if return_lse:
        return tuple(with_axes_kept(each, axis, ndim) for each in found)
    return with_axes_kept(found, axis, ndim)


def token_log_probs(
    x: Any,
    ids: Any,
    *,
    temperature: Any = None,
    topk: int | None = None,
    dtype: object = None,
    out: Any = None,
    return_lse: bool = False,
    return_entropy: bool = False,
    checked: bool = False,
    **options: Unpack[HookedOptions],
) -> Any:
    """Return log_softmax(x / temperature) at the columns `ids` of each row: x is read once.

    Args:
        x: as in `softmax`; rows are those of its last axis.
        ids: the columns, int32 or int64, of x's library and on its device: one a row, of x's shape
            without the last axis, or up to 64 a row, in one more axis.
        temperature: above 0: a number, or an array of numbers that broadcasts over the rows.
        topk: 1 to 64: how many of the largest elements of each row to return too, and the rank of
            each id. It takes no dtype and no return_entropy.
        dtype: dtype of log-probabilities and entropies; float32 (float64 for float64) by default.
        out: where to write the log-probabilities, an array of the shape, dtype and device of ids'.
        return_lse: whether to return log(sum(exp(x / temperature))) of each row too, as `softmax`
            does.
        return_entropy: whether to return the entropy of each row of softmax(x / temperature) too.
        checked: whether an id that is no column raises InvalidValueError, for which the host waits
            for the GPU. Otherwise it gives NaN.
        options: as in `softmax`, but for dim, empty_rows, sink, out_scale, dropout and its seed.

    Returns:
        An array of ids' shape; with `return_lse` or `return_entropy` a tuple of it, lse and the
        entropy, of what is asked for. With `topk` a tuple of it, the log-probabilities of the
        largest elements and their columns (int32), largest first and of equal ones the lower
        column, in one more axis of `topk`, the rank of each id (int32, of ids' shape), and lse if
        it is asked for. A rank is how many elements of the row are larger than that of the id.

    A rank is -1 where the log-probability is NaN. Columns are then 0 to topk - 1 if the row's are.
    NaN for a row with NaN or +inf, or of nothing but -inf, and -inf for a column of -inf or one
    that a hook hides. Raises what `softmax` raises.
    """
    x = library_of(x)[1]
    given = ids_of(x, ids)
    if checked:
        require_columns(given.array, x.shape[-1])
    asked: dict[str, Any] = {**options}
    if temperature is not None:
        if asked.get("scale") is not None:
            raise InvalidValueError("scale is 1 / temperature; give one of them")
        asked["scale"] = scale_of(temperature_of(temperature))
    if topk is not None:
        taken = {"dtype": dtype is not None, "return_entropy": return_entropy}
        if refused := [name for name, is_given in taken.items() if is_given]:
            raise InvalidValueError(f"topk does not go with {refused[0]}; leave one of them out")
        return _ranked(x, given, topk_of(topk, x.shape[-1]), out, asked)[: 4 + return_lse]
    beside = "_entropy" if return_entropy else "_lse" if return_lse else ""
    name = f"token_log_probs{beside}{given.suffix}"
    out = out if out is None else given.flat(out)
    dtype = dtype or arithmetic_of(x)
    found = call(name, x, asked, HookedOptions, dtype=dtype, out=out, others=(given.array,))
    if not beside:
        return given.shaped(found)
    log_probs, *more = found  # the entropy, if any, then lse
    wanted = [more[-1]] * return_lse + [more[0]] * return_entropy
    return given.shaped(log_probs), *wanted


def topk_of(topk: Any, cols: int) -> int:
    """Return how many are chosen of rows of `cols` columns; raise for a number that cannot be."""
    k = whole_number("topk", topk)
    if not 1 <= k <= MOST_CHOSEN:
        raise InvalidValueError(f"topk must be from 1 to {MOST_CHOSEN}, got {k}")
    if k > cols:
        raise InvalidValueError(f"topk must be at most the {cols} columns, got {k}")
    return k


def _ranked(x: Any, ids: Ids, k: int, out: Any, options: dict[str, Any]) -> tuple[Any, ...]:
    """Return log-probabilities of ids, those of the `k` best, their columns, ranks and lse."""
    name = f"ranked_log_probs_top{k}{ids.suffix}"
    out = out if out is None else ids.flat(out)
    found = call(name, x, options, HookedOptions, out=out, others=(ids.array,))
    log_probs, best, columns, ranks, lse = found
    if k == 1:
        best, columns = best[..., None], columns[..., None]
    return ids.shaped(log_probs), best, columns, ids.shaped(ranks), lse


def arithmetic_of(x: Any) -> str:
    """Return the type of all arithmetic on x, by name."""
    library, array = library_of(x)
    return compute_type(library.dtype(array)).value
