"""Cross entropy: rows of the table whose result is a number, and the function that people call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from softgen.call import losses, means
from softgen.call.dispatch import calls_of
from softgen.call.library import library_of
from softgen.call.scalars import finite, whole
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError
from softgen.problems.dtypes import DType, compute_type
from softgen.problems.functions.cross_entropy import IGNORE_INDEX
from softgen.torch.dtensor import is_dtensor
from softgen.torch.dtypes import FLOATS, dtype_of_loss, wide
from softgen.torch.hooked import asked, by_operations, hooked
from softgen.torch.operators import LogSumExp
from softgen.torch.probabilities import rows_of_probabilities
from softgen.torch.registry import Operator, Tensor, is_plain, launched, like_x, registered, tuning

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from softgen.call.options import HookOptions


def cross_entropy(
    input: Any,  # the names are torch's
    target: Any,
    weight: Any = None,
    size_average: None = None,
    ignore_index: int = IGNORE_INDEX,
    reduce: None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    z_loss: float = 0.0,
    return_lse: bool = False,
    dtype: Any = None,
    overwrite: bool = False,
    batch_invariant: bool | None = None,
    **hooks: Unpack[HookOptions],
) -> Any:
    """Return the cross entropy of logits, as torch.nn.functional.cross_entropy does.

    Args:
        input: logits (classes,), (rows, classes) or (rows, classes, d...), of which the last are
            copied to have the classes last; float16, bfloat16, float32 or float64.
        target: the classes, int64 or int32, of input's shape without the dimension of classes; or
            their probabilities, of input's shape and any float dtype, which may have a gradient.
        weight: as in PyTorch, of any float dtype, without a gradient. z_loss lse^2 is times that of
            the class, too. With label_smoothing and class indices input is read three times.
        size_average: PyTorch's old name; not taken.
        ignore_index: as in PyTorch.
        reduce: PyTorch's old name; not taken.
        reduction: "mean", "sum" or "none".
        label_smoothing: as in PyTorch.
        z_loss: the weight of lse^2, which is added to the loss of each row.
        return_lse: whether to return log(sum(exp(input))) of the rows too, without a gradient:
            float32, or float64 if input is; -inf for rows that are ignored.
        dtype: dtype of the loss; input's by default, and under torch.autocast float32 for 16-bit
            inputs. The arithmetic is float32 in any case (float64 for float64).
        overwrite: whether the gradient may be written in the place of input, whose memory it then
            is: no other is taken for it. It is where input has its classes last, without gaps, is
            no leaf, and the call is not compiled. Another backward pass that needs input raises
            PyTorch's error about a tensor that was modified; a plain read gets the gradient.
        batch_invariant: as in `softgen.torch.softmax`.
        hooks: scale, softcap, bias, mask, lengths, causal and sink, as in `softgen.torch.softmax`,
            for input of up to two dimensions; not with overwrite. With label_smoothing or
            probabilities scale, softcap and bias, which PyTorch's operations then do to a copy of
            input in the type of the arithmetic.

    Returns:
        The loss.

    The gradient reads input again and writes as much, from lse. It is differentiable again,
    by PyTorch's own operations.
    That of probabilities is not differentiable again. A target that is no class gives NaN, and no
    error. Raises what `softgen.cross_entropy` raises.
    """
    if not isinstance(input, Tensor) or not isinstance(target, Tensor):
        raise InvalidTypeError("input and target must be tensors; softgen.cross_entropy takes more")
    if size_average is not None or reduce is not None:
        raise NotSupportedError("size_average and reduce are PyTorch's old names; give reduction")
    are_probabilities = target.is_floating_point()
    if not are_probabilities and target.dtype not in (torch.int64, torch.int32):
        raise InvalidTypeError(
            f"target must be class indices of int32 or int64, or probabilities, got {target.dtype}"
        )
    if are_probabilities and target.dim() < input.dim():
        raise losses.no_indices(target.dtype, target.shape)
    if input.dim() == 0 or target.dim() != input.dim() - (not are_probabilities):
        raise InvalidValueError(
            "input must have one dimension more than class indices, and as many as probabilities, "
            f"got {tuple(input.shape)} and {tuple(target.shape)}"
        )
    x = torch.movedim(input, 1, -1) if input.dim() > 2 else input
    if are_probabilities and input.dim() > 2:
        target = torch.movedim(target, 1, -1)
    wanted = x.shape if are_probabilities else x.shape[:-1]
    if wanted != target.shape:
        last = input.dim() > 2 and target.shape == input.shape[:-1]
        hint = (
            "; classes are dimension 1, as in PyTorch; where they are the last pass "
            "input.flatten(0, -2) and target.flatten()"
        )
        raise InvalidValueError(
            f"target must have the shape {tuple(wanted)}, got {tuple(target.shape)}{hint * last}"
        )
    if weight is not None:
        weight = class_weights(weight, x.shape[-1:], x)
    losses.require_reduction(reduction)
    ignored, smoothing, z_loss = numbers_of(ignore_index, label_smoothing, z_loss)
    dtype = dtype_of_loss(dtype, input)
    given = asked(hooks, cross_entropy) if hooks else {}
    if given:
        _require_room(given, input, overwrite)
        if smoothing or are_probabilities:
            counts = None if are_probabilities else target != ignored
            x, given = by_operations(x, given, counts), {}
    if given:
        request = ("cross_entropy", x, -1, None, given, batch_invariant, target)
        rows, lse, _ = hooked(*request, ignored=ignored, z_loss=z_loss)
        loss = losses.reduced(rows, target, ignored, reduction, weight, x.shape[-1])
    elif are_probabilities:
        losses.require_no_index(ignored)
        rows, lse = rows_of_probabilities(*(x, target, weight), smoothing, z_loss, batch_invariant)
        loss = losses.reduced_by(rows, reduction, rows.numel)
    elif weight is not None and smoothing:
        of = (ignored, smoothing, z_loss, batch_invariant)
        rows, lse, of_rows = _weighed_and_smoothed(x, target, weight, *of)
        loss = losses.reduced_by(rows, reduction, of_rows.sum)
    elif reduction != "none" and is_dtensor(x):  # each process has the losses of some rows
        options = (ignored, "none", smoothing, z_loss, wide(x), overwrite, batch_invariant)
        rows, lse, *_ = CrossEntropy.call(x, target, None, *options)
        loss = losses.reduced(rows, target, ignored, reduction, weight, x.shape[-1])
    else:  # kernels that reduce have arithmetic of float64 for losses of float64, and no others
        made = wide(x) if torch.float64 in (dtype, x.dtype) else dtype
        options = (ignored, reduction, smoothing, z_loss, made, overwrite, batch_invariant)
        loss, lse, *_ = CrossEntropy.call(x, target, weight, *options)
    loss = loss.to(dtype)
    return (loss, lse) if return_lse else loss


def _weighed_and_smoothed(
    x: Any, target: Any, weight: Any, ignored: int, smoothing: float, z_loss: float, invariant: Any
) -> tuple[Any, Any, Any]:
    """Return the loss of each row, lse, and the weights of rows.

    With w the weights and C classes that is (1 - smoothing) w[target] (lse - x[target])
    + smoothing / C sum(w (lse - x)), of which PyTorch's operations make the last sum. All of it is
    in the type of the arithmetic, so that the gradient is rounded once.
    """
    counts, cols = target != ignored, x.shape[-1]
    x = x.to(wide(x)).masked_fill(~counts[..., None], 0)
    options = (ignored, "none", 0.0, 0.0, wide(x), False, invariant)
    rows, lse, *_ = CrossEntropy.call(x, target, None, *options)
    of_rows = losses.weights_of(weight, target, ignored, cols)
    whole = LogSumExp.call(x, [x.dim() - 1], invariant)
    every = (weight.sum() * whole - (x * weight).sum(-1)).masked_fill(~counts, 0)
    found = (1 - smoothing) * of_rows * rows + smoothing / max(1, cols) * every
    if z_loss:
        found = found + z_loss * of_rows * whole.masked_fill(~counts, 0).square()
    return found, lse, of_rows


def _require_room(hooks: Any, input: Any, overwrite: bool) -> None:
    """Raise InvalidValueError for what goes with no hooks."""
    given = ", ".join(sorted(hooks))
    if overwrite:
        raise InvalidValueError(f"overwrite takes no hooks, got {given}")
    if input.dim() > 2:
        raise InvalidValueError(
            f"hooks take an input of (classes,) or (rows, classes), got {tuple(input.shape)} and "
            f"{given}; reshape it"
        )


def numbers_of(ignore_index: Any, label_smoothing: Any, z_loss: Any) -> tuple[int, float, float]:
    """Return the numbers of a loss; raise for others, in compiled code once they are known."""
    if torch.compiler.is_compiling():  # the operator checks them
        return ignore_index, float(label_smoothing), float(z_loss)
    smoothing = losses.smoothing_of(label_smoothing)
    return whole("ignore_index", ignore_index), smoothing, finite("z_loss", z_loss)


def class_weights(weight: Any, wanted: torch.Size, x: Any) -> Any:
    """Return weights of that shape in the type of the arithmetic on x; raise for others."""
    if weight.requires_grad and torch.is_grad_enabled():
        raise NotSupportedError("weight has no gradient; pass weight.detach()")
    if weight.shape != wanted:
        raise InvalidValueError(
            f"weight must have an element a class, {tuple(wanted)}, got {tuple(weight.shape)}"
        )
    return weight.detach().to(wide(x)).contiguous()


def is_overwritable(x: Any, *others: Any) -> bool:
    """Whether a gradient may take the memory of x: as PyTorch, not where it is a parameter's."""
    base = x if x._base is None else x._base
    is_parameter = base.is_leaf and base.requires_grad
    return not is_parameter and is_plain(x, *others) and bool(x.is_contiguous())


