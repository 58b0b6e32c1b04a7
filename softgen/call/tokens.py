"""What reinforcement learning asks of logits, without a result as wide as they are: entropies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softgen.call.api import axis_of
from softgen.call.axes import with_axes_kept
from softgen.call.full import calls_of
from softgen.call.hooks import call_hooked
from softgen.call.library import library_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from softgen.call.hooks import HookValues
    from softgen.strategies.select import Choice


def entropy(
    x: Any,
    axis: int | tuple[int, ...] | None = -1,
    *,
    dtype: object = None,
    out: Any = None,
    keepdim: bool = False,
    tune: str | None = None,
    variant: Choice = None,
    batch_invariant: bool | None = None,
    pdl: bool = True,
    return_lse: bool = False,
    dim: int | tuple[int, ...] | None = None,
    **hooks: Unpack[HookValues],
) -> Any:
    """Return -sum(p log p) of p = softmax(x) along `axis`, in nats: x is read once.

    Args:
        x: as in `softmax`.
        axis: as in `softmax`; any other than the last costs a copy of x.
        dtype: dtype of the result; x's by default.
        out: where to write, an array of the result's shape (without keepdim), dtype and device.
        keepdim: whether results keep the axes, with length 1.
        tune: as in `softmax`.
        variant: as in `softmax`.
        batch_invariant: as in `softmax`.
        pdl: as in `softmax`.
        return_lse: whether to return log(sum(exp(x))) of each row too, as `softmax` does.
        dim: PyTorch's name of `axis`.
        hooks: as in `softmax`, but for empty_rows, out_scale, dropout and its seed. A sink counts
            as one more column.

    Returns:
        An array of x's library, of x's shape without the axis; with `return_lse` a pair.

    Where x is -inf p log p is 0. NaN for a row with NaN or +inf, or of nothing but -inf. Raises
    what `softmax` raises.
    """
    if dim is not None:
        axis = axis_of(axis, dim)
    name = "entropy_lse" if return_lse else "entropy"
    if hooks:
        request = (x, out, axis, dtype, tune, variant, batch_invariant, pdl, hooks)
        found = call_hooked(name, *request)
    else:
        calls = calls_of(name, pdl)
        found = calls[type(x)](x, out, axis, dtype, tune, variant, batch_invariant, ())
    if not keepdim:
        return found
    ndim = library_of(x)[1].ndim
    if return_lse:
        return tuple(with_axes_kept(each, axis, ndim) for each in found)
    return with_axes_kept(found, axis, ndim)
