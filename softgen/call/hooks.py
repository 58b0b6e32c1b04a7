"""What a call's hooks are: their names, which decide the kernel, and what its launch takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from softgen.call.axes import axes_of
from softgen.call.broadcast import Broadcast
from softgen.call.library import Library, library_of
from softgen.call.options import HookOptions
from softgen.call.scalars import above_zero, bits, finite, is_number, whole
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError
from softgen.names import unknown
from softgen.problems.dtypes import FLOAT32_TINY, DType, Integer, compute_type, result_type
from softgen.problems.functions.base import Function
from softgen.problems.hooks.dropout import kept_scale_of, threshold_of
from softgen.problems.hooks.places import MOST_ROWS

NAMES = tuple(HookOptions.__annotations__)


def hooked(
    function: str, x: Any, axis: Any, dtype: object, hooks: Mapping[str, Any]
) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Return what `chosen` does, of a call along any axis."""
    along = -1 if _of_any_axis(hooks) else the_axis(library_of(x)[1].ndim, axis)
    return chosen(Function.of(function), x, dtype, hooks, axis=along)


# Arguments that ask for the place of no element, so that a kernel of any axis has them.
OF_ANY_AXIS = ("scale", "out_scale", "empty_rows")


def _of_any_axis(hooks: Mapping[str, Any]) -> bool:
    """Whether they are numbers for all rows, and a scale of them is FLOAT32_TINY or more."""
    given = {name: value for name, value in hooks.items() if value is not None}
    scale, out_scale = given.get("scale", 1), given.get("out_scale", 1)
    numbers = is_number(scale) and is_number(out_scale) and scale >= FLOAT32_TINY
    return given.keys() <= set(OF_ANY_AXIS) and numbers


def the_axis(ndim: int, axis: object) -> int:
    """Return the axis as -1 for the last one, else from 0 on; NotSupportedError for several."""
    if is_number(axis) and not isinstance(axis, bool):  # one of NumPy's too
        (found,) = axes_of(axis, ndim) or (-1,)
        return -1 if found == ndim - 1 else found
    raise NotSupportedError(
        f"hooks are for one axis, got axis {axis!r} of {ndim}; reshape x so that it has one (a "
        "number above 0 as scale, a number as out_scale, and empty_rows are for several too)"
    )


