"""What routers of experts ask of scores: the largest of each row and where, and their gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softgen.call.axes import axis_of, reduced
from softgen.call.library import Library, library_of
from softgen.call.options import AxisOptions, Options, call
from softgen.call.scalars import finite
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.names import unknown
from softgen.problems.dtypes import DType, compute_type
from softgen.problems.functions.topk_softmax import MOST_CHOSEN, MOST_GROUPS, TopkSoftmax
from softgen.problems.functions.topk_softmax_backward import TopkSoftmaxBackward
from softgen.problems.problem import whole_number

if TYPE_CHECKING:
    from typing_extensions import Unpack

SCORES = ("softmax", "sigmoid")


class HookedTopkOptions(AxisOptions, total=False):
    """What `topk_softmax` takes by name beside its own; docs/hooks.md says what hooks do."""

    softcap: float | None
    bias: Any
    mask: Any


def topk_softmax(
    x: Any,
    k: int,
    axis: int | tuple[int, ...] | None = -1,
    *,
    scores: str = "softmax",
    choice_bias: Any = None,
    groups: int | None = None,
    topk_groups: int | None = None,
    renormalize: bool = False,
    scale: float = 1.0,
    out: Any = None,
    **options: Unpack[HookedTopkOptions],
) -> tuple[Any, Any]:
    """Return the `k` largest scores along `axis` and their columns: x is read once.

    With s = softmax(x) or sigmoid(x), the choice is of the k largest s + choice_bias, largest
    first, of equal ones the lower column. Weights are s at these columns.

    Args:
        x: as in `softmax`.
        k: 1 to 64, at most the columns that are chosen from.
        axis: as in `softmax`; any other than the last may cost a copy of x.
        scores: "softmax" or "sigmoid".
        choice_bias: a number a column, which is added for the choice alone: an array of the type of
            weights, or of another float type, which costs a conversion.
        groups: into how many groups of adjacent columns a row is cut, 1 to 32; they have the same
            size. With `topk_groups`.
        topk_groups: how many groups are chosen from: those with the largest sum of their two
            largest s + choice_bias, or without choice_bias those with the largest s.
        renormalize: whether weights are divided by their sum.
        scale: a finite number that weights are times at last.
        out: where to write the weights, an array of their shape, dtype and device.
        options: dim, tune, variant, batch_invariant and pdl, as in `softmax`, and of its hooks,
            which modify x before its scores, softcap, bias and mask.

    Returns:
        The weights, float32 (float64 if x is), and their columns, int32: arrays of x's library, of
        x's shape without the axis, and one more axis of k.

    A row with NaN (with softmax also one with +inf, or of nothing but -inf) gives weights of NaN
    and the columns 0 to k - 1. Elements of -inf have weight 0; where a row has fewer than k others
    the lowest columns of -inf follow. Raises what `softmax` raises.
    """
    library, array = library_of(x)
    axis = axis_of(axis, options.pop("dim", None))
    function = _function(k, scores, choice_bias is not None, groups, topk_groups, renormalize)
    shape = reduced(array.shape, axis)
    if objection := function.objection(shape.cols):
        raise InvalidValueError(objection)
    others: tuple[Any, ...] = (finite("scale", scale),)
    if choice_bias is not None:
        others = (_bias(library, array, choice_bias, shape.cols), *others)
    single = function.k == 1
    if single and out is not None:
        out, wanted = library_of(out, "out")[1], (*shape.row_shape, 1)
        if tuple(out.shape) != wanted:
            raise InvalidValueError(f"out must have shape {wanted}, got {tuple(out.shape)}")
        out = out[..., 0]
    weights, ids = call(
        function.name, x, options, HookedTopkOptions, axis=axis, out=out, others=others
    )
    return (weights[..., None], ids[..., None]) if single else (weights, ids)


def _function(
    k: Any, scores: Any, bias: bool, groups: Any, topk_groups: Any, renormalize: bool
) -> TopkSoftmax:
    """Return the function of a call; raise for arguments that no kernel has."""
    k = whole_number("k", k)
    if not 1 <= k <= MOST_CHOSEN:
        raise InvalidValueError(f"k must be from 1 to {MOST_CHOSEN}, got {k}")
    if scores not in SCORES:
        raise InvalidValueError(unknown("scores", str(scores), list(SCORES)))
    if (groups is None) != (topk_groups is None):
        raise InvalidValueError("groups and topk_groups go together; give both, or none")
    count = 0 if groups is None else whole_number("groups", groups)
    kept = 0 if topk_groups is None else whole_number("topk_groups", topk_groups)
    if groups is not None and not 1 <= kept <= count <= MOST_GROUPS:
        raise InvalidValueError(
            f"topk_groups must be from 1 to groups, and groups up to {MOST_GROUPS}, got {kept} and "
            f"{count}"
        )
    if kept == count:  # all
        count = kept = 0
    return TopkSoftmax(k, scores == "sigmoid", bias, count, kept, bool(renormalize))


def _bias(library: Library, x: Any, choice_bias: Any, cols: int) -> Any:
    """Return the bias as a kernel takes it: contiguous, of the type of the arithmetic."""
    of, array = library_of(choice_bias, "choice_bias")
    if of is not library or library.device(array) != library.device(x):
        raise InvalidTypeError("choice_bias must be of x's library and on its device")
    if tuple(array.shape) != (cols,):
        raise InvalidValueError(
            f"choice_bias must have a number a column, shape {(cols,)}, got {tuple(array.shape)}"
        )
    kind = compute_type(library.dtype(x))
    found = library.element_type(array)
    if not isinstance(found, DType):
        raise InvalidTypeError(f"choice_bias must be of floats, got {found.value}")
    if found is kind:
        return library.contiguous(array)
    converted = library.empty((cols,), kind, library.device(array))
    library.assign(converted, array)
    return converted


def topk_softmax_backward(
    x: Any,
    weights: Any,
    ids: Any,
    upstream: Any,
    *,
    scores: str = "softmax",
    renormalize: bool = False,
    scale: float = 1.0,
    dtype: object = None,
    out: Any = None,
    **options: Unpack[Options],
) -> Any:
    """Return the gradient with respect to x of the weights of topk_softmax(x, k): x is read once.

    The choice is no function that has a gradient: choice_bias gets none.

    Args:
        x: as in `topk_softmax`; rows are those of its last axis.
        weights: as `topk_softmax` returned them.
        ids: likewise, int32.
        upstream: gradient with respect to the weights, of their shape and dtype.
        scores: as in `topk_softmax`.
        renormalize: as in `topk_softmax`.
        scale: as in `topk_softmax`.
        dtype: dtype of dx; x's by default.
        out: where to write: x itself, or another array of dx's shape, dtype and device.
        options: tune, variant, batch_invariant and pdl, as in `softmax`.

    A row whose weights are NaN gives NaN where they are of, and with softmax that is not
    renormalized everywhere. Raises what `softmax` raises.
    """
    library, array = library_of(x)
    arrays = [library_of(each)[1] for each in (weights, ids, upstream)]
    k = int(arrays[0].shape[-1]) if arrays[0].ndim else 0
    _function(k, scores, False, None, None, renormalize)
    if k > array.shape[-1]:
        raise InvalidValueError(f"x has {array.shape[-1]} columns, and weights are of {k}")
    if k == 1:
        of_one = (*array.shape[:-1], 1)
        arrays = [each[..., 0] if tuple(each.shape) == of_one else each for each in arrays]
    function = TopkSoftmaxBackward(k, scores == "sigmoid", bool(renormalize))
    number = finite("scale", scale)
    others = (*map(library.contiguous, arrays), *((number,) if renormalize else ()))
    return call(function.name, x, options, Options, dtype=dtype, out=out, others=others)
