"""All hooks there are, by their names; loaded by calls and kernels that have some."""

from __future__ import annotations

from collections.abc import Iterable

from softgen import plugins
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.names import unknown
from softgen.problems.dtypes import DType, Integer
from softgen.problems.hooks.arrays import Bias, Mask
from softgen.problems.hooks.base import Hook
from softgen.problems.hooks.dropout import Dropout
from softgen.problems.hooks.ends import Causal, Lengths
from softgen.problems.hooks.rows import Sink, ZeroRows
from softgen.problems.hooks.scale import OutScale, RowOutScale, RowScale, Scale
from softgen.problems.hooks.softcap import Softcap

SCALE = Scale()

# In the order in which they are applied.
HOOKS: tuple[Hook, ...] = (
    *(SCALE, Scale("any"), RowScale()),
    Softcap(),
    *(Bias(packs, dtype) for dtype in DType for packs in (True, False)),
    *(Mask(), Mask(packs=False)),
    *(Lengths(Integer.INT32), Lengths()),
    Causal(),
    *(Sink(dtype) for dtype in DType),
    ZeroRows(),
    *(OutScale(), RowOutScale()),
    Dropout(),
)

_BY_NAME = {hook.name: hook for hook in HOOKS}


def all_hooks() -> tuple[Hook, ...]:
    """Return every hook: softgen's own, then those added, by name, which are applied after them."""
    return (*HOOKS, *plugins.added("hook").values())


# The arguments of calls, and the hook that each is where nothing says of what type or sign it is.
ARGUMENTS = {
    **{name: name for name in ("scale", "softcap")},
    **{"bias": "biasf32", "mask": "mask", "lengths": "lengthsi64", "causal": "causal"},
    **{"sink": "sinkf32", "empty_rows": "zeroempty", "out_scale": "outscale"},
    "dropout": "dropout",
}
_PLACES = {hook: i for i, hook in enumerate(HOOKS)}


def hook_named(value: Hook | str) -> Hook:
    """Return the hook called `value`, as in names of kernels or as an argument of a call.

    InvalidValueError names the choices.
    """
    if isinstance(value, Hook):
        return value
    if not isinstance(value, str):
        raise InvalidTypeError(f"a hook is given by its name, got {value!r}")
    name = ARGUMENTS.get(value, value)
    if "=" in name:
        raise InvalidValueError(
            f"{value!r} gives a hook a value, which is an argument of a launch; the hook alone is "
            f"{name.partition('=')[0]!r}"
        )
    found: Hook | None = _BY_NAME.get(name) or plugins.added("hook").get(name)
    if found is None:
        plugins.require_sound(name)
        more = "; and one of them by its type, as scalerow, biasbf16 or maskany (docs/hooks.md)"
        raise InvalidValueError(unknown("hook", value, [*ARGUMENTS, *plugins.added("hook")], more))
    return found


def in_order(hooks: Iterable[Hook | str]) -> tuple[Hook, ...]:
    """Return hooks in the order in which they are applied; InvalidValueError for two of a kind."""
    if isinstance(hooks, str):
        raise InvalidTypeError(f"hooks are a list of names, got {hooks!r}; give [{hooks!r}]")
    chosen = sorted(map(hook_named, hooks), key=_place)
    kinds = [hook.kind for hook in chosen]
    if len(set(kinds)) < len(kinds):
        raise InvalidValueError(f"one hook of a kind at most, got {', '.join(map(str, chosen))}")
    return tuple(chosen)


def _place(hook: Hook) -> tuple[int, str]:
    """Return what hooks are sorted by: those added stand behind softgen's own, by name."""
    return _PLACES.get(hook, len(HOOKS)), hook.name
