"""The calls of cross entropy on class indices or probabilities, and of its gradient."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from softgen.call.ids import require_one_a_row
from softgen.call.library import library_of
from softgen.call.options import HookedOptions, call
from softgen.call.scalars import finite, is_number, whole
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.names import unknown
from softgen.problems.dtypes import DType, FloatType, Integer, compute_type
from softgen.problems.functions.cross_entropy import IGNORE_INDEX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Unpack


REDUCTIONS = ("mean", "sum", "none")


def cross_entropy(
    x: Any,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = IGNORE_INDEX,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    return_lse: bool = False,
    checked: bool = False,
    **options: Unpack[HookedOptions],
) -> Any:
    """Return the cross entropy of rows of logits; x is read once.

    A loss is lse - x[target] with lse = log(sum(exp(x))), from (max - x[target]) + log(sum), which
    does not cancel.

    Args:
        x: logits, as in `softmax`; classes along the last axis.
        target: the class of each row, int32 or int64, of x's shape without the last axis, of x's
            library and device; or the probability of each class, of x's shape and dtype.
        weight: what the loss of each class is times: a number a class, float32 (float64 if x is).
            z_loss lse^2 is times that of the target, but beside probabilities.
        ignore_index: a target that counts for nothing: its loss is 0, its lse -inf, and its row is
            not read where the kernel can skip it.
        reduction: "mean" over the rows that count (by their weights, where there are some), "sum",
            or "none" for a loss a row.
        label_smoothing: 0 to 1: how much of the target's probability all classes share. Where it
            is above 0 a class of -inf makes a loss infinite, as in PyTorch.
        z_loss: the weight of lse^2, which is added to a loss.
        return_lse: whether to return lse of each row beside the loss, as the gradient needs it.
        checked: raise InvalidValueError for a target that is no class. It waits for the GPU.
            Without it, such a loss is NaN, and so is what is reduced of it.
        options: tune, variant, batch_invariant, pdl, scale, softcap, bias, mask, lengths, causal
            and sink, as in `softmax`. Label smoothing takes no sink. Probabilities, and weights
            with label smoothing, take no hooks.

    Returns:
        The loss in float32, or float64 if x is: an array of no axes, or one of the rows' shape;
        with `return_lse` a pair of it and lse.

    A weight beside label_smoothing or probabilities takes memory of twice x's shape, in the type of
    the losses. A row with NaN or +inf, or of nothing but -inf, gives NaN.

    Raises what `softmax` raises, and InvalidValueError or InvalidTypeError for arguments that do
    not fit x.
    """
    require_reduction(reduction)
    x, target = library_of(x)[1], library_of(target, "target")[1]
    are_probs = are_probabilities(target, x)
    if are_probs:
        require_no_index(ignore_index)
    if weight is not None:
        weight = library_of(weight, "weight")[1]
        _require_weight(weight, x)
        if are_probs or label_smoothing:
            weighed = _weighed(x, target, weight, ignore_index, label_smoothing, checked=checked)
            loss, lse, _ = weighed.losses(z_loss, options)
            loss = reduced_by(loss, reduction, weighed.divisor)
            return (loss, lse) if return_lse else loss
    if are_probs:
        request = (x, target, label_smoothing, z_loss)
        loss, lse, _ = losses_of_probabilities(*request, options=options)
        loss = reduced_by(loss, reduction, lambda: math.prod(loss.shape))
        return (loss, lse) if return_lse else loss
    loss, lse = losses_of_rows(
        *(x, target, ignore_index, label_smoothing, z_loss),
        checked=checked,
        options=options,
    )
    loss = reduced(loss, target, ignore_index, reduction, weight, int(x.shape[-1]))
    return (loss, lse) if return_lse else loss


def require_reduction(reduction: Any) -> None:
    """Raise InvalidValueError for a reduction that is none."""
    if reduction not in REDUCTIONS:
        raise InvalidValueError(unknown("reduction", str(reduction), list(REDUCTIONS)))


def are_probabilities(target: Any, x: Any) -> bool:
    """Whether a target has the probabilities of classes, and not their indices."""
    library, target = library_of(target, "target")
    kind = library.element_type(target)
    if isinstance(kind, FloatType) and len(target.shape) < library_of(x)[1].ndim:
        raise no_indices(kind.value, target.shape)
    return isinstance(kind, FloatType)


def no_indices(dtype: Any, shape: Sequence[int]) -> InvalidTypeError:
    """Return the error for a target of floats in the shape of class indices."""
    return InvalidTypeError(
        f"target is of {dtype} in the shape of class indices, {tuple(shape)}; convert it to int64, "
        "or give the probability of each class, in the shape of the logits"
    )


def require_no_index(ignore_index: int) -> None:
    """Raise an error for a target to ignore, which means nothing to probabilities."""
    if whole("ignore_index", ignore_index) >= 0:
        raise InvalidValueError(
            f"ignore_index is for class indices, got {ignore_index} with probabilities; "
            "leave it out"
        )


def losses_of_probabilities(
    x: Any, probs: Any, label_smoothing: float, z_loss: float, *, options: Mapping[str, Any]
) -> tuple[Any, Any, Any]:
    """Return the loss of each row, lse, and the sum of its probabilities.

    The arguments are those of `cross_entropy`. With smoothing x is read twice.
    """
    smoothing, z_loss = smoothing_of(label_smoothing), finite("z_loss", z_loss)
    loss, lse, mass = call("cross_entropy_probs", x, options, HookedOptions, others=(probs,))
    if smoothing:
        # The mean of all columns' losses is that of any target with all of the smoothing. Where it
        # is NaN alone, as that target is -inf, it is infinite.
        first = (lse != lse) * 0
        mean, _ = losses_of_rows(x, first, IGNORE_INDEX, 1.0, 0.0, options=options)
        mean[(mean != mean) & (lse - lse == 0)] = math.inf
        loss = ((1 - smoothing) * loss if smoothing < 1 else 0.0) + smoothing * mean
    return (loss + z_loss * lse * lse if z_loss else loss), lse, mass


def losses_of_rows(
    x: Any,
    target: Any,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    *,
    checked: bool = False,
    options: Mapping[str, Any],
) -> tuple[Any, Any]:
    """Return the loss of each row, without weights, and lse.

    The arguments are those of `cross_entropy`.
    """
    smoothing, z_loss = smoothing_of(label_smoothing), finite("z_loss", z_loss)
    ignored = whole("ignore_index", ignore_index)
    stem = "cross_entropy_smooth" if smoothing else "cross_entropy"
    name, array, target = _of_target(stem, x, target)
    if checked:
        _require_classes(target, int(array.shape[-1]), ignored)
    rest = (target, ignored, *((smoothing,) if smoothing else ()), z_loss)
    found: tuple[Any, Any] = call(name, x, options, HookedOptions, others=rest)
    return found


def reduced_by(loss: Any, reduction: str, divisor: Callable[[], Any]) -> Any:
    """Return losses of rows, their sum, or, for a mean, that over what `divisor` returns."""
    if reduction == "none":
        return loss
    return loss.sum() / divisor() if reduction == "mean" else loss.sum()


def reduced(
    loss: Any, target: Any, ignored: int, reduction: str, weight: Any = None, cols: int = 0
) -> Any:
    """Return what is made of the losses of rows; `cols` are the classes that have a weight."""
    return reduction_of(loss, target, ignored, reduction, weight, cols)[0]


def mean_of(loss: Any, target: Any, ignored: int, weights: Any) -> tuple[Any, Any]:
    """Return the mean of losses that are times their weights, and what divided their sum."""
    counted = (target != ignored).sum(dtype=loss.dtype) if weights is None else weights.sum()
    return loss.sum() / counted, counted


def reduction_of(
    loss: Any,
    target: Any,
    ignored: int,
    reduction: str,
    weight: Any,
    cols: int,
    mean: Callable[..., tuple[Any, Any]] = mean_of,
) -> tuple[Any, Any, Any]:
    """Return what `reduced` does, the weights of rows or None, and what divided the sum, or None.

    A weight is 0 where a row is ignored. `mean` does what `mean_of` does.
    """
    weights = None
    if weight is not None:
        weights = weights_of(weight, target, ignored, cols)
        loss = loss * weights
    if reduction == "mean":
        loss, counted = mean(loss, target, ignored, weights)
        return loss, weights, counted
    return (loss.sum() if reduction == "sum" else loss), weights, None


def weights_of(weight: Any, target: Any, ignored: int, cols: int) -> Any:
    """Return the weight of each row: that of its class, 0 where it is ignored."""
    classes = target.clip(0, cols - 1)  # it may be no class
    # The host would read an index without axes.
    found = weight[classes] if classes.ndim else weight[classes.reshape(1)].reshape(())
    return found * (target != ignored)


def _weights_of_rows(weight: Any, x: Any, target: Any, ignored: int) -> Any:
    """Return the weight of each row, or None without weights; raise for some that do not fit."""
    if weight is None:
        return None
    _require_weight(weight, x)
    return weights_of(library_of(weight, "weight")[1], target, ignored, int(x.shape[-1]))


def cross_entropy_grad(
    x: Any,
    target: Any,
    upstream: Any = 1.0,
    *,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    weight: Any = None,
    dtype: object = None,
    out: Any = None,
    **options: Unpack[HookedOptions],
) -> tuple[Any, Any, Any]:
    """Return the gradient of cross entropy with its loss: x is read once and dx written once.

    Where `upstream` is known only after the loss, take `cross_entropy_backward`.

    Args:
        x: as in `cross_entropy`.
        target: as in `cross_entropy`. With probabilities x and they are read twice.
        upstream: the gradient with respect to each loss: a finite number, as 1 / rows for a mean,
            or an array as in `cross_entropy_backward`, of which the host reads nothing.
        ignore_index: as in `cross_entropy`; dx is 0 in such a row.
        label_smoothing: as in `cross_entropy`. Above 0 an upstream of the host is copied to the
            device, where the kernel reads it.
        z_loss: as in `cross_entropy`.
        weight: as in `cross_entropy`.
        dtype: dtype of dx; x's by default.
        out: where to write dx: x itself, or another array of its shape, dtype and device.
        options: as in `softmax`, without dim. Of the hooks `scale` and `softcap`: dx is with
            respect to x as it comes in. Rows of more than shared memory holds are read twice.

    Returns:
        dx = upstream (softmax(x) (1 + 2 z_loss lse) - [column is target]); the loss of each row,
        which is not times upstream; and lse. With a weight dx and loss are times that of the row's
        class. NaN in rows whose target is no class.
    """
    are_probs = are_probabilities(target, x)
    if are_probs:
        require_no_index(ignore_index)
    if weight is not None and (are_probs or label_smoothing):
        _require_weight(weight, x)
        weighed = _weighed(x, target, weight, ignore_index, label_smoothing)
        loss, lse, mass = weighed.losses(z_loss, options)
        if not hasattr(upstream, "shape") or is_number(upstream):
            upstream = _on_device(finite("upstream", upstream), x, dtype)
        dx = weighed.backward(lse, mass, upstream, z_loss, dtype=dtype, out=out, options=options)
        return dx, loss, lse
    if are_probs:
        loss, lse, mass = losses_of_probabilities(
            *(x, target, label_smoothing, z_loss), options=options
        )
        if not hasattr(upstream, "shape") or is_number(upstream):
            upstream = _on_device(finite("upstream", upstream), x, dtype)
        dx = backward_of_probabilities(
            *(x, target, lse, mass, upstream, label_smoothing, z_loss),
            **{"dtype": dtype, "out": out, "options": options},
        )
        return dx, loss, lse
    ignored, z_loss = whole("ignore_index", ignore_index), finite("z_loss", z_loss)
    smoothing = smoothing_of(label_smoothing)
    several = hasattr(upstream, "shape") and not is_number(upstream)
    kind = "_smooth" if smoothing else "_rows" if several or weight is not None else ""
    name, array, target = _of_target(f"cross_entropy_grad{kind}", x, target)
    if not several:
        upstream = finite("upstream", upstream)
    weights = _weights_of_rows(weight, array, target, ignored)
    if kind and not several:
        upstream, several = _on_device(upstream, array, dtype), True
    up = _upstreams(upstream, array, weights) if several else (upstream,)
    rest = (target, ignored, *up, *((smoothing,) if smoothing else ()), z_loss)
    found: tuple[Any, Any, Any]
    found = call(name, x, options, HookedOptions, dtype=dtype, out=out, others=rest)
    dx, loss, lse = found
    return (dx, loss if weights is None else loss * weights, lse)


def cross_entropy_backward(
    x: Any,
    target: Any,
    lse: Any,
    upstream: Any,
    *,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    weight: Any = None,
    dtype: object = None,
    out: Any = None,
    **options: Unpack[HookedOptions],
) -> Any:
    """Return the gradient of cross entropy with respect to x, from the log-sum-exp of its rows.

    x is read again. `cross_entropy_grad` reads it once, where `upstream` is a number of the host.

    Args:
        x: as in `cross_entropy`.
        target: as in `cross_entropy`.
        lse: of each row, as `cross_entropy` returns it: float32, or float64 if x or dx is.
        upstream: the gradient with respect to each loss, of lse's type and shape; or an array of
            one element for all rows.
        ignore_index: as in `cross_entropy`; dx is 0 in such a row, of which nothing is read.
        label_smoothing: as in `cross_entropy`.
        z_loss: as in `cross_entropy`.
        weight: as in `cross_entropy`.
        dtype: dtype of dx; x's by default.
        out: where to write dx: x itself, or another array of its shape, dtype and device.
        options: as in `cross_entropy_grad`.

    exp(x - lse) is off by |lse| 2^-24 of itself, as lse is rounded: 7.6e-6 for logits of 128. NaN
    in rows whose target is no class, or whose lse is not finite.
    """
    lse = library_of(lse, "lse")[1]
    are_probs = are_probabilities(target, x)
    if are_probs:
        require_no_index(ignore_index)
    if weight is not None and (are_probs or label_smoothing):
        _require_weight(weight, x)
        weighed = _weighed(x, target, weight, ignore_index, label_smoothing)
        mass = weighed.probs.sum(-1)
        return weighed.backward(lse, mass, upstream, z_loss, dtype=dtype, out=out, options=options)
    if are_probs:
        mass = library_of(target)[1].sum(-1, dtype=lse.dtype)
        return backward_of_probabilities(
            *(x, target, lse, mass, upstream, label_smoothing, z_loss),
            **{"dtype": dtype, "out": out, "options": options},
        )
    ignored = whole("ignore_index", ignore_index)
    smoothing, z_loss = smoothing_of(label_smoothing), finite("z_loss", z_loss)
    name, array, target = _of_target("cross_entropy_backward", x, target)
    weights = _weights_of_rows(weight, array, target, ignored)
    rest = (target, ignored, lse, *_upstreams(upstream, array, weights), smoothing, z_loss)
    return call(name, x, options, HookedOptions, dtype=dtype, out=out, others=rest)


def backward_of_probabilities(
    x: Any,
    probs: Any,
    lse: Any,
    mass: Any,
    upstream: Any,
    label_smoothing: float,
    z_loss: float,
    *,
    dtype: object,
    out: Any,
    options: Mapping[str, Any],
) -> Any:
    """Return the gradient with respect to x, with what `losses_of_probabilities` returned.

    The arguments are those of `cross_entropy_backward`. With u the gradient with respect to a loss,
    p its softmax, q its probabilities and s the smoothing dx is
    u (p ((1 - s) sum(q) + s + 2 z_loss lse) - (1 - s) q - s / columns).
    """
    smoothing, z_loss = smoothing_of(label_smoothing), finite("z_loss", z_loss)
    library, array = library_of(x)
    lse, mass = library_of(lse, "lse")[1], library_of(mass)[1]
    up = _of_every_row(upstream, array)
    scale = up * ((1 - smoothing) * mass + (smoothing + 2 * z_loss * lse))
    each = (scale, up * (1 - smoothing), up * (smoothing / max(1, array.shape[-1])))
    rest = (probs, lse, *map(library.contiguous, each))
    name = "cross_entropy_probs_backward"
    return call(name, x, options, HookedOptions, dtype=dtype, out=out, others=rest)


class _Weighed(NamedTuple):
    """A loss with weights of classes, as a loss of probabilities, in the type of the arithmetic.

    Attributes:
        x: the logits, 0 in rows that are ignored, NaN in those whose target is no class.
        probs: what the loss has of each class: 0 in rows that are ignored.
        of_rows: the weights of targets, 0 in such rows; 1 where probabilities are given.
        counts: where rows are not ignored; None where probabilities are given.
        dtype: that of the logits that were given.
    """

    x: Any
    probs: Any
    of_rows: Any
    counts: Any
    dtype: DType

    def divisor(self) -> Any:
        """Return what divides the sum of a mean."""
        return math.prod(self.x.shape[:-1]) if self.counts is None else self.of_rows.sum()

    def losses(self, z_loss: float, options: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """Return the loss of each row, lse, and the sum of what the loss has of the classes."""
        z_loss, rest = finite("z_loss", z_loss), (self.probs,)
        loss, lse, mass = call("cross_entropy_probs", self.x, options, HookedOptions, others=rest)
        if z_loss:
            loss = loss + z_loss * self.of_rows * lse * lse
        if self.counts is not None:
            lse[~self.counts] = -math.inf
        return loss, lse, mass

    def backward(
        self, lse: Any, mass: Any, upstream: Any, z_loss: float, *, dtype: object, **options: Any
    ) -> Any:
        """Return the gradient with respect to x, from what `losses` returns."""
        if self.counts is not None:  # what is infinite times the gradient of no row
            copy = library_of(lse, "lse")[0].copy
            lse, upstream = copy(lse), copy(_of_every_row(upstream, self.x))
            lse[~self.counts] = upstream[~self.counts] = 0
        mass = mass + 2 * finite("z_loss", z_loss) * self.of_rows * lse
        dtype = self.dtype if dtype is None else dtype
        request = (self.x, self.probs, lse, mass, upstream, 0.0, 0.0)
        return backward_of_probabilities(*request, dtype=dtype, **options)


def _weighed(
    x: Any, target: Any, weight: Any, ignored: Any, smoothing: Any, *, checked: bool = False
) -> _Weighed:
    """Return the loss with weights of classes, of label smoothing or of probabilities.

    With w the weights and s the smoothing, what it has of the C classes is ((1 - s) q + s / C) w of
    probabilities q, and of a target (1 - s) w[target] of that class and s / C w of all.
    """
    smoothing, ignored = smoothing_of(smoothing), whole("ignore_index", ignored)
    library, x = library_of(x)
    weight, target = library_of(weight, "weight")[1], library_of(target, "target")[1]
    kind, cols, device = library.dtype(x), int(x.shape[-1]), library.device(x)

    def wide(array: Any) -> Any:
        made = library.empty(tuple(array.shape), compute_type(kind), device)
        library.assign(made, array)
        return made

    share = smoothing / max(1, cols) * weight
    if are_probabilities(target, x):
        probs = (1 - smoothing) * wide(target) * weight + share
        return _Weighed(wide(x), probs, 1.0, None, kind)
    _of_target("cross_entropy", x, target)
    require_one_a_row(target.shape, x.shape)
    if checked:
        _require_classes(target, cols, ignored)
    made, counts = wide(x), target != ignored
    of_rows = weights_of(weight, target, ignored, cols)
    made[~counts] = 0
    made[counts & ((target < 0) | (target >= cols))] = math.nan
    probs = library.contiguous(share * counts[..., None])
    flat = probs.reshape(math.prod(counts.shape), cols)
    at = library.columns(len(flat), x), target.clip(0, cols - 1).reshape(-1)
    flat[at] += (1 - smoothing) * of_rows.reshape(-1)
    return _Weighed(made, probs, of_rows, counts, kind)


def _on_device(value: float, x: Any, dtype: object) -> Any:
    """Return an array of one element, of x's library and of the arithmetic for dx of `dtype`."""
    library, x = library_of(x)
    kind = library.dtype(x)
    wide = DType.FLOAT64 in (kind, kind if dtype is None else DType.of(dtype))
    array = library.empty((1,), DType.FLOAT64 if wide else DType.FLOAT32, library.device(x))
    library.fill(array, value)
    return array