def reduced_losses(
    rows: Any, target: Any, weight: Any, ignored: int, reduction: str, cols: int, dtype: Any
) -> tuple[Any, Any, Any]:
    """Return what `losses.reduction_of` does, with a loss of `dtype`."""
    mean = functools.partial(_mean, dtype)
    of = (rows, target, ignored, reduction, weight, cols, mean)
    loss, weights, counted = losses.reduction_of(*of)
    return loss.to(dtype), weights, counted


def _mean(dtype: Any, rows: Any, target: Any, ignored: int, weights: Any) -> tuple[Any, Any]:
    """Do what `losses.mean_of` does by four launches, of which each would be 2 us.

    `out` spares those that only convert.
    """
    if weights is None:
        counted = torch.ne(target, ignored, out=torch.empty_like(rows)).sum()
    else:
        counted = weights.sum()
    return torch.div(rows.sum(), counted, out=rows.new_empty((), dtype=dtype)), counted


@registered("cross_entropy_backward")
class CrossEntropyBackward(Operator):
    """dx from lse and the gradient with respect to the loss, or to each row's."""

    of = "cross_entropy"

    @staticmethod
    def launch(
        x: torch.Tensor,
        target: torch.Tensor,
        lse: torch.Tensor,
        g: torch.Tensor,
        divisor: torch.Tensor | None,
        weights: torch.Tensor | None,
        ignored: int,
        smoothing: float,
        z_loss: float,
        batch_invariant: bool | None,
    ) -> torch.Tensor:
        """Return dx of x's dtype.

        Args:
            x: the logits.
            target: the class of each row.
            lse: of the rows.
            g: the gradient with respect to the loss: of no dimensions, or one a row.
            divisor: what the sum of the losses of rows was divided by, or None for 1.
            weights: of the rows, or None for 1.
            ignored: the target of rows that count for nothing.
            smoothing: the label_smoothing.
            z_loss: the weight of lse^2.
            batch_invariant: as in `softgen.softmax`.
        """
        request = (x, target, lse, g, divisor, weights, ignored, smoothing, z_loss)
        return _gradient(*request, batch_invariant)

    fake = staticmethod(like_x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the tensors but lse, which is made of x."""
        x, target, _, g, divisor, weights, *ctx.options = inputs
        ctx.save_for_backward(x, target, g, divisor, weights)

    @staticmethod
    def backward(ctx: Any, h: Any) -> tuple[Any, ...]:
        """Return the gradients with respect to x and g, by PyTorch's own operations.

        With u the gradient of a row's loss, p its softmax, q what p ought to be, z the weight of
        lse^2 and c = 1 + 2 z lse, dx = u (c p - q). That of sum(h dx) with respect to u is
        sum(h (c p - q)), and with respect to x u p (c (h - sum(p h)) + 2 z sum(p h)).
        """
        x, target, g, divisor, weights = ctx.saved_tensors
        ignored, smoothing, z_loss, _ = ctx.options
        logits, h = x.to(wide(x)), h.to(wide(x))
        p = torch.softmax(logits, -1)
        c = 1 + 2 * z_loss * torch.logsumexp(logits, -1, keepdim=True)
        counts = (target != ignored)[..., None]
        classes = target.clip(0, x.shape[-1] - 1).long()[..., None]
        ought = (1 - smoothing) * h.gather(-1, classes) + smoothing * h.mean(-1, keepdim=True)
        along = (p * h).sum(-1, keepdim=True)
        of_rows = torch.where(counts, c * along - ought, 0)[..., 0]
        upstream = _upstream(logits, g, divisor, weights).expand(target.shape)[..., None]
        of_x = upstream * p * (c * (h - along) + 2 * z_loss * along)
        of_x = torch.where(counts, of_x, 0).to(x.dtype)
        of_g = _upstream(logits, of_rows, divisor, weights).sum_to_size(g.shape).to(g.dtype)
        return of_x, None, None, of_g, *(None,) * 6

    @classmethod
    def vmap(cls, size: int, *arguments: Any) -> Any:
        """Return dx of a batch, each of which has a divisor of its own."""
        x, target, lse, g, divisor, weights, *options = arguments
        upstream = g if divisor is None else g / divisor
        if upstream.dim() < lse.dim():
            upstream = upstream.reshape(-1, *[1] * (lse.dim() - 1)).expand(lse.shape)
        upstream = _upstream(lse, upstream, None, weights)
        return cls.call(x, target, lse, upstream, None, None, *options)


@registered("cross_entropy")
class CrossEntropy(Operator):
    """The loss, with what its gradient needs.

    A mean of up to 2^16 rows is two launches, and its gradient is two. What it divides by stays on
    the GPU.
    """

    of = "cross_entropy"

    @staticmethod
    def launch(
        x: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor | None,
        ignored: int,
        reduction: str,
        smoothing: float,
        z_loss: float,
        dtype: torch.dtype,
        overwrite: bool,
        batch_invariant: bool | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the loss of `dtype`, lse, what divided the sum, and the weights of rows.

        The last two are None where the gradient does without.
        """
        if smoothing:
            options = {"tune": tuning(), "batch_invariant": batch_invariant}
            request = (x, target, ignored, smoothing, z_loss)
            rows, lse = losses.losses_of_rows(*request, options=options)
        else:
            rest = (target, ignored, z_loss)
            rows, lse = _of_classes("cross_entropy", x, batch_invariant, rest)
        if reduction != "none" and 0 < rows.numel() <= means.MOST_ROWS:
            given = (rows, lse) if weight is None else (rows, lse, weight, target.contiguous())
            reduce = _small(reduction, x.dtype, dtype, x.device, weight is not None)
            loss, divisor, *weights = reduce(*given, rows.numel())
            divisor = divisor if reduction == "mean" else None
            return loss, lse, divisor, weights[0].view_as(rows) if weights else None
        of = (rows, target, weight, ignored, reduction, x.shape[-1], dtype)
        loss, weights, divisor = reduced_losses(*of)
        return loss, lse, divisor, weights

    @staticmethod
    def fake(x: Any, target: Any, weight: Any, ignored: Any, reduction: str, *rest: Any) -> Any:
        """Return tensors like them."""
        loss, lse = (
            torch.empty_like(target, dtype=rest[-3]),
            torch.empty_like(target, dtype=wide(x)),
        )
        divisor = lse.new_empty(()) if reduction == "mean" else None
        weights = None if weight is None else torch.empty_like(lse)
        return loss if reduction == "none" else loss.new_empty(()), lse, divisor, weights

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save x, target and all results but the loss."""
        x, target, weight, ignored, reduction, smoothing, z_loss, _, overwrite, invariant = inputs
        _, lse, divisor, weights = output
        ctx.mark_non_differentiable(*(each for each in output[1:] if each is not None))
        ctx.set_materialize_grads(False)  # or zeros for each of them are written
        ctx.options, ctx.overwrite = (ignored, smoothing, z_loss, invariant), overwrite
        more = (divisor if reduction == "mean" else None, None if weight is None else weights)
        ctx.save_for_backward(x, target, lse, *more)

    @staticmethod
    def backward(ctx: Any, g: Any, *_: Any) -> tuple[Any, ...]:
        """Return dx."""
        if g is None:
            return (None,) * 10
        x, target, lse, divisor, weights = ctx.saved_tensors
        request: tuple[Any, ...] = (x, target, lse, g, divisor, weights, *ctx.options)
        if ctx.overwrite and is_overwritable(x, target, g):
            return _gradient(*request, out=x.detach()), *(None,) * 9
        return CrossEntropyBackward.call(*request), *(None,) * 9

    @classmethod
    def vmap(cls, size: int, *arguments: Any) -> Any:
        """Return the loss of each of a batch, by the losses of all rows."""
        x, target, weight, ignored, reduction, *options, dtype, overwrite, invariant = arguments
        request = (x, target, None, ignored, "none", *options, wide(x), overwrite, invariant)
        rows, lse, *_ = cls.call(*request)
        counts, weights, divisor = target != ignored, None, None
        if weight is not None:
            classes = target.clip(0, x.shape[-1] - 1).reshape(size, -1).long()
            weights = weight.gather(1, classes).view_as(rows) * counts
            rows, counts = rows * weights, weights
        if reduction != "none":
            rows = rows.reshape(size, -1).sum(1)
        if reduction == "mean":
            divisor = counts.reshape(size, -1).sum(1, dtype=rows.dtype)
            rows = rows / divisor
        return rows.to(dtype), lse, divisor, weights


def _gradient(
    x: Any,
    target: Any,
    lse: Any,
    g: Any,
    divisor: Any,
    weights: Any,
    ignored: int,
    smoothing: float,
    z_loss: float,
    invariant: bool | None,
    *,
    out: Any = None,
) -> Any:
    """Return dx, which may be written to `out`."""
    if g.dim() and not any(g.stride()) and g.numel():  # expanded, as that of a sum is
        g = g[(0,) * g.dim()]
    small = not g.dim() and g.dtype in FLOATS and lse.dtype is wide(x)
    if small and divisor is not None and divisor.dtype is lse.dtype and lse.numel():
        share = _small("share", x.dtype, g.dtype, x.device, weights is not None)
        rows = () if weights is None else (weights.contiguous(),)
        upstream = share(g, divisor, *rows)
    else:
        upstream = _upstream(lse, g, divisor, weights)
    count = 1 if upstream.numel() == 1 else max(1, lse.numel())
    rest = (target, ignored, lse, upstream.contiguous(), 1, count, smoothing, z_loss)
    return _of_classes("cross_entropy_backward", x, invariant, rest, out)


def _upstream(lse: Any, g: Any, divisor: Any, weights: Any) -> Any:
    """Return the gradient with respect to the loss of each row, or of all."""
    if divisor is not None:
        g = g / divisor
    return g.to(lse.dtype) if weights is None else g.to(lse.dtype) * weights


def _of_classes(stem: str, x: Any, invariant: Any, rest: tuple[Any, ...], out: Any = None) -> Any:
    """Return what a call gives that takes targets first, past the checks of those for people."""
    calls = calls_of(stem if rest[0].dtype is torch.int64 else f"{stem}_i32")
    return launched(calls, x, rest, -1, None, invariant, out)


@functools.cache
def _small(kind: str, x_dtype: Any, dtype: Any, device: Any, weighed: bool) -> Callable[..., Any]:
    """Return a kernel of `means` for logits of `x_dtype` and a loss of `dtype`.

    `kind` is "mean" or "sum", or "share" for the gradient; of rows that have weights or not.
    """
    library, x = library_of(torch.empty(0, dtype=x_dtype, device=device))
    of = library, DType.of(dtype), compute_type(DType.of(x_dtype)), library.device(x)
    if kind == "share":
        return (means.weighed_sharer if weighed else means.sharer)(*of)
    return (means.weigher if weighed else means.reducer)(*of, mean=kind == "mean")
