"""Columns of rows by their numbers, as calls are given them: the ids of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from softgen.call.library import library_of
from softgen.call.scalars import is_number
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.dtypes import Integer
from softgen.problems.functions.token_log_probs import MOST_IDS


class Ids(NamedTuple):
    """The ids of a call.

    Attributes:
        array: as a kernel takes them: without an axis of one id a row.
        suffix: what ends the name of the function that takes them.
        single: whether there was such an axis.
    """

    array: Any
    suffix: str
    single: bool

    def flat(self, array: Any) -> Any:
        """Return an array of the ids' shape as a kernel takes it."""
        of_one = self.single and tuple(array.shape) == (*self.array.shape, 1)
        return array[..., 0] if of_one else array

    def shaped(self, array: Any) -> Any:
        """Return what a kernel made in the shape of the caller's ids."""
        return array[..., None] if self.single else array

    def of_rows(self, array: Any) -> Any:
        """Return what there is one of per row so that it broadcasts over the ids."""
        several = not self.single and "_k" in self.suffix
        return array[..., None] if several and hasattr(array, "shape") else array


def ids_of(x: Any, ids: Any) -> Ids:
    """Return the ids of x's rows; raise InvalidTypeError or InvalidValueError if they are none."""
    library, array = library_of(x)
    of, given = library_of(ids, "ids")
    if of is not library:
        raise InvalidTypeError("ids must be an array of x's library")
    kind = library.element_type(given)
    if kind not in (Integer.INT32, Integer.INT64):
        raise InvalidTypeError(f"ids must be int32 or int64, got {kind.value}")
    count = count_of(given.shape, array.shape)
    several = given.ndim == array.ndim
    suffix = "" if kind is Integer.INT64 else f"_{kind.short}"
    single = several and count == 1
    return Ids(given[..., 0] if single else given, suffix + (f"_k{count}" * (count > 1)), single)


def count_of(ids: Sequence[int], x: Sequence[int]) -> int:
    """Return how many ids a row has, from their shape and that of x; or raise InvalidValueError."""
    shape, rows = tuple(ids), tuple(x[:-1])
    if not x or shape != (*rows, *shape[len(rows) :]) or len(shape) > len(x):
        raise InvalidValueError(
            f"ids must have the shape of x's rows, {rows}, or one axis more, got {shape}"
        )
    count = shape[-1] if len(shape) == len(x) else 1
    if not 1 <= count <= MOST_IDS:
        raise InvalidValueError(
            f"a row has 1 to {MOST_IDS} ids, got {count}; call for some of them"
        )
    return count


def require_one_a_row(target: Sequence[int], x: Sequence[int]) -> None:
    """Raise InvalidValueError unless targets of that shape belong to the rows of x, of that one."""
    if tuple(target) != tuple(x[:-1]):
        raise InvalidValueError(
            f"target must have the shape of x's rows, {tuple(x[:-1])}, got {tuple(target)}"
        )


def require_columns(ids: Any, cols: int) -> None:
    """Raise InvalidValueError unless all ids are columns, for which the host waits for the GPU."""
    wrong = (ids < 0) | (ids >= cols)
    if bool(wrong.any()):
        raise InvalidValueError(
            f"ids must be from 0 to {cols - 1}, got {int(ids[wrong][0])}; without checked=True it "
            "gives NaN"
        )


def temperature_of(temperature: Any) -> Any:
    """Return a number, or an array of a library's own class."""
    return temperature if is_number(temperature) else library_of(temperature, "temperature")[1]


def scale_of(temperature: Any) -> Any:
    """Return 1 / temperature; raise InvalidValueError for a number that is not above 0."""
    if is_number(temperature):
        if not temperature > 0:
            raise InvalidValueError(f"temperature must be above 0, got {temperature!r}")
        temperature = float(temperature)  # one of NumPy's would be divided in its own type
    return 1 / temperature