def chosen(
    function: Function,
    x: Any,
    dtype: object,
    hooks: Mapping[str, Any],
    library_of: Callable[..., tuple[Library, Any]] = library_of,
    *,
    axis: int = -1,
) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Return the names of the kernel's hooks, and what they take, in their order.

    Args:
        function: what is computed.
        x: as in `api.softmax`.
        dtype: as in `api.softmax`.
        hooks: as `HookOptions`.
        library_of: returns the library of an array, and the array as that has it.
        axis: whose rows are meant: -1, or from 0 on.

    Raises InvalidTypeError or InvalidValueError, saying what is accepted.
    """
    for name in hooks:
        if name not in NAMES:
            raise InvalidTypeError(unknown("argument", name, NAMES))
    found = _Finder(x, dtype, hooks, library_of, axis)
    rows = math.prod(found.x.shape)
    if rows > MOST_ROWS:
        raise InvalidValueError(
            f"hooks take at most 2**31 - 1 rows, got {rows}; call for a part of them"
        )
    for find in (found.scale, found.softcap, found.bias, found.mask, found.lengths, found.causal):
        find()
    found.sink()
    found.empty_rows(function)
    found.out_scale()
    found.dropout()
    return tuple(found.names), tuple(found.values)


class _Finder:
    """Looks at the arguments one by one, in the order in which hooks are applied."""

    def __init__(
        self,
        x: Any,
        dtype: object,
        hooks: Mapping[str, Any],
        library_of: Callable[..., tuple[Library, Any]],
        axis: int,
    ) -> None:
        self.hooks = hooks
        self.x = Broadcast(x, library_of, axis)
        y_type = self.x.dtype if dtype is None else result_type(dtype)
        self.compute = compute_type(self.x.dtype, y_type)
        self.names: list[str] = []
        self.values: list[Any] = []

    def scale(self) -> None:
        given = self.hooks.get("scale")
        if given is None:
            return
        if is_number(given):
            value = finite("scale", given)
            # Arithmetic may make 0 of a smaller one, and 0 times -inf of absent elements is NaN.
            self._add("scale" if value >= FLOAT32_TINY else "scaleany", value)
        else:
            array = self.x.array("scale", given, (self.compute,), "a number or an array of")
            self._add("scalerow", *self.x.by_row("scale", array))

    def softcap(self) -> None:
        given = self.hooks.get("softcap")
        if given is not None:
            self._add("softcap", above_zero("softcap", given))

    def bias(self) -> None:
        given = self.hooks.get("bias")
        if given is not None:
            array = self.x.array("bias", given, tuple(DType), "an array of")
            kind = self.x.library.element_type(array)
            self._add(*self.x.lines("bias", array, f"bias{kind.short}"))

    def mask(self) -> None:
        given = self.hooks.get("mask")
        if given is not None:
            advice = "an array (an additive mask of floats is bias=) of"
            array = self.x.array("mask", given, (Integer.BOOL,), advice)
            self._add(*self.x.lines("mask", array, "mask"))

    def lengths(self) -> None:
        given = self.hooks.get("lengths")
        if given is not None:
            array = self.x.array("lengths", given, (Integer.INT32, Integer.INT64), "an array of")
            kind = self.x.library.element_type(array)
            self._add(f"lengths{kind.short}", *self.x.by_row("lengths", array))

    def causal(self) -> None:
        wanted, offset = self.hooks.get("causal", False), self.hooks.get("causal_offset")
        if not isinstance(wanted, bool):
            raise InvalidTypeError(f"causal must be True or False, got {wanted!r}")
        if not wanted:
            if offset is not None:
                raise InvalidValueError("causal_offset needs causal=True")
            return
        queries = self.x.shape[-1] if self.x.shape else 1
        shift = self.x.cols - queries if offset is None else whole("causal_offset", offset)
        self._add("causal", max(1, queries), shift)

    def sink(self) -> None:
        given = self.hooks.get("sink")
        if given is None:
            return
        if not self.x.cols:
            raise InvalidValueError("rows without elements take no sink; x has no columns")
        array = self.x.array("sink", given, tuple(DType), "an array of")
        kind = self.x.library.element_type(array)
        self._add(f"sink{kind.short}", *self.x.by_row("sink", array))

    def empty_rows(self, function: Function) -> None:
        given = self.hooks.get("empty_rows", "nan")
        if given not in ("nan", "zero"):
            raise InvalidValueError(f"empty_rows must be 'nan' or 'zero', got {given!r}")
        if given == "zero" and function.name != "logsumexp":  # whose empty rows are -inf anyway
            self._add("zeroempty")

    def out_scale(self) -> None:
        given = self.hooks.get("out_scale")
        if given is None:
            return
        if is_number(given):
            self._add("outscale", finite("out_scale", given))
        else:
            array = self.x.array("out_scale", given, (self.compute,), "a number or an array of")
            self._add("outscalerow", *self.x.by_row("out_scale", array))

    def dropout(self) -> None:
        p, seed = finite("dropout", self.hooks.get("dropout", 0.0)), self.hooks.get("seed")
        if not 0 <= p <= 1:
            raise InvalidValueError(f"dropout must be from 0 to 1, got {p!r}")
        threshold = threshold_of(p)
        if not threshold:
            return
        if seed is None:
            raise InvalidValueError("dropout needs seed=, 64 bits that are others at each call")
        offset = whole("seed_offset", self.hooks.get("seed_offset", 0))
        self._add("dropout", threshold, bits("seed", seed), bits("seed_offset", offset))
        self.values.append(kept_scale_of(threshold))

    def _add(self, name: str, *values: Any) -> None:
        self.names.append(name)
        self.values += values
