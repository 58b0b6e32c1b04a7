"""The gradients that people call: of softmax and of log_softmax, from their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softgen.call.api import axis_of
from softgen.call.full import calls_of

if TYPE_CHECKING:
    from softgen.strategies.select import Choice


def softmax_backward(
    dy: Any,
    y: Any,
    axis: int | tuple[int, ...] | None = -1,
    *,
    dtype: object = None,
    out: Any = None,
    tune: str | None = None,
    variant: Choice = None,
    batch_invariant: bool | None = None,
    pdl: bool = True,
    dim: int | tuple[int, ...] | None = None,
) -> Any:
    """Return dx = y (dy - sum(dy y)): the gradient with respect to x, where y = softmax(x).

    Args:
        dy: gradient with respect to y, as x of `softmax`.
        y: the softmax, of dy's library, shape, dtype and device.
        axis: along which y was computed, as in `softmax`. Any other than the last costs copies of
            dy and y.
        dtype: dtype of dx; dy's by default. Where softmax had a `dtype`, give that of its x.
        out: where to write: dy itself, or another array of dx's shape, dtype and device.
        tune: as in `softmax`.
        variant: as in `softmax`.
        batch_invariant: as in `softmax`.
        pdl: as in `softmax`.
        dim: PyTorch's name of `axis`.

    A row whose sum is not finite gives NaN. Raises what `softmax` raises, and InvalidValueError or
    InvalidTypeError for a y that does not belong to dy.
    """
    if dim is not None:
        axis = axis_of(axis, dim)
    calls = calls_of("softmax_backward", pdl)
    return calls[type(dy)](dy, out, axis, dtype, tune, variant, batch_invariant, (y,))


def log_softmax_backward(
    dy: Any,
    y: Any,
    axis: int | tuple[int, ...] | None = -1,
    *,
    dtype: object = None,
    out: Any = None,
    tune: str | None = None,
    variant: Choice = None,
    batch_invariant: bool | None = None,
    pdl: bool = True,
    dim: int | tuple[int, ...] | None = None,
) -> Any:
    """Return dx = dy - exp(y) sum(dy): the gradient with respect to x, where y = log_softmax(x).

    The arguments are those of `softmax_backward`. Where y is -inf dx is dy. A row with dy that is
    not finite gives NaN.
    """
    if dim is not None:
        axis = axis_of(axis, dim)
    calls = calls_of("log_softmax_backward", pdl)
    return calls[type(dy)](dy, out, axis, dtype, tune, variant, batch_invariant, (y,))
