"""The calls people make: the functions of an array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softgen.call.axes import with_axes_kept
from softgen.call.full import calls_of
from softgen.call.library import library_of
from softgen.errors import InvalidValueError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from softgen.call.hooks import HookValues
    from softgen.strategies.select import Choice

# Their last argument is given also where it is empty: the default of a parameter costs 0.02 us.
_softmax = calls_of("softmax")
_softmax_lse = calls_of("softmax_lse")
_log_softmax = calls_of("log_softmax")
_log_softmax_lse = calls_of("log_softmax_lse")
_logsumexp = calls_of("logsumexp")
_partial = calls_of("partial")
_finish = calls_of("finish")


def softmax(
    x: Any,
    axis: int | tuple[int, ...] | None = -1,
    *,
    dtype: object = None,
    out: Any = None,
    tune: str | None = None,
    variant: Choice = None,
    batch_invariant: bool | None = None,
    pdl: bool = True,
    return_lse: bool = False,
    dim: int | tuple[int, ...] | None = None,
    **hooks: Unpack[HookValues],
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
        tune: "on" times the candidates at the first call for a shape for which no winner is stored
            or comes with softgen, stores the winner on disk and is fast ever after; "cached" uses
            such a winner, else the best guess; "off" the best guess; "force" times again. By
            default SOFTGEN_TUNE, else "on".
        variant: skip the choice: a strategy's name ("warp") for its best guess, untuned, "oneflow",
            a step of the ladder ("naive"), a setting ("online_p4_u2_b128"), a variant's name, a
            Strategy or a Variant.
        batch_invariant: if True a row's result has the same bits in any batch and anywhere in
            memory, on any GPU of one model: nothing is tuned, and rows that start off the boundary
            their width gives them cost a copy. By default SOFTGEN_BATCH_INVARIANT, else False.
        pdl: whether the kernel may be launched while the one before it on the stream still runs,
            where the GPU can (compute capability 9.0 and later); it waits for that one's results in
            any case. False, or SOFTGEN_PDL=0 in the environment, launches it the plain way.
        return_lse: whether to return log(sum(exp(x))) of each row beside the result, from the same
            pass over x: float32, or float64 if x or the result is, and of the shape of the rows.
        dim: PyTorch's name of `axis`; give one of them.
        hooks: scale, softcap, bias, mask, lengths, causal, causal_offset, sink, empty_rows,
            out_scale, dropout, seed and seed_offset: what is done to elements on their way in and
            out (docs/hooks.md).

    Returns:
        An array of x's library (CuPy for the protocols), of x's shape, on the caller's stream; with
        `return_lse` a pair of it and lse.

    Raises, before any launch:
        InvalidTypeError (a TypeError): not a GPU array, or a dtype that is not a float of 16 to 64
            bits. numpy.exceptions.AxisError: no such axis. InvalidValueError (a ValueError): out or
            an option does not fit. NotSupportedError (a NotImplementedError): a tensor that
            requires grad. CaptureError: inside CUDA graph capture, where
            nothing may be tuned or loaded, and CuPy may not allocate a result. LaunchError:
            `variant` names a kernel that needs more SMs at once than the caller's stream has.

    NaN or +inf anywhere in a row, or a row of nothing but -inf, gives a row of NaN; -inf gives 0.
    lse is -inf for a row of -inf and +inf where there is +inf, also beside NaN, where `logsumexp`
    gives NaN: softmax's sum is NaN in both, and costs nothing more.
    """
    if dim is not None:
        axis = axis_of(axis, dim)
    if hooks:
        from softgen.call.hooks import call_hooked  # 6 ms of a first call, for those who have some

        name = "softmax_lse" if return_lse else "softmax"
        return call_hooked(name, x, out, axis, dtype, tune, variant, batch_invariant, pdl, hooks)
    if return_lse:
        calls = _softmax_lse if pdl else calls_of("softmax_lse", False)
    else:
        calls = _softmax if pdl else calls_of("softmax", False)
    return calls[type(x)](x, out, axis, dtype, tune, variant, batch_invariant, ())


def log_softmax(
    x: Any,
    axis: int | tuple[int, ...] | None = -1,
    *,
    dtype: object = None,
    out: Any = None,
    tune: str | None = None,
    variant: Choice = None,
    batch_invariant: bool | None = None,
    pdl: bool = True,
    return_lse: bool = False,
    dim: int | tuple[int, ...] | None = None,
    **hooks: Unpack[HookValues],
) -> Any:
    """Return (x - max) - log(sum(exp(x - max))) along `axis`; everything else is as in `softmax`.

    -inf gives -inf where the rest of the row is finite.
    """
    if dim is not None:
        axis = axis_of(axis, dim)
    if hooks:
        from softgen.call.hooks import call_hooked  # 6 ms of a first call, for those who have some

        name = "log_softmax_lse" if return_lse else "log_softmax"
        return call_hooked(name, x, out, axis, dtype, tune, variant, batch_invariant, pdl, hooks)
    if return_lse:
        calls = _log_softmax_lse if pdl else calls_of("log_softmax_lse", False)
    else:
        calls = _log_softmax if pdl else calls_of("log_softmax", False)
    return calls[type(x)](x, out, axis, dtype, tune, variant, batch_invariant, ())


