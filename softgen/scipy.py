"""scipy.special's softmax, log_softmax and logsumexp, on CuPy arrays.

The arguments and results are those of SciPy 1.15; SciPy itself is not needed. What softgen's
kernels do not cover (`b`, complex numbers, an empty tuple of axes) is cupyx.scipy.special's.
"""

from __future__ import annotations

from typing import Any

from softgen.call import api
from softgen.call.library import library_of
from softgen.errors import InvalidTypeError

__all__ = ["log_softmax", "logsumexp", "softmax"]

Axis = int | tuple[int, ...] | None


def softmax(x: Any, axis: Axis = None) -> Any:
    """Return exp(x) / sum(exp(x)) over `axis`, as scipy.special.softmax does.

    Args:
        x: a CuPy array, or an object with `__cuda_array_interface__` or `__dlpack__` on a GPU;
            floats of 16 to 64 bits. Integers and booleans are converted to float64, which is a
            copy. Complex numbers go to cupyx.
        axis: the axis, several as a tuple, None for all; () goes to cupyx.

    Returns:
        An array of x's shape and dtype; of float64 for integers.

    Raises what `softgen.softmax` raises, and InvalidTypeError for a tensor.
    """
    x = _floats(x)
    return (_cupyx() if _beyond(x, axis) else api).softmax(x, axis)


def log_softmax(x: Any, axis: Axis = None) -> Any:
    """Return the logarithm of `softmax`, as scipy.special.log_softmax does.

    The arguments are those of `softmax`. A row with +inf gives NaN throughout; SciPy gives NaN
    at +inf and -inf elsewhere.
    """
    x = _floats(x)
    return (_cupyx() if _beyond(x, axis) else api).log_softmax(x, axis)


def logsumexp(
    a: Any,
    axis: Axis = None,
    b: Any = None,
    keepdims: bool = False,
    return_sign: bool = False,
) -> Any:
    """Return log(sum(b * exp(a))) over `axis`, as scipy.special.logsumexp does.

    Args:
        a: as x of `softmax`.
        axis: as in `softmax`.
        b: factors that broadcast with a, of any sign: an array, a list or a number. With them
            cupyx computes.
        keepdims: whether the result keeps the axes, with length 1.
        return_sign: whether to return the sign of the sum beside the logarithm of its absolute
            value. Without it the logarithm of a negative sum is NaN.

    Returns:
        An array of a's dtype (float64 for integers) without the axes; with `return_sign` a pair of
        it and one of 1, 0 or -1, NaN where the sum is.

    -inf for a row of -inf, +inf where there is +inf, NaN where there is NaN.
    """
    a = _floats(a)
    if b is not None or _beyond(a, axis):
        factors = None if b is None else _cupy().asarray(b)
        return _cupyx().logsumexp(a, axis, factors, keepdims, return_sign)
    lse = api.logsumexp(a, axis, keepdim=keepdims)
    if not return_sign:
        return lse
    cupy = _cupy()
    some = (lse != -cupy.inf).astype(lse.dtype)
    return lse, cupy.where(cupy.isnan(lse), lse, some)


def _floats(x: Any) -> Any:
    """Return a CuPy array of floats or complex numbers."""
    array = library_of(x)[1]
    if not isinstance(array, _cupy().ndarray):
        raise InvalidTypeError(
            f"softgen.scipy takes CuPy arrays, got {type(x).__module__}.{type(x).__qualname__}; "
            "softgen.torch has these functions for tensors"
        )
    return array.astype("float64") if array.dtype.kind in "biu" else array


def _beyond(x: Any, axis: Axis) -> bool:
    """Whether no kernel does it."""
    return axis == () or x.dtype.kind == "c"


def _cupy() -> Any:
    import cupy

    return cupy


def _cupyx() -> Any:
    from cupyx.scipy import special

    return special
