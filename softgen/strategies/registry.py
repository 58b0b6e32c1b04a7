"""The strategies: one by its name, or all, found by importing every module of their packages.

What somebody added is left out, with a warning, where it cannot be imported, takes the name of
another strategy or has a field that is no knob, so that all the others work; softgen's own have to
be sound, and raise as any module does.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import warnings
from collections.abc import Callable

from softgen.errors import InvalidValueError, StrategyError, StrategyWarning
from softgen.faults import AUTHORS
from softgen.names import unknown
from softgen.spec.layouts import Columns, Layout
from softgen.strategies.base import Strategy
from softgen.strategies.faults import COLUMNAR, HELPERS, LESSONS, PACKAGES, SHIPPED, fault

Found = tuple[dict[str, type[Strategy]], dict[str, StrategyError]]


@functools.cache
def _of_rows() -> Found:
    """Return the same as `_discover`, without softgen's own lessons and strategies of columns.

    Without the lessons a first call takes 3 ms less, without those of columns 6.
    """
    return _imported({}, {}, lambda name: name not in LESSONS | COLUMNAR)


@functools.cache
def _without_lessons() -> Found:
    """Return the same as `_discover`, without softgen's own lessons."""
    found, broken = _of_rows()
    return _imported(dict(found), dict(broken), lambda name: name in COLUMNAR)


@functools.cache
def _discover() -> Found:
    """Return the strategies by name, and what is wrong with those that are left out."""
    found, broken = _without_lessons()
    found, broken = _imported(dict(found), dict(broken), lambda name: name in LESSONS)
    return dict(sorted(found.items())), broken


def _imported(
    found: dict[str, type[Strategy]],
    broken: dict[str, StrategyError],
    wanted: Callable[[str], bool],
) -> Found:
    """Add the strategies of the modules whose names are wanted to those found."""
    import pkgutil

    modules = [
        (package, module.name)
        for package in PACKAGES
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__)
        if module.name not in HELPERS and wanted(module.name)
    ]
    modules.sort(key=lambda each: each[1] not in SHIPPED)  # theirs are the names
    for package, name in modules:
        path = f"{package}.{name}"
        try:
            contents = vars(importlib.import_module(path))
        except AUTHORS as error:  # whatever the author of the module got wrong
            if name in SHIPPED:
                raise
            advice = f"`python -c 'import {path}'` shows the traceback; the others work"
            broken[name] = failure = fault(name, error, advice)
            failure.__cause__ = error
            warnings.warn(str(failure), StrategyWarning, stacklevel=2)
            continue
        for value in list(contents.values()):
            if not (isinstance(value, type) and issubclass(value, Strategy)):
                continue
            if not hasattr(value, "name") or found.get(value.name) is value:
                continue
            if objection := _objection(value, found):
                failure = StrategyError(f"{contents['__file__']}: {objection}; the others work")
                if name not in broken:  # a class that is derived has the same fault
                    warnings.warn(str(failure), StrategyWarning, stacklevel=2)
                broken.setdefault(name, failure)
                broken.setdefault(value.name, failure)
                continue
            found[value.name] = value
    return found, broken


def _objection(kind: type[Strategy], found: dict[str, type[Strategy]]) -> str:
    """Return why a class cannot be one of the strategies beside those found, if it cannot."""
    other = found.get(kind.name) or _shipped(kind.name)
    if other not in (None, kind):
        return (
            f"{kind.__name__} is called {kind.name!r}, and so is {other.__module__}."
            f"{other.__name__}; give it another name"
        )
    for field in dataclasses.fields(kind):
        if "short" not in field.metadata:
            return (
                f"field {field.name} of {kind.__name__} is no knob(); write "
                f'{field.name}: int = knob("{field.name[0]}", "its meaning")'
            )
    return ""


def tuned_strategies(layout: Layout) -> list[type[Strategy]]:
    """Return the strategy classes whose candidates are timed for rows in `layout`, by name.

    Among them may be some that do not compute rows that lie so.
    """
    found, _ = _without_lessons() if isinstance(layout, Columns) else _of_rows()
    return sorted((kind for kind in found.values() if kind.tuned), key=lambda kind: kind.name)


def all_strategies() -> tuple[type[Strategy], ...]:
    """Return every strategy class, by name."""
    return tuple(_discover()[0].values())


def strategy_named(name: str) -> type[Strategy]:
    """Return the strategy class called `name`.

    Raises InvalidValueError that lists the known ones, StrategyError for one that was added and
    is left out.
    """
    shipped = _shipped(name)
    if shipped is not None:
        return shipped
    found, _ = _discover()
    if name in found:
        return found[name]
    require_sound(name)
    raise InvalidValueError(unknown("strategy", name, found))


@functools.cache
def _shipped(name: str) -> type[Strategy] | None:
    """Return the strategy called `name` if it comes with softgen, in a module of its name.

    Its own module is all that is imported: all of them take 10 ms.
    """
    if name not in SHIPPED:
        return None
    for package in PACKAGES:
        folders = importlib.import_module(package).__path__
        if any(os.path.isfile(os.path.join(folder, f"{name}.py")) for folder in folders):
            values = vars(importlib.import_module(f"{package}.{name}")).values()
            kinds = (v for v in values if isinstance(v, type) and issubclass(v, Strategy))
            return next((kind for kind in kinds if getattr(kind, "name", "") == name), None)
    return None


def require_sound(name: str) -> None:
    """Raise StrategyError if `name` is a strategy, or a module, that is left out."""
    found, broken = _discover()
    if name in broken and name not in found:
        raise broken[name] from broken[name].__cause__
