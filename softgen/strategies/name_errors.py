"""Which part of a full name is not known, for a message to whoever misspelt it."""

from __future__ import annotations

import re

from softgen.errors import InvalidValueError
from softgen.names import likely, unknown
from softgen.plugins import require_sound
from softgen.problems.dtypes import DType, Float8
from softgen.problems.functions import all_functions, function_named, unknown_function
from softgen.problems.hooks.known import all_hooks
from softgen.problems.layouts import LABEL
from softgen.strategies.registry import all_strategies
from softgen.strategies.variants import parse_label


def wrong_part(name: str) -> str:
    """Return what is wrong with `name`, which no variant has; empty where no part explains it.

    A full name is FUNCTION_DTYPE[_to_DTYPE]_COLS[_inN][_alignN][_fixed][_HOOK...]_STRATEGY_KNOBS,
    and the first part that is not known counts.

    Raises PluginError for a strategy of a package that is left out.
    """
    functions = [function.name for function in all_functions()]
    types = [dtype.short for dtype in DType]
    results = [*types, *(dtype.short for dtype in Float8)]
    parts = name.split("_")
    of_type = next((i for i, part in enumerate(parts) if part in types), None)
    if of_type is None:  # the longest function: softmax_lse begins with softmax
        begun = [each for each in functions if name.startswith(f"{each}_")]
        function = max(begun, key=len, default=parts[0])
        of_type = function.count("_") + 1
    function = "_".join(parts[:of_type])
    if function_named(function) is None:
        return unknown_function(function)
    rest = parts[of_type:]
    wanted = [rest[:1], rest[2:3]] if rest[1:2] == ["to"] else [rest[:1]]
    for given, known in zip(wanted, (types, results), strict=False):
        if given and given[0] not in known:
            return unknown("dtype", given[0], known)
    cols, *setting = rest[2 * len(wanted) - 1 :] or [""]
    if not (cols.isascii() and cols.isdigit()):
        return f"{cols!r} stands where the number of columns should" if cols else "it ends too soon"
    return _wrong_setting(setting)


def _wrong_setting(parts: list[str]) -> str:
    """Return what is wrong in the parts behind the columns."""
    modifiers = ["align", "fixed", *(hook.name for hook in all_hooks())]
    strategies = [kind.name for kind in all_strategies()]
    for i, part in enumerate(parts):
        if part in modifiers or re.fullmatch(rf"align\d+|{LABEL}", part):
            continue
        if part in strategies:
            try:
                parse_label("_".join(parts[i:]))
            except InvalidValueError as error:
                return str(error)
            ordered = sorted(parts[:i], key=_place)
            if ordered == parts[:i]:
                return ""
            return f"{'_'.join(parts[:i])!r} must be in this order: {'_'.join(ordered)!r}"
        meant = likely(part, [*modifiers, *strategies])
        if any(later in strategies for later in parts[i + 1 :]) or (
            meant and meant == likely(part, modifiers)
        ):
            return unknown("hook or modifier", part, modifiers)
        require_sound(part)
        return unknown("strategy", part, strategies)
    return "it names no strategy"


def _place(part: str) -> int:
    """Return where a part behind the columns stands: the layout, alignment, order, then hooks."""
    names = [hook.name for hook in all_hooks()]
    if part in names:
        return 3 + names.index(part)
    return 0 if re.fullmatch(LABEL, part) else 2 if part == "fixed" else 1
