"""softmax, log_softmax, logsumexp, and the two parts of softmax: of an array, along any axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softgen.call.axes import axis_of, with_axes_kept
from softgen.call.dispatch import calls_of
from softgen.call.library import library_of
from softgen.call.options import AxisOptions, HookedAxisOptions, call

if TYPE_CHECKING:
    from typing_extensions import Unpack

# A call without options goes straight to its code.
_softmax = calls_of("softmax")
_log_softmax = calls_of("log_softmax")
_logsumexp = calls_of("logsumexp")


def softmax(
    x: Any,
    axis: int | tuple[int, ...] | None = -1,
    *,
    dtype: object = None,
    out: Any = None,
    return_lse: bool = False,
    **options: Unpack[HookedAxisOptions],
) -> Any:
    """Return exp(x - max) / sum(exp(x - max)) along `axis`, on the GPU that holds `x`.

    Args:
        x: CuPy array, PyTorch CUDA tensor, or any object with `__cuda_array_interface__` or
            `__dlpack__` on a GPU; float16, bfloat16, float32 or float64, any shape. A view
            is read where it is if its last axis is contiguous and reduced; others cost a copy
            (docs/views.md).
        axis: the axis, by its number; several as a tuple, which are then one row; None for all.
            Any axis, or adjacent ones, of a contiguous array takes no copy. Others between them
            cost one of x, and y is then a view of an array whose axes are in another order.
        dtype: dtype of the result; x's by default. Arithmetic is in float32, or float64 if either
            dtype is. "float8_e4m3fn" and "float8_e5m2" are for x of 16 or 32 bits; CuPy's arrays of
            them are uint8, which holds their bits.
        out: where to write: x itself, or another array of the result's shape, dtype and device,
            which may be a view. It shares no element with x, or all.
        return_lse: whether to return log(sum(exp(x))) of each row beside the result, from the same
            pass over x: float32, or float64 if x or the result is, and of the shape of the rows.
        options: dim, tune, variant, batch_invariant and pdl, as `softgen.call.options.AxisOptions`
            says; and what is done to elements on their way in and out: scale, softcap, bias, mask,
            lengths, causal, causal_offset, sink, empty_rows, out_scale, dropout, seed and
            seed_offset (docs/hooks.md).

    Returns:
        An array of x's library (CuPy for the protocols), of x's shape, on the caller's stream; with
        `return_lse` a pair of it and lse.

    Raises, before any launch:
        InvalidTypeError (a TypeError): not a GPU array, a dtype that is not a float of 16 to 64
            bits, or an option that is none. numpy.exceptions.AxisError: no such axis.
            InvalidValueError (a ValueError): out or an option does not fit. NotSupportedError (a
            NotImplementedError): a tensor that requires grad, that has no memory of its own, or a
            call that PyTorch records or transforms. CaptureError: inside CUDA graph capture, where
            nothing may be tuned or loaded, and CuPy may not allocate a result. LaunchError:
            `variant` names a kernel that needs more SMs at once than the caller's stream has.

    NaN or +inf anywhere in a row, or a row of nothing but -inf, gives a row of NaN; -inf gives 0.
    lse is -inf for a row of -inf and +inf where there is +inf, also beside NaN, where `logsumexp`
    gives NaN: softmax's sum is NaN in both, and costs nothing more.
    """
    if options or return_lse:
        name = "softmax_lse" if return_lse else "softmax"
        return call(name, x, options, HookedAxisOptions, axis=axis, dtype=dtype, out=out)
    return _softmax[type(x)](x, out, axis, dtype, None, None, None, ())


def log_softmax(
    x: Any,
    axis: int | tuple[int, ...] | None = -1,
    *,
    dtype: object = None,
    out: Any = None,
    return_lse: bool = False,
    **options: Unpack[HookedAxisOptions],
) -> Any:
    """Return (x - max) - log(sum(exp(x - max))) along `axis`; everything else is as in `softmax`.

    -inf gives -inf where the rest of the row is finite.
    """
    if options or return_lse:
        name = "log_softmax_lse" if return_lse else "log_softmax"
        return call(name, x, options, HookedAxisOptions, axis=axis, dtype=dtype, out=out)
    return _log_softmax[type(x)](x, out, axis, dtype, None, None, None, ())


def logsumexp(
    x: Any,
    axis: int | tuple[int, ...] | None = -1,
    *,
    dtype: object = None,
    out: Any = None,
    keepdim: bool = False,
    **options: Unpack[HookedAxisOptions],
) -> Any:
    """Return log(sum(exp(x))) along `axis`: x is read once, and one number a row written.

    Args:
        x: as in `softmax`.
        axis: as in `softmax`.
        dtype: dtype of the result; x's by default.
        out: where to write, an array of the result's shape (without keepdim), dtype and device.
        keepdim: whether the result keeps the axes, with length 1.
        options: as in `softmax`, but for out_scale, dropout and its seed.

    Returns:
        An array of x's library, of x's shape without the axis.

    -inf for a row of -inf or of no elements, +inf where there is +inf, NaN where there is NaN.
    Raises what `softmax` raises.
    """
    if options:
        lse = call("logsumexp", x, options, HookedAxisOptions, axis=axis, dtype=dtype, out=out)
        axis = axis_of(axis, options.get("dim"))
    else:
        lse = _logsumexp[type(x)](x, out, axis, dtype, None, None, None, ())
    if not keepdim:
        return lse
    if axis is None or not lse.shape:  # of x with one axis, or with none
        return with_axes_kept(lse, axis, library_of(x)[1].ndim)
    return lse[..., None] if axis == -1 else with_axes_kept(lse, axis)


def partial(
    x: Any, axis: int | tuple[int, ...] | None = -1, **options: Unpack[AxisOptions]
) -> tuple[Any, Any]:
    """Return the pair (m, d) of each row: m = max(x) and d = sum(exp(x - m)).

    Pairs of pieces of a row are put together by `merge`, and `finish` makes softmax of each piece
    from the pair of the whole row (Milakov & Gimelshein, arXiv 1805.02867, section 3.1).

    Args:
        x: as in `softmax`.
        axis: as in `softmax`.
        options: as in `softmax`, without hooks.

    Returns:
        m and d, float32 (float64 for float64), of x's shape without the axis. A row of -inf or of
        no elements gives (-inf, 0); one with NaN or +inf gives NaN twice.
    """
    pair: tuple[Any, Any] = call("partial", x, options, AxisOptions, axis=axis)
    return pair


def finish(
    x: Any,
    m: Any,
    d: Any,
    axis: int | tuple[int, ...] | None = -1,
    *,
    log: bool = False,
    dtype: object = None,
    out: Any = None,
    **options: Unpack[AxisOptions],
) -> Any:
    """Return exp(x - m) / d: the softmax of a piece x of rows whose pairs are (m, d).

    With `log` its logarithm, (x - m) - log(d).

    Args:
        x: the piece, as in `softmax`.
        m: maxima of the whole rows, as `partial` or `merge` returns them; of x's shape without the
            axis, float32 (float64 if x or the result is).
        d: sums of the whole rows, likewise.
        axis: as in `softmax`.
        log: whether to return the logarithm.
        dtype: as in `softmax`.
        out: as in `softmax`.
        options: as in `softmax`, without hooks.
    """
    name = "log_finish" if log else "finish"
    return call(name, x, options, AxisOptions, axis=axis, dtype=dtype, out=out, others=(m, d))