def _upstreams(upstream: Any, x: Any, weights: Any = None) -> tuple[Any, int, int]:
    """Return the gradients with respect to losses, and the numbers of their place; or raise.

    With the weights of rows they are with respect to losses that are not times those.
    """
    library, upstream = library_of(upstream, "upstream")
    rows, given = tuple(x.shape[:-1]), math.prod(upstream.shape)
    if given != 1 and tuple(upstream.shape) != rows:
        raise InvalidValueError(
            f"upstream must have one element or the shape of x's rows, {rows}, got "
            f"{tuple(upstream.shape)}"
        )
    if weights is not None:
        upstream = (upstream.reshape(()) if given == 1 else upstream) * weights
        given = math.prod(rows)
    return library.contiguous(upstream), 1, 1 if given == 1 else max(1, given)


def _of_every_row(upstream: Any, x: Any) -> Any:
    """Return the gradients with respect to losses in the shape of x's rows, maybe as a view."""
    up, rows = _upstreams(upstream, x)[0], tuple(x.shape[:-1])
    if math.prod(up.shape) == 1:
        return library_of(up)[0].broadcast(up.reshape(()), rows)
    return up.reshape(rows)


def _of_target(stem: str, x: Any, target: Any) -> tuple[str, Any, Any]:
    """Return the function for the type of `target`, x and target."""
    _, array = library_of(x)
    library, target = library_of(target, "target")
    if array.ndim == 0:
        raise InvalidValueError("x must have classes along its last axis, got no axis")
    kind = library.element_type(target)
    if kind not in (Integer.INT32, Integer.INT64):
        raise InvalidTypeError(
            f"target must be class indices of int32 or int64, or probabilities, got {kind.value}"
        )
    return (stem if kind is Integer.INT64 else f"{stem}_{kind.short}"), array, target


