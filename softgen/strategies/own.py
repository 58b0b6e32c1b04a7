"""`softgen.register`: adds functions, hooks and strategies of one's own, after a look at each."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from pathlib import Path
from typing import Any

from softgen import plugins
from softgen.errors import InvalidTypeError, InvalidValueError, PluginError
from softgen.plugins import Added
from softgen.problems.dtypes import DType, compute_type
from softgen.problems.functions import function_named
from softgen.problems.functions.base import Function
from softgen.problems.hooks.base import Hook
from softgen.problems.hooks.known import all_hooks
from softgen.problems.layouts import LABEL
from softgen.problems.operands import Extent, Operand
from softgen.problems.parts import PARTS
from softgen.strategies.base import Strategy
from softgen.strategies.registry import all_strategies
from softgen.strategies.select import NAMED

# The form of a name in names of kernels, by kind, and in words.
_FORMS = {
    "function": (r"[a-z][a-z0-9_]*", "lower-case letters, digits and underscores"),
    "hook": (r"[a-z][a-z0-9]*", "lower-case letters and digits"),
    "strategy": (r"[a-z]+", "lower-case letters"),
}
# What else stands between the columns and a setting in the name of a kernel.
_MODIFIERS = rf"to|fixed|align\d*|{LABEL}"


def register(*added: Function | Hook | type[Strategy], templates: str | os.PathLike[str]) -> None:
    """Add functions, hooks and strategies of one's own to softgen, for this process.

    Generator, tuner, verification and command line find them by their names from then on. A hook
    stands behind softgen's own. A class of the same module and name replaces the one before it.

    Args:
        added: functions, hooks, and classes of strategies.
        templates: the folder of their templates, laid out as softgen's: functions/NAME.cuh.j2,
            hooks/NAME.cuh.j2, strategies/NAME.cu.j2, and parts/NAME/ for the part of a function.

    Raises PluginError, and adds nothing, if one of them cannot be used: its name is taken, or what
    it says of itself is wrong. InvalidValueError if there is no such folder.
    """
    folder = Path(templates).absolute()
    if not folder.is_dir():
        raise InvalidValueError(f"templates must be a folder, and there is no {folder}")
    found: list[Added] = []
    for item in added:
        kind = _kind_of(item)
        try:
            wrong = _objection(kind, item, found)
        except plugins.AUTHORS as error:  # whatever the author's own lines raise
            raise plugins.fault(kind, item, error) from error
        if wrong:
            raise PluginError(wrong)
        found.append(Added(kind, item.name, item, folder))
    plugins.add(found)


def _kind_of(item: object) -> str:
    if isinstance(item, type) and issubclass(item, Strategy):
        return "strategy"
    if isinstance(item, Function):
        return "function"
    if isinstance(item, Hook):
        return "hook"
    raise InvalidTypeError(
        "register() takes functions and hooks, as in register(LogMeanExp(), ...), and classes of "
        f"strategies, got {item!r}"
    )


def _objection(kind: str, item: Function | Hook | type[Strategy], found: list[Added]) -> str:
    """Return why what is to be added cannot be used beside those found; empty if it can."""
    name, (form, words) = item.name, _FORMS[kind]
    if not isinstance(name, str) or not re.fullmatch(form, name):
        return f"{name!r} is no name of a {kind}; give {words}"
    before = [each for each in _known(kind, name) if _said(each) != _said(item)]  # none is replaced
    for other in (*before, *(each.item for each in found if each.kind == kind)):
        if other.name == name:
            both = f"{_said(item)} is called {name!r}, and so is {_said(other)}"
            return f"{both}; give it another name"
    if kind != "function" and (re.fullmatch(_MODIFIERS, name) or name in NAMED):
        return f"{_said(item)} is called {name!r}, which has a meaning; give it another name"
    if isinstance(item, Function):
        return _of_function(item)
    return _of_hook(item) if isinstance(item, Hook) else _of_strategy(item)


def _known(kind: str, name: str) -> list[Any]:
    """Return what there is and may have the same name in names of kernels."""
    if kind == "function":
        return [found] if (found := function_named(name)) is not None else []
    return [*all_hooks(), *all_strategies()]


def _said(item: Function | Hook | type[Strategy]) -> str:
    """Return a class with its module, in words."""
    kind = item if isinstance(item, type) else type(item)
    return f"{kind.__module__}.{kind.__qualname__}"


def _of_function(function: Function) -> str:
    """Look at each property and the operands once: what lists all functions need not fear any."""
    _look_at(function)
    part = function.part
    if part not in PARTS and part.name in {each.name for each in PARTS}:
        return f"the part of {function} is called {part.name!r}, which is softgen's; rename it"
    if not part.has_maximum and part.members:
        return f"the part of {function} has no maximum, so it must be a number: it has members"
    sums = part.members[1:]
    if not part.is_whole and len(part.totals) != max(1, len(sums)):
        needed = ("total", *(f"{member}_total" for member in sums[1:]))
        return (
            f"the part of {function} has members={part.members} and totals={part.totals}; totals "
            f"must name a sum for each member behind the first, as in totals={needed}"
        )
    for kind, out in itertools.product(DType, DType):
        operands = function.operands(kind, out, compute_type(kind, out))
        if not all(isinstance(operand, Operand) for operand in operands) or not any(
            operand.extent is Extent.ELEMENT and not operand.result for operand in operands
        ):
            return f"operands() of {function} must return Operands, one of them element(...)"
    return ""


def _of_hook(hook: Hook) -> str:
    _look_at(hook)
    for kind in DType:
        operands = hook.operands(kind)
        if not all(isinstance(operand, Operand) for operand in operands):
            return f"operands() of {hook} must return Operands"
        if len(hook.example(1, 1)) != len(operands):
            return f"example() of {hook} must return a value for each of its operands"
    return ""


def _of_strategy(kind: type[Strategy]) -> str:
    for field in dataclasses.fields(kind):
        if "short" not in field.metadata:
            return (
                f"field {field.name} of {kind.__name__} is no knob(); write "
                f'{field.name}: int = knob("{field.name[0]}", "its meaning")'
            )
    return ""


def _look_at(item: Function | Hook) -> None:
    """Let each property raise here what it raises."""
    hash(item)
    for attribute in dir(type(item)):
        if isinstance(getattr(type(item), attribute), property):
            getattr(item, attribute)
