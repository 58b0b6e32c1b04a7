"""The options that calls share, declared once, and the way of a call that has options to its run.

A call without options goes past this: its function asks `calls_of` for its code right away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from softgen.call.axes import axis_of
from softgen.call.dispatch import calls_of
from softgen.errors import InvalidTypeError
from softgen.names import unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from softgen.strategies.select import Choice


class Options(TypedDict, total=False):
    """What each call takes by name.

    Attributes:
        tune: "on" times the candidates at the first call for a shape for which no winner is stored
            or comes with softgen, stores the winner on disk and is fast ever after; "cached" uses
            such a winner, else that of a similar shape or device, else the best guess; "off" the
            best guess; "force" times again. By default SOFTGEN_TUNE, else "on".
        variant: skip the choice: a strategy's name ("warp") for its best guess, untuned, "oneflow",
            a step of the ladder ("naive"), a setting ("online_p4_u2_b128"), a variant's name, a
            Strategy or a Variant.
        batch_invariant: if True a row's result has the same bits in any batch and anywhere in
            memory, on any GPU of one model: nothing is tuned, and rows that start off the boundary
            their width gives them cost a copy. By default SOFTGEN_BATCH_INVARIANT, else False.
        pdl: whether the kernel may be launched while the one before it on the stream still runs,
            where the GPU can (compute capability 9.0 and later); it waits for that one's results in
            any case. False, or SOFTGEN_PDL=0 in the environment, launches it the plain way.
    """

    tune: str | None
    variant: Choice
    batch_invariant: bool | None
    pdl: bool


class AxisOptions(Options, total=False):
    """What each call along any axis takes by name.

    Attributes:
        dim: PyTorch's name of `axis`; give one of them.
    """

    dim: int | tuple[int, ...] | None


class HookOptions(TypedDict, total=False):
    """The arguments of a call that are hooks; docs/hooks.md says what they do.

    Attributes:
        scale: a finite number, or an array of the type of the arithmetic, broadcast over the rows.
        softcap: a finite number above 0.
        bias: an array of floats, broadcast over x.
        mask: an array of booleans, broadcast over x.
        lengths: an array of int32 or int64, broadcast over the rows.
        causal: whether a row ends behind its position.
        causal_offset: position p sees columns 0 to p + causal_offset; by default columns - queries.
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


class HookedOptions(Options, HookOptions, total=False):
    """What calls along the last axis take by name that have hooks."""


class HookedAxisOptions(AxisOptions, HookOptions, total=False):
    """What calls along any axis take by name that have hooks."""


def call(
    function: str,
    x: Any,
    options: Mapping[str, Any],
    takes: type,
    *,
    axis: Any = -1,
    dtype: object = None,
    out: Any = None,
    others: tuple[Any, ...] = (),
) -> Any:
    """Return the result of a call with options.

    Args:
        function: as `calls_of` takes it.
        x: as in `api.softmax`.
        options: by name, as the caller gave them.
        takes: which of them there are: one of the classes above.
        axis: as in `api.softmax`.
        dtype: as in `api.softmax`.
        out: as in `api.softmax`.
        others: the function's inputs beside x.

    Raises InvalidTypeError, as Python a TypeError, for a name that is no option.
    """
    if not options:
        return calls_of(function)[type(x)](x, out, axis, dtype, None, None, None, others)
    asked = checked(options, takes)
    axis = axis_of(axis, asked.pop("dim", None))
    tune, variant = asked.pop("tune", None), asked.pop("variant", None)
    invariant, pdl = asked.pop("batch_invariant", None), asked.pop("pdl", True)
    names: tuple[str, ...] = ()
    if asked:
        from softgen.call.hooks import hooked  # 6 ms of a first call, for those who have some

        names, values = hooked(function, x, axis, dtype, asked)
        others = (*others, *values)
    calls = calls_of(function, pdl, names)
    return calls[type(x)](x, out, axis, dtype, tune, variant, invariant, others)


def checked(options: Mapping[str, Any], takes: type) -> dict[str, Any]:
    """Return a copy of options; raise InvalidTypeError for a name that `takes` does not have."""
    known = takes.__annotations__
    for name in options:
        if name not in known:
            raise InvalidTypeError(unknown("argument", name, list(known)))
    return dict(options)
