"""What a call's hooks are: their names, which decide the kernel, and what its launch takes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from softgen.call.axes import axes_of
from softgen.call.full import calls_of
from softgen.call.library import Library, library_of
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError
from softgen.names import unknown
from softgen.spec.dtypes import (
    MAX_PACK_BYTES,
    DType,
    ElementType,
    Integer,
    compute_type,
    result_type,
)
from softgen.spec.functions.base import Function
from softgen.spec.hooks.dropout import kept_scale_of, threshold_of
from softgen.spec.hooks.places import MOST_ROWS, Place, place_of
from softgen.spec.problem import natural_alignment

if TYPE_CHECKING:
    from softgen.strategies.select import Choice


class HookValues(TypedDict, total=False):
    """The arguments of a call that are hooks; docs/hooks.md says what they do.

    Attributes:
        scale: a finite number, or an array of the type of the arithmetic, broadcast over the rows.
        softcap: a finite number above 0.
        bias: an array of floats, broadcast over x; its last axis is that of x.
        mask: an array of booleans, broadcast over x; its last axis is that of x.
        lengths: an array of int32 or int64, broadcast over the rows.
        causal: whether a row ends behind its position.
        causal_offset: columns that position 0 sees beside one; by default columns - queries.
        sink: an array of floats, broadcast over the rows, as (heads, 1) over (batch, head, query).
        empty_rows: "nan", or "zero" for 0 in rows of nothing but -inf.
        out_scale: a finite number, or an array of the type of the arithmetic, broadcast over the
            rows.
        dropout: the probability of an element to be dropped, from 0 to 1, to the nearest 1 / 65536.
        seed: of dropout, 64 bits.
        seed_offset: of dropout, 64 bits; by default 0.
    """

    scale: Any
    softcap: float | None
    bias: Any
    mask: Any
    lengths: Any
    causal: bool
    causal_offset: int | None
    sink: Any
    empty_rows: str
    out_scale: Any
    dropout: float
    seed: int | None
    seed_offset: int


NAMES = tuple(HookValues.__annotations__)


def call_hooked(
    function: str,
    x: Any,
    out: Any,
    axis: Any,
    dtype: object,
    tune: str | None,
    choice: Choice,
    batch_invariant: bool | None,
    pdl: bool,
    hooks: Mapping[str, Any],
    others: tuple[Any, ...] = (),
) -> Any:
    """Return the result of a call with hooks; the other arguments are those of `api.softmax`.

    `others` are the function's inputs beside x.
    """
    along = -1 if _of_any_axis(hooks) else the_axis(library_of(x)[1].ndim, axis)
    names, values = chosen(Function.of(function), x, dtype, hooks, axis=along)
    calls = calls_of(function, pdl, names)
    values = (*others, *values)
    return calls[type(x)](x, out, axis, dtype, tune, choice, batch_invariant, values)


# Arguments that ask for the place of no element, so that a kernel of any axis has them.
OF_ANY_AXIS = ("scale", "out_scale", "empty_rows")


def _of_any_axis(hooks: Mapping[str, Any]) -> bool:
    """Whether they are numbers for all rows, and a scale of them is above 0."""
    given = {name: value for name, value in hooks.items() if value is not None}
    scale, out_scale = given.get("scale", 1), given.get("out_scale", 1)
    numbers = _is_number(scale) and _is_number(out_scale) and scale > 0
    return given.keys() <= set(OF_ANY_AXIS) and numbers


def the_axis(ndim: int, axis: object) -> int:
    """Return the axis as -1 for the last one, else from 0 on; NotSupportedError for several."""
    if isinstance(axis, int) and not isinstance(axis, bool):
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
    library_of: Callable[[Any], tuple[Library, Any]] = library_of,
    *,
    axis: int = -1,
) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Return the names of the kernel's hooks, and what they take, in their order.

    Args:
        function: what is computed.
        x: as in `api.softmax`.
        dtype: as in `api.softmax`.
        hooks: as `HookValues`.
        library_of: returns the library of an array, and the array as that has it.
        axis: whose rows are meant: -1, or from 0 on.

    Raises InvalidTypeError or InvalidValueError, saying what is accepted.
    """
    for name in hooks:
        if name not in NAMES:
            raise InvalidTypeError(unknown("argument", name, NAMES))
    found = _Finder(x, dtype, hooks, library_of, axis)
    if found.rows > MOST_ROWS:
        raise InvalidValueError(
            f"hooks take at most 2**31 - 1 rows, got {found.rows}; call for a part of them"
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
        library_of: Callable[[Any], tuple[Library, Any]],
        axis: int,
    ) -> None:
        library, array = library_of(x)
        self.library, self.library_of = library, library_of
        self.hooks = hooks
        self.device = library.device(array)
        self.dtype = library.dtype(array)
        y_type = self.dtype if dtype is None else result_type(dtype)
        self.compute = compute_type(self.dtype, y_type)
        self.whole = tuple(array.shape)
        self.axis = axis if array.ndim else -1
        behind = self.whole[self.axis + 1 :] if self.axis != -1 else ()
        self.shape = (*self.whole[: self.axis], *behind)
        self.cols = int(self.whole[self.axis]) if array.ndim else 1
        self.rows = math.prod(self.shape)
        self.names: list[str] = []
        self.values: list[Any] = []

    def scale(self) -> None:
        given = self.hooks.get("scale")
        if given is None:
            return
        if _is_number(given):
            value = _finite("scale", given)
            self._add("scale" if value > 0 else "scaleany", value)
        else:
            array = self._array("scale", given, (self.compute,), "numbers or an array of")
            self._add("scalerow", *self._by_row("scale", array))

    def softcap(self) -> None:
        given = self.hooks.get("softcap")
        if given is None:
            return
        value = _finite("softcap", given)
        if value <= 0:
            raise InvalidValueError(f"softcap must be above 0, got {given!r}; None is without it")
        self._add("softcap", value)

    def bias(self) -> None:
        given = self.hooks.get("bias")
        if given is not None:
            array = self._array("bias", given, tuple(DType), "an array of")
            kind = self.library.element_type(array)
            self._add(*self._lines("bias", array, f"bias{kind.short}"))

    def mask(self) -> None:
        given = self.hooks.get("mask")
        if given is not None:
            advice = "an array (an additive mask of floats is bias=) of"
            array = self._array("mask", given, (Integer.BOOL,), advice)
            self._add(*self._lines("mask", array, "mask"))

    def lengths(self) -> None:
        given = self.hooks.get("lengths")
        if given is not None:
            array = self._array("lengths", given, (Integer.INT32, Integer.INT64), "an array of")
            kind = self.library.element_type(array)
            self._add(f"lengths{kind.short}", *self._by_row("lengths", array))

    def causal(self) -> None:
        wanted, offset = self.hooks.get("causal", False), self.hooks.get("causal_offset")
        if not isinstance(wanted, bool):
            raise InvalidTypeError(f"causal must be True or False, got {wanted!r}")
        if not wanted:
            if offset is not None:
                raise InvalidValueError("causal_offset needs causal=True")
            return
        queries = self.shape[-1] if self.shape else 1
        shift = self.cols - queries if offset is None else _whole("causal_offset", offset)
        self._add("causal", max(1, queries), shift)

    def sink(self) -> None:
        given = self.hooks.get("sink")
        if given is None:
            return
        if not self.cols:
            raise InvalidValueError("rows without elements take no sink; x has no columns")
        array = self._array("sink", given, tuple(DType), "an array of")
        kind = self.library.element_type(array)
        self._add(f"sink{kind.short}", *self._by_row("sink", array))

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
        if _is_number(given):
            self._add("outscale", _finite("out_scale", given))
        else:
            array = self._array("out_scale", given, (self.compute,), "a number or an array of")
            self._add("outscalerow", *self._by_row("out_scale", array))

    def dropout(self) -> None:
        p, seed = _finite("dropout", self.hooks.get("dropout", 0.0)), self.hooks.get("seed")
        if not 0 <= p <= 1:
            raise InvalidValueError(f"dropout must be from 0 to 1, got {p!r}")
        threshold = threshold_of(p)
        if not threshold:
            return
        if seed is None:
            raise InvalidValueError("dropout needs seed=, 64 bits that are others at each call")
        offset = _whole("seed_offset", self.hooks.get("seed_offset", 0))
        self._add("dropout", threshold, _bits("seed", seed), _bits("seed_offset", offset))
        self.values.append(kept_scale_of(threshold))

    def _add(self, name: str, *values: Any) -> None:
        self.names.append(name)
        self.values += values

    def _array(self, name: str, given: Any, kinds: Sequence[ElementType], words: str) -> Any:
        """Return an array of one of the types, of x's library and on its device."""
        library, array = self.library_of(given)
        if library is not self.library or library.device(array) != self.device:
            raise InvalidValueError(f"{name} must be of x's library and on its device")
        if library.element_type(array) not in kinds:
            accepted = " or ".join(kind.value for kind in kinds)
            raise InvalidTypeError(
                f"{name} must be {words} {accepted}, got {library.element_type(array).value}"
            )
        return array

    def _lines(self, name: str, array: Any, kind: str) -> tuple[Any, ...]:
        """Return the hook of an array with an element a column, and what it takes."""
        library, size = self.library, self.library.element_type(array).itemsize
        given, whole = tuple(array.shape), (*self.shape, self.cols)
        if self.axis != -1:
            array, whole = self._moved(array), self.whole
        shape = tuple(array.shape)
        if self.cols != 1 and (not shape or shape[-1] == 1):
            advice = "lengths= hides whole rows" if name == "mask" else "it would move no result"
            raise InvalidValueError(
                f"{name} must have an element a column, got shape {given}: a number a row is no "
                f"{name} ({advice})"
            )
        self._require_broadcast(name, shape[:-1] if shape else (), whole, given)
        if shape and shape[-1] != self.cols:
            raise self._misfit(name, given, whole)
        steps = library.byte_strides(array)
        if any(step < 0 or step % size for step in steps) or (self.cols > 1 and steps[-1] != size):
            array = library.copy(array)
            steps = library.byte_strides(array)
        place = self._place(name, shape[:-1], [step // size for step in steps[:-1]])
        wanted = min(MAX_PACK_BYTES, natural_alignment(self.dtype, max(1, self.cols)) * size)
        starts = (library.pointer(array), place.stride * size, place.step * size)
        packs = self.axis == -1 and all(start % wanted == 0 for start in starts)
        return (kind if packs else f"{kind}any", array, *place.whole)

    def _moved(self, array: Any) -> Any:
        """Return a view with as many axes as x has, that which is reduced last."""
        ndim = len(self.whole)
        missing = max(0, ndim - len(array.shape))
        if len(array.shape) <= ndim:
            array = array[(None,) * missing] if missing else array
            order = [i for i in range(ndim) if i != self.axis]
            array = self.library.permuted(array, [*order, self.axis])
        return array

    def _by_row(self, name: str, array: Any) -> tuple[Any, ...]:
        """Return an array that is broadcast over the rows, and where they find their element."""
        shape = tuple(array.shape)
        self._require_broadcast(name, shape, self.shape, shape)
        array = self.library.contiguous(array)
        steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        place = self._place(name, shape, steps)
        if place.step == 1 and place.count == 1:
            return (array, 1, place.inner)
        if place.step == 0 and place.stride in (0, 1):
            return (array, place.every, place.count)
        raise self._hard(name, shape)

    def _require_broadcast(
        self, name: str, outer: tuple[int, ...], wanted: tuple[int, ...], shape: tuple[int, ...]
    ) -> None:
        rows = self.shape
        fits = len(outer) <= len(rows) and all(
            mine in (1, theirs) for mine, theirs in zip(outer[::-1], rows[::-1], strict=False)
        )
        if not fits or (0 in shape and 0 not in rows and self.cols):
            raise self._misfit(name, shape, wanted)

    def _misfit(
        self, name: str, shape: tuple[int, ...], wanted: tuple[int, ...]
    ) -> InvalidValueError:
        return InvalidValueError(f"{name} must broadcast to {wanted}, got shape {shape}")

    def _place(self, name: str, shape: tuple[int, ...], steps: Sequence[int]) -> Place:
        missing = len(self.shape) - len(shape)
        place = place_of(((1,) * missing + shape), [0] * missing + [*steps], self.shape)
        if place is None:
            raise self._hard(name, shape)
        return place

    def _hard(self, name: str, shape: tuple[int, ...]) -> InvalidValueError:
        return InvalidValueError(
            f"{name} of shape {shape} is broadcast over rows of shape {self.shape} in more steps "
            "than a kernel takes; expand it to the rows, and make it contiguous"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (
        getattr(value, "shape", None) == () and type(value).__module__ == "numpy"
    )


def _finite(name: str, value: Any) -> float:
    """Return a finite number as Python's float."""
    if isinstance(value, bool) or not _is_number(value):
        raise InvalidTypeError(f"{name} must be a number, got {value!r}")
    number = float(value)
    if not math.isfinite(number):
        raise InvalidValueError(f"{name} must be finite, got {number!r}")
    return number


def _whole(name: str, value: Any) -> int:
    """Return an int that fits 64 bits."""
    index: Callable[[Any], int] = operator.index
    try:
        number = index(value)
    except TypeError:
        raise InvalidTypeError(f"{name} must be an int, got {value!r}") from None
    if not -(2**63) <= number < 2**64:
        raise InvalidValueError(f"{name} must fit 64 bits, got {number}")
    return number


def _bits(name: str, value: Any) -> int:
    """Return 64 bits as the signed number that they are."""
    number = _whole(name, value)
    return number - 2**64 if number >= 2**63 else number