def logsumexp(
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
    dim: int | tuple[int, ...] | None = None,
    **hooks: Unpack[HookValues],
) -> Any:
    """Return log(sum(exp(x))) along `axis`: x is read once, and one number a row written.

    Args:
        x: as in `softmax`.
        axis: as in `softmax`.
        dtype: dtype of the result; x's by default.
        out: where to write, an array of the result's shape (without keepdim), dtype and device.
        keepdim: whether the result keeps the axes, with length 1.
        tune: as in `softmax`.
        variant: as in `softmax`.
        batch_invariant: as in `softmax`.
        pdl: as in `softmax`.
        dim: PyTorch's name of `axis`.
        hooks: as in `softmax`, but for out_scale, dropout and its seed.

    Returns:
        An array of x's library, of x's shape without the axis.

    -inf for a row of -inf or of no elements, +inf where there is +inf, NaN where there is NaN.
    Raises what `softmax` raises.
    """
    if dim is not None:
        axis = axis_of(axis, dim)
    if hooks:
        from softgen.call.hooks import call_hooked

        request = (x, out, axis, dtype, tune, variant, batch_invariant, pdl, hooks)
        lse = call_hooked("logsumexp", *request)
    else:
        calls = _logsumexp if pdl else calls_of("logsumexp", False)
        lse = calls[type(x)](x, out, axis, dtype, tune, variant, batch_invariant, ())
    if not keepdim:
        return lse
    if axis is None:
        return with_axes_kept(lse, None, library_of(x)[1].ndim)
    return lse[..., None] if axis == -1 else with_axes_kept(lse, axis)


def partial(
    x: Any,
    axis: int | tuple[int, ...] | None = -1,
    *,
    tune: str | None = None,
    variant: Choice = None,
    batch_invariant: bool | None = None,
    pdl: bool = True,
    dim: int | tuple[int, ...] | None = None,
) -> tuple[Any, Any]:
    """Return the pair (m, d) of each row: m = max(x) and d = sum(exp(x - m)).

    Pairs of pieces of a row are put together by `merge`, and `finish` makes softmax of each piece
    from the pair of the whole row (Milakov & Gimelshein, arXiv 1805.02867, section 3.1).

    Args:
        x: as in `softmax`.
        axis: as in `softmax`.
        tune: as in `softmax`.
        variant: as in `softmax`.
        batch_invariant: as in `softmax`.
        pdl: as in `softmax`.
        dim: PyTorch's name of `axis`.

    Returns:
        m and d, float32 (float64 for float64), of x's shape without the axis. A row of -inf or of
        no elements gives (-inf, 0); one with NaN or +inf gives NaN twice.
    """
    if dim is not None:
        axis = axis_of(axis, dim)
    calls = _partial if pdl else calls_of("partial", False)
    pair: tuple[Any, Any] = calls[type(x)](x, None, axis, None, tune, variant, batch_invariant, ())
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
    tune: str | None = None,
    variant: Choice = None,
    batch_invariant: bool | None = None,
    pdl: bool = True,
    dim: int | tuple[int, ...] | None = None,
) -> Any:
    """Return exp(x - m) / d: the softmax of a piece x of rows whose pairs are (m, d).

    With `log` its logarithm, (x - m) - log(d).

    Args:
        x: the piece, as in `softmax`.
        m: maxima of the whole rows, as `partial` or `merge` returns them; of x's shape without the
            axis, float32 (float64 if x or the result is).
        d: sums of the whole rows, likewise.
        axis: as in `softmax`; any other than the last costs a copy of x.
        log: whether to return the logarithm.
        dtype: as in `softmax`.
        out: as in `softmax`.
        tune: as in `softmax`.
        variant: as in `softmax`.
        batch_invariant: as in `softmax`.
        pdl: as in `softmax`.
        dim: PyTorch's name of `axis`.
    """
    if dim is not None:
        axis = axis_of(axis, dim)
    calls = _finish if pdl and not log else calls_of("log_finish" if log else "finish", pdl)
    return calls[type(x)](x, out, axis, dtype, tune, variant, batch_invariant, (m, d))


def axis_of(axis: Any, dim: int | tuple[int, ...]) -> int | tuple[int, ...]:
    """Return `dim`, which a caller gave in place of `axis`."""
    if axis != -1 and axis != dim:
        raise InvalidValueError(f"axis={axis!r} and dim={dim!r} differ; give one of them")
    return dim