def _require_weight(weight: Any, x: Any) -> None:
    """Raise InvalidValueError or InvalidTypeError unless `weight` has a number a class."""
    library, weight = library_of(weight, "weight")
    mine, x = library_of(x)
    if library is not mine or library.device(weight) != library.device(x):
        raise InvalidValueError("weight must be of x's library and on its device")
    wanted, kind = compute_type(library.dtype(x)), library.element_type(weight)
    if kind is not wanted:
        raise InvalidTypeError(f"weight must be {wanted.value}, got {kind.value}")
    if tuple(weight.shape) != tuple(x.shape[-1:]):
        raise InvalidValueError(
            f"weight must have an element a class, {tuple(x.shape[-1:])}, got {tuple(weight.shape)}"
        )


def _require_classes(target: Any, cols: int, ignored: int) -> None:
    """Raise InvalidValueError for a target that is no class."""
    wrong = ((target < 0) | (target >= cols)) & (target != ignored)
    count = int(wrong.sum())
    if count:
        first = int(target[wrong][0])
        raise InvalidValueError(
            f"target must be from 0 to {cols - 1}, or {ignored} for rows that are ignored; "
            f"{count} are not, the first is {first}"
        )


def smoothing_of(value: Any) -> float:
    """Return a label_smoothing; raise InvalidTypeError or InvalidValueError if it is none."""
    number = finite("label_smoothing", value)
    if not 0 <= number <= 1:
        raise InvalidValueError(f"label_smoothing must be from 0 to 1, got {value!r}")
    return number
