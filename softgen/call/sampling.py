"""What servers ask of logits: a column of each row, drawn by its probability."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softgen.call.library import Library, library_of
from softgen.call.options import Options, call
from softgen.call.scalars import bits, finite, is_number
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.spec.dtypes import DType, ElementType, Integer, compute_type
from softgen.spec.functions.sample import Sample

if TYPE_CHECKING:
    from typing_extensions import Unpack


class SampleOptions(Options, total=False):
    """What `sample` takes by name beside its own arguments; docs/hooks.md says what hooks do."""

    scale: Any
    softcap: float | None
    bias: Any
    mask: Any
    lengths: Any
    causal: bool
    causal_offset: int | None


def sample(
    x: Any,
    *,
    temperature: Any = 1.0,
    seed: Any,
    offset: int = 0,
    **options: Unpack[SampleOptions],
) -> tuple[Any, Any]:
    """Return a column of each row, drawn by softmax(x / temperature), and log of its probability.

    x is read once. The noise is that of a counter: a call with the same arguments draws the same.

    Args:
        x: as in `softmax`; rows are those of its last axis.
        temperature: 0 or more: a number, or an array of floats, one a row. 0 takes the largest
            element, of equal ones the lower column.
        seed: 64 bits: an integer, for noise by seed, row, column and offset; or an array of int64,
            one a row, for noise by the row's seed, column and offset: a row draws the same in any
            batch.
        offset: 64 bits. Another offset makes other noise: count the calls of one seed with it.
        options: tune, variant, batch_invariant and pdl, as in `softmax`, and of its hooks, which
            come before the temperature, scale, softcap, bias, mask, lengths, causal and
            causal_offset.

    Returns:
        The columns, int64, and the logarithms of their softmax(x / temperature), where the
        temperature is 0 of their softmax(x): float32 (float64 if x is). Arrays of x's library, of
        x's shape without the last axis.

    A row with NaN or +inf, of nothing but -inf, or with a temperature that is below 0 or no finite
    number, gives column 0 and NaN. Raises what `softmax` raises.
    """
    library, array = library_of(x)
    rows, kind = tuple(array.shape[:-1]), compute_type(library.dtype(array))
    function = Sample(rows=not is_number(temperature), seeds=not _is_integer(seed))
    others = (
        _of_rows(library, array, "temperature", temperature, kind, rows)
        if function.rows
        else temperature_of(temperature),
        _of_rows(library, array, "seed", seed, Integer.INT64, rows)
        if function.seeds
        else bits("seed", seed),
        bits("offset", offset),
    )
    log_probs, ids = call(function.name, x, options, SampleOptions, others=others)
    return ids, log_probs


def _is_integer(value: Any) -> bool:
    """Whether it is one number, or what is no array: as a number it gets its error."""
    return is_number(value) or not hasattr(value, "shape")


def temperature_of(value: Any) -> float:
    """Return the argument, a number that is a temperature."""
    number = finite("temperature", value)
    if number < 0:
        raise InvalidValueError(f"temperature must be 0 or more, got {value!r}")
    return number


def _of_rows(
    library: Library, x: Any, name: str, given: Any, kind: ElementType, rows: tuple[int, ...]
) -> Any:
    """Return an argument of one number a row as a kernel takes it, converted to its type."""
    if not hasattr(given, "shape"):
        raise InvalidTypeError(f"{name} must be a number, or an array of one a row, got {given!r}")
    of, array = library_of(given)
    if of is not library or library.device(array) != library.device(x):
        raise InvalidValueError(f"{name} must be of x's library and on its device")
    found = library.element_type(array)
    floats = isinstance(kind, DType)
    if not isinstance(found, DType if floats else Integer) or found is Integer.BOOL:
        wanted = "floats" if floats else "integers"
        raise InvalidTypeError(f"{name} must be of {wanted}, got {found.value}")
    if tuple(array.shape) != rows:
        raise InvalidValueError(
            f"{name} must have a number a row, shape {rows}, got {tuple(array.shape)}"
        )
    if found is kind:
        return library.contiguous(array)
    converted = library.empty(rows, kind, library.device(array))
    library.assign(converted, array)
    return converted
