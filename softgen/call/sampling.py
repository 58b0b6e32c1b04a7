"""What servers ask of logits: a column of each row, drawn by its probability."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softgen.call.library import Library, library_of
from softgen.call.options import Options, call
from softgen.call.scalars import bits, finite, is_number, whole
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.dtypes import DType, ElementType, Integer, compute_type
from softgen.problems.functions.sample import CAPACITIES, Sample

if TYPE_CHECKING:
    from typing_extensions import Unpack


class HookedSampleOptions(Options, total=False):
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
    top_k: Any = None,
    top_p: Any = None,
    min_p: Any = None,
    seed: Any,
    offset: int = 0,
    **options: Unpack[HookedSampleOptions],
) -> tuple[Any, Any]:
    """Return a column of each row, drawn by softmax(x / temperature), and log of its probability.

    The noise is that of a counter: a call with the same arguments draws the same. Without filters x
    is read once. Filters come after the temperature, in the order min_p, top_k, top_p: each keeps
    the largest elements, of equal ones those of lower columns, and at least one. Each is a number
    or an array of one a row; without one, nothing is left out.

    Args:
        x: as in `softmax`; rows are those of its last axis.
        temperature: 0 or more: a number, or an array of floats, one a row. 0 takes the largest
            element, of equal ones the lower column.
        top_k: how many are kept, integers; 0 for all.
        top_p: from 0 to 1: the fewest are kept that have this share of what is left. 1 for all.
        min_p: from 0 to 1: those are kept that have this share of the largest. 0 for all.
        seed: 64 bits: an integer, for noise by seed, row, column and offset; or an array of int64,
            one a row, for noise by the row's seed, column and offset: a row draws the same in any
            batch.
        offset: 64 bits. Another offset makes other noise: count the calls of one seed with it.
        options: tune, variant, batch_invariant and pdl, as in `softmax`, and of its hooks, which
            come before the temperature, scale, softcap, bias, mask, lengths, causal and
            causal_offset.

    Returns:
        The columns, int64, and the logarithms of their softmax(x / temperature) before filters,
        where the temperature is 0 of their softmax(x): float32 (float64 if x is). Arrays of x's
        library, of x's shape without the last axis.

    A row with NaN or +inf, of nothing but -inf, or with a temperature that is below 0 or no finite
    number, gives column 0 and NaN. Raises what `softmax` raises.
    """
    library, array = library_of(x)
    filters = filters_of(top_k, top_p, min_p, array.shape[-1] if array.ndim else 1)
    rows = not all(map(is_number, (temperature, *filters.values())))
    most = 0 if options.keys() - Options.__annotations__ else _capacity(top_k, array)
    seeds = not _is_integer(seed)
    function = Sample(bool(filters) and not most, rows, seeds, most if filters else 0)

    def taken(name: str, given: Any, of_rows: bool) -> Any:
        return _of_rows(library, array, name, given) if of_rows else number_of(name, given)

    others = (
        *(taken("temperature", temperature, rows), taken("seed", seed, function.seeds)),
        *(bits("offset", offset), *(taken(*each, rows) for each in filters.items())),
    )
    log_probs, ids = call(function.name, x, options, HookedSampleOptions, others=others)
    return ids, log_probs


def _capacity(top_k: Any, x: Any) -> int:
    """Return how many elements of a row are chosen before one is drawn of them; 0 for any number.

    Without hooks, by kernels that read the row once.
    """
    if not is_number(top_k) or not top_k > 0:
        return 0
    some = [each for each in CAPACITIES if top_k <= each <= (x.shape[-1] if x.ndim else 1)]
    return min(some, default=0)


def filters_of(top_k: Any, top_p: Any, min_p: Any, cols: int) -> dict[str, Any]:
    """Return the filters of a call by name, all three, or none where they leave nothing out."""
    given = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    all_kept: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    found = {name: all_kept[name] if v is None else v for name, v in given.items()}
    for name, v in found.items():
        if is_number(v):
            found[name] = number_of(name, v)
    if is_number(found["top_k"]) and found["top_k"] >= cols:
        found["top_k"] = 0
    some = any(not is_number(v) or v != all_kept[name] for name, v in found.items())
    return found if some else {}


def number_of(name: str, value: Any) -> Any:
    """Return an argument that is one number, as a kernel takes it."""
    if name == "seed":
        return bits(name, value)
    if name == "top_k":
        count = whole(name, value)
        if count < 0:
            raise InvalidValueError(f"top_k must be at least 1, or 0 for all, got {value!r}")
        return count
    number = finite(name, value)
    if name == "temperature" and number < 0:
        raise InvalidValueError(f"temperature must be 0 or more, got {value!r}")
    if name != "temperature" and not 0 <= number <= 1:
        raise InvalidValueError(f"{name} must be from 0 to 1, got {value!r}")
    return number


def _is_integer(value: Any) -> bool:
    """Whether it is one number, or what is no array: as a number it gets its error."""
    return is_number(value) or not hasattr(value, "shape")


def _of_rows(library: Library, x: Any, name: str, given: Any) -> Any:
    """Return an argument as a kernel takes one of a number a row, of its type."""
    rows, device = tuple(x.shape[:-1]), library.device(x)
    of_integers = name in ("seed", "top_k")
    kind: ElementType = Integer.INT64 if of_integers else compute_type(library.dtype(x))
    if is_number(given):
        same = library.empty(rows, kind, device)
        library.fill(same, number_of(name, given))
        return same
    if not hasattr(given, "shape"):
        raise InvalidTypeError(f"{name} must be a number, or an array of one a row, got {given!r}")
    of, array = library_of(given, name)
    if of is not library or library.device(array) != device:
        raise InvalidValueError(f"{name} must be of x's library and on its device")
    found = library.element_type(array)
    if not isinstance(found, Integer if of_integers else DType) or found is Integer.BOOL:
        wanted = "integers" if of_integers else "floats"
        raise InvalidTypeError(f"{name} must be of {wanted}, got {found.value}")
    if tuple(array.shape) != rows:
        raise InvalidValueError(
            f"{name} must have a number a row, shape {rows}, got {tuple(array.shape)}"
        )
    if found is kind:
        return library.contiguous(array)
    converted = library.empty(rows, kind, device)
    library.assign(converted, array)
    return converted
