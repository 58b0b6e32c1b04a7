"""The gradients that people call: of softmax and log_softmax from results, of others from lse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softgen.call.ids import ids_of, scale_of, temperature_of
from softgen.call.library import library_of
from softgen.call.options import AxisOptions, HookedOptions, Options, call, checked
from softgen.errors import InvalidValueError

if TYPE_CHECKING:
    from typing_extensions import Unpack


def softmax_backward(
    dy: Any,
    y: Any,
    axis: int | tuple[int, ...] | None = -1,
    *,
    dtype: object = None,
    out: Any = None,
    **options: Unpack[AxisOptions],
) -> Any:
    """Return dx = y (dy - sum(dy y)): the gradient with respect to x, where y = softmax(x).

    Args:
        dy: gradient with respect to y, as x of `softmax`.
        y: the softmax, of dy's library, shape, dtype and device.
        axis: along which y was computed, as in `softmax`.
        dtype: dtype of dx; dy's by default. Where softmax had a `dtype`, give that of its x.
        out: where to write: dy itself, or another array of dx's shape, dtype and device.
        options: as in `softmax`, without hooks.

    A row whose sum is not finite gives NaN. Raises what `softmax` raises, and InvalidValueError or
    InvalidTypeError for a y that does not belong to dy.
    """
    request = ("softmax_backward", dy, options, AxisOptions)
    return call(*request, axis=axis, dtype=dtype, out=out, others=(y,))


def log_softmax_backward(
    dy: Any,
    y: Any,
    axis: int | tuple[int, ...] | None = -1,
    *,
    dtype: object = None,
    out: Any = None,
    **options: Unpack[AxisOptions],
) -> Any:
    """Return dx = dy - exp(y) sum(dy): the gradient with respect to x, where y = log_softmax(x).

    The arguments are those of `softmax_backward`. Where y is -inf dx is dy. A row with dy that is
    not finite gives NaN.
    """
    request = ("log_softmax_backward", dy, options, AxisOptions)
    return call(*request, axis=axis, dtype=dtype, out=out, others=(y,))


def logsumexp_backward(
    x: Any,
    lse: Any,
    upstream: Any,
    axis: int | tuple[int, ...] | None = -1,
    *,
    dtype: object = None,
    out: Any = None,
    **options: Unpack[AxisOptions],
) -> Any:
    """Return dx = exp(x - lse) * upstream: the gradient with respect to x of lse = logsumexp(x).

    Args:
        x: as in `softmax`.
        lse: of the rows, in the type of the arithmetic, as `logsumexp` returns it with
            dtype="float32": float32 (float64 if x or dx is), of x's shape without the axis. An
            error of it is a relative one of dx: 7.6e-6 for the rounding of a float32 near 200.
        upstream: gradient with respect to lse, of lse's shape and dtype.
        axis: as in `softmax`.
        dtype: dtype of dx; x's by default.
        out: where to write: x itself, or another array of dx's shape, dtype and device.
        options: as in `softmax`, without hooks.

    x is read once, and dx written. Raises what `softmax` raises, and InvalidValueError or
    InvalidTypeError for an lse or an upstream that does not belong to x.
    """
    rows = (lse, _contiguous(upstream))
    request = ("logsumexp_backward", x, options, AxisOptions)
    return call(*request, axis=axis, dtype=dtype, out=out, others=rows)


def entropy_backward(
    x: Any,
    lse: Any,
    entropy: Any,
    upstream: Any,
    axis: int | tuple[int, ...] | None = -1,
    *,
    dtype: object = None,
    out: Any = None,
    **options: Unpack[AxisOptions],
) -> Any:
    """Return dx = -p (log p + H) * upstream, where log p = x - lse and H = entropy(x).

    The arguments are those of `logsumexp_backward`. `softgen.entropy` returns H and lse with
    dtype="float32" and return_lse=True. Where x is -inf dx is 0; a row whose H is NaN gives NaN.
    """
    rows = (lse, entropy, _contiguous(upstream))
    request = ("entropy_backward", x, options, AxisOptions)
    return call(*request, axis=axis, dtype=dtype, out=out, others=rows)


def token_log_probs_backward(
    x: Any,
    ids: Any,
    lse: Any,
    upstream: Any,
    entropy: Any = None,
    entropy_upstream: Any = None,
    *,
    temperature: Any = None,
    dtype: object = None,
    out: Any = None,
    **options: Unpack[Options],
) -> Any:
    """Return the gradient with respect to x of token_log_probs(x, ids), and of the entropies.

    That is dx = sum of ([column == id] - p) * upstream over a row's ids, with log p = x - lse, and
    -p (log p + entropy) * entropy_upstream: x is read once, and dx written.

    Args:
        x: as in `softmax`; rows are those of its last axis.
        ids: as in `token_log_probs`.
        lse: of the rows, in the type of the arithmetic, as `token_log_probs` returns it.
        upstream: gradient with respect to the log-probabilities, of ids' shape and lse's dtype.
        entropy: of the rows, of lse's shape and dtype; for the gradient of the entropies.
        entropy_upstream: gradient with respect to them, likewise.
        temperature: as in `token_log_probs`.
        dtype: dtype of dx; x's by default.
        out: where to write: x itself, or another array of dx's shape, dtype and device.
        options: as in `softmax`, without dim and hooks.

    An id that is no column makes its row NaN, unless its upstream is 0. Raises what `softmax`
    raises, and InvalidValueError or InvalidTypeError for an array that does not belong to x.
    """
    if (entropy is None) != (entropy_upstream is None):
        raise InvalidValueError("give entropy and entropy_upstream, or neither")
    given, upstream = ids_of(x, ids), library_of(upstream, "upstream")[1]
    hooks = {}
    if temperature is not None:  # the gradient with respect to x / temperature, times that of it
        hooks["scale"] = scale = scale_of(temperature_of(temperature))
        upstream = given.flat(upstream) * given.of_rows(scale)
        if entropy is not None:
            entropy_upstream = library_of(entropy_upstream, "entropy_upstream")[1] * scale
    beside = "" if entropy is None else "_entropy"
    name = f"token_log_probs_backward{beside}{given.suffix}"
    rows: tuple[Any, ...] = (given.array, lse, _contiguous(given.flat(upstream)))
    rows = rows if entropy is None else (*rows, entropy, _contiguous(entropy_upstream))
    asked = {**checked(options, Options), **hooks}
    return call(name, x, asked, HookedOptions, dtype=dtype, out=out, others=rows)


def _contiguous(upstream: Any) -> Any:
    """Return an array of rows, or a copy: that of a sum is expanded, which no warm call takes."""
    library, array = library_of(upstream, "upstream")
    return library.contiguous(array)
