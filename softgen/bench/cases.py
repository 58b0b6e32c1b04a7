"""What is timed beside calls on contiguous rows: calls on views, and calls with hooks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from softgen.problems.dtypes import DType
from softgen.problems.functions.base import Function

Given = dict[str, Any]

SCALE = 0.125  # 1 / sqrt(64), of heads with 64 elements
SHOWN = 0.9  # the share of a mask's elements that are True
PERIOD = 1 << 20  # the random values of a large array repeat
MOST_DEVIATIONS = 6.0  # standard deviations by which the share of dropped elements may miss p

# The views that are timed, for CuPy's arrays and PyTorch's tensors. x is (batch, head, query, key);
# for the last view it has long rows.
VIEWS: dict[str, Callable[[Any], Any]] = {
    "x[..., :1000]": lambda x: x[..., :1000],
    "x[..., :1001]": lambda x: x[..., :1001],
    "x[..., 3:1003]": lambda x: x[..., 3:1003],
    "x[..., 5:38]": lambda x: x[..., 5:38],
    "x[..., :4000]": lambda x: x[..., :4000],
    "x[:, :, ::2]": lambda x: x[:, :, ::2],
    "x[:, 1]": lambda x: x[:, 1],
    "x[:, 1:3, :, :2048]": lambda x: x[:, 1:3, :, :2048],
    "x[:, :6, ::2]": lambda x: x[:, :6, ::2],
    "x[::2, ::2, ::2, :512]": lambda x: x[::2, ::2, ::2, :512],
    "x.swapaxes(0, 1)": lambda x: x.swapaxes(0, 1),
    "x[:, :131000]": lambda x: x[:, :131000],
}


@dataclass(frozen=True)
class Hooked:
    """What a call is given beside x.

    Attributes:
        make: returns the arguments of a call on x of shape (batch, head, query, key): numbers, and
            NumPy's arrays, the same on every call. A bias is bfloat16.
    """

    make: Callable[[tuple[int, ...]], Given]

    def given(self, shape: tuple[int, ...]) -> Mapping[str, Any]:
        """Return the arguments; nobody may write into their arrays."""
        return _given(self.make, shape)


@functools.lru_cache(maxsize=4)
def _given(make: Callable[[tuple[int, ...]], Given], shape: tuple[int, ...]) -> Given:
    return make(shape)


def _normal(*shape: int) -> Any:
    import numpy as np

    values = np.random.default_rng(0).standard_normal(PERIOD, np.float32)
    return np.resize(values, shape)


def _bias(*shape: int) -> Any:
    from softgen.problems.numerics import numpy_dtype

    return _normal(*shape).astype(numpy_dtype(DType.BFLOAT16))


def _mask(*shape: int) -> Any:
    import numpy as np

    return np.resize(np.random.default_rng(0).random(PERIOD) < SHOWN, shape)


def _key_bias(shape: tuple[int, ...]) -> Any:
    """Return an additive mask of keys: 0 where one is shown, -inf where it is not."""
    import numpy as np

    from softgen.problems.numerics import numpy_dtype

    shown = _mask(shape[0], 1, 1, shape[-1])
    return np.where(shown, 0.0, -np.inf).astype(numpy_dtype(DType.BFLOAT16))


def _lengths(shape: tuple[int, ...]) -> Any:
    """Return a length for each of the batch: 1/4, 2/4, 3/4 and 4/4 of the keys, in turn."""
    import numpy as np

    quarters = np.arange(shape[0]) % 4 + 1
    return (quarters * shape[-1] // 4).astype(np.int32).reshape(-1, 1, 1)


# By their names in the tables, which are those of the arguments, and say how far an array reaches.
HOOKED = {
    name: Hooked(make)
    for name, make in (
        ("scale", lambda shape: {"scale": SCALE}),
        ("scale below 0", lambda shape: {"scale": -SCALE}),
        ("scale of rows", lambda shape: {"scale": 1 / (1 + abs(_normal(*shape[:-1])))}),
        ("softcap", lambda shape: {"softcap": 30.0}),
        ("bias of keys", lambda shape: {"bias": _key_bias(shape)}),
        ("bias", lambda shape: {"bias": _bias(1, *shape[1:])}),
        ("mask of keys", lambda shape: {"mask": _mask(shape[0], 1, 1, shape[-1])}),
        ("mask", lambda shape: {"mask": _mask(shape[0], 1, *shape[2:])}),
        ("lengths", lambda shape: {"lengths": _lengths(shape)}),
        ("causal", lambda shape: {"causal": True}),
        ("sink", lambda shape: {"sink": _normal(shape[1], 1)}),
        ("empty_rows", lambda shape: {"empty_rows": "zero"}),
        ("out_scale", lambda shape: {"out_scale": 2.0}),
        ("dropout", lambda shape: {"dropout": 0.125, "seed": 1}),
        ("causal, scaled", lambda shape: {"causal": True, "scale": SCALE}),
        ("bias of keys, scaled", lambda shape: {"bias": _key_bias(shape), "scale": SCALE}),
    )
}


class Exact:
    """The exact results of a call with hooks, by arithmetic in float64.

    Args:
        function: what is computed; it has one result.
        shape: the shape of x.
        given: the arguments; arrays are NumPy's or CuPy's.
    """

    def __init__(
        self, function: Function, shape: tuple[int, ...], given: Mapping[str, Any]
    ) -> None:
        self.function, self.shape, self.given = function, shape, given

    def of(self, x: Any, rows: Sequence[Any], found: Any) -> Any:
        """Return the exact results of some rows.

        Args:
            x: those rows, float64, (n, cols).
            rows: where they are: an array of n places for each axis but the last.
            found: their results. Which elements dropout drops is taken from them.
        """
        given, xp, cols = self.given, _module(x), self.shape[-1]
        column, position = xp.arange(cols), rows[-1][:, None]
        if "scale" in given:
            scale = given["scale"]
            x = x * (self._by_row(scale, rows) if hasattr(scale, "shape") else scale)
        if "softcap" in given:
            x = given["softcap"] * xp.tanh(x / given["softcap"])
        if "bias" in given:
            x = x + self._lines(given["bias"], rows)
        if "mask" in given:
            x = xp.where(self._lines(given["mask"], rows) != 0, x, float("-inf"))
        if "lengths" in given:
            x = xp.where(column < self._by_row(given["lengths"], rows), x, float("-inf"))
        if given.get("causal"):
            x = xp.where(column <= position + (cols - self.shape[-2]), x, float("-inf"))
        if "sink" in given:
            x = xp.concatenate((x, self._by_row(given["sink"], rows)), axis=1)
        (y,) = self.function.reference(x)
        y = y[:, :cols] if y.ndim == 2 else y
        if given.get("empty_rows") == "zero":
            y = xp.where(xp.isnan(y), 0.0, y)
        y = y * given.get("out_scale", 1.0)
        return self._kept(y, found) if "dropout" in given else y

    def _lines(self, array: Any, rows: Sequence[Any]) -> Any:
        """Return the lines of an array with an element a column that belong to rows."""
        return _taken(array, (*self.shape[:-1], array.shape[-1]), rows)

    def _by_row(self, array: Any, rows: Sequence[Any]) -> Any:
        return _taken(array, self.shape[:-1], rows)[:, None]

    def _kept(self, y: Any, found: Any) -> Any:
        """Return `y` with 0 where `found` is, or NaN if too many or too few were dropped."""
        p = self.given["dropout"]
        dropped = found == 0
        deviation = abs(float(dropped.mean()) - p) / (p * (1 - p) / dropped.size) ** 0.5
        factor = 1 / (1 - p) if deviation < MOST_DEVIATIONS else float("nan")
        return _module(y).where(dropped, 0.0, y * factor)


def _taken(array: Any, shape: tuple[int, ...], rows: Sequence[Any]) -> Any:
    """Return what rows find in an array that is broadcast to `shape`, in float64."""
    # As bits: CuPy need not know the type that it gathers.
    bits = array.view(f"uint{8 * array.dtype.itemsize}")
    found = _module(array).broadcast_to(bits, shape)[tuple(rows)]
    return found.view(array.dtype).astype("float64")


def _module(array: Any) -> Any:
    """Return NumPy or CuPy, whichever the array is of."""
    import numpy as np

    if isinstance(array, np.ndarray):
        return np
    import cupy

    return cupy
