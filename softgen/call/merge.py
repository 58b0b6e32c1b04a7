"""merge: the pair of whole rows from the pairs of their pieces, by the arrays' own operations."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from softgen.devices.gpu.driver import on_device
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.dtypes import DType

_USE = "write merge((m1, d1), (m2, d2)), with pairs as `partial` returns them"


def merge(*pairs: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the pair (m, d) of whole rows from the pairs of their pieces.

    m is the largest of the maxima, and d the sum of d_i exp(m_i - m) (Milakov & Gimelshein, arXiv
    1805.02867, section 3.1). That is associative and commutative, and (-inf, 0) changes nothing, so
    pieces may be merged in any order and grouping; docs/partial.md has the proof and the bounds.

    Args:
        pairs: (m, d) of each piece, as `partial` or `merge` returns them: arrays of CuPy, PyTorch
            or NumPy, all of one library, shape, device and dtype, float32 or float64.

    Returns:
        m and d, of the same kind as the arguments, on the caller's stream. Two pairs give the same
        bits in either order; of more, d may differ in its last bits. A row in which anything is NaN
        or +inf is NaN twice.

    Raises, before anything is computed:
        InvalidValueError: no pairs, or arrays of different shapes or devices. InvalidTypeError: an
            argument is no pair, or its arrays are of different libraries or dtypes, or of another
            dtype than those two.
    """
    module = _checked(pairs)
    first = pairs[0][0]
    cupy = module.__name__ == "cupy"
    # NumPy warns of inf - inf, which is meant to be NaN.
    with (
        on_device(first.device.id) if cupy else contextlib.nullcontext(),
        np.errstate(all="ignore"),
    ):
        zero = module.zeros_like(first)
        maxima = [m for m, _ in pairs]
        if cupy and first.dtype == np.float32:
            whole = largest_by_bits(module, maxima)
        else:
            # Of 0 and -0 a maximum may be either; their sum with 0 is 0.
            whole = functools.reduce(module.maximum, maxima) + zero
        # Where all are -inf, exp(-inf - -inf) would be NaN.
        shift = module.where(whole == -math.inf, zero, whole)
        total = functools.reduce(operator.add, [d * module.exp(m - shift) for m, d in pairs])
        spoiled = total - total  # NaN where the sum is NaN or infinite, else 0
        sound = spoiled == 0
        return module.where(sound, whole, spoiled), module.where(sound, total, spoiled)


def largest_by_bits(module: Any, arrays: Sequence[Any]) -> Any:
    """Return the largest of float32 arrays without NaN, element by element; 0 where that is -0.

    Subnormal numbers too, by operations of integers: CuPy compiles its own with -ftz=true, which
    makes 0 of them.
    """
    flip = np.int32(0x7FFFFFFF)

    def swapped(bits: Any) -> Any:  # floats sort like these, and the inverse is the same
        return module.where(bits < 0, bits ^ flip, bits)

    keys = [swapped(array.view(np.int32)) for array in arrays]
    largest = functools.reduce(module.maximum, keys)
    of_minus_zero = -1
    return swapped(module.where(largest == of_minus_zero, 0, largest)).view(np.float32)


def _checked(pairs: tuple[Any, ...]) -> Any:
    """Return the module of the library that all arrays are of; raise unless they are alike."""
    if not pairs:
        raise InvalidValueError(f"merge of no pairs; {_USE}")
    found: list[tuple[str, tuple[Any, ...]]] = []
    for i, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            length = f" of {len(pair)}" if isinstance(pair, tuple | list) else ""
            raise InvalidTypeError(
                f"argument {i} of merge is a {type(pair).__qualname__}{length} and no pair; {_USE}"
            )
        for name, array in zip("md", pair, strict=True):
            place = f"{name} of pair {i}"
            found.append((place, _facts(place, array)))
    first = found[0][1]
    for place, facts in found:
        for kind, wanted, has in zip(_FACTS, first, facts, strict=True):
            if has != wanted:
                fault = InvalidTypeError if kind in _TYPES else InvalidValueError
                raise fault(
                    f"the arrays of merge must be alike, and {place} has {kind} {has} where m of "
                    f"pair 0 has {wanted}"
                )
    return sys.modules[first[0]]


_FACTS = ("library", "dtype", "shape", "device")
_TYPES = _FACTS[:2]


def _facts(place: str, array: Any) -> tuple[str, str, tuple[int, ...], str]:
    """Return an array's library, dtype, shape and device; InvalidTypeError if it has none."""
    cupy, torch = sys.modules.get("cupy"), sys.modules.get("torch")
    if isinstance(array, np.ndarray | np.generic):
        library, device = "numpy", "cpu"
    elif cupy is not None and isinstance(array, cupy.ndarray):
        library, device = "cupy", str(array.device.id)
    elif torch is not None and isinstance(array, torch.Tensor):
        library, device = "torch", str(array.device)
    else:
        kind = type(array)
        raise InvalidTypeError(
            f"{place} is a {kind.__module__}.{kind.__qualname__}; merge takes arrays of CuPy, "
            f"PyTorch and NumPy: {_USE}"
        )
    dtype = str(array.dtype).rpartition(".")[2]
    if dtype not in (DType.FLOAT32.value, DType.FLOAT64.value):
        raise InvalidTypeError(
            f"{place} is {dtype}; pairs are float32 or float64, as `partial` returns them"
        )
    return library, dtype, tuple(array.shape), device
