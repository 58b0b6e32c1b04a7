"""The strategies, found by importing every module of their packages.

A module that somebody added and that cannot be imported is left out, with a warning, so that all
the others work; softgen's own have to be sound, and raise as any module does.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import warnings

from softgen.errors import InvalidValueError, StrategyError
from softgen.names import unknown
from softgen.strategies.base import Strategy
from softgen.strategies.faults import PACKAGES, SHIPPED, fault


@functools.cache
def _discover() -> tuple[dict[str, type[Strategy]], dict[str, StrategyError]]:
    """Return the strategies by name, and what is wrong with modules that cannot be imported."""
    found: dict[str, type[Strategy]] = {}
    broken: dict[str, StrategyError] = {}
    modules = [
        (package, module.name)
        for package in PACKAGES
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__)
    ]
    for package, name in modules:
        path = f"{package}.{name}"
        try:
            contents = vars(importlib.import_module(path))
        except Exception as error:  # whatever the author of the module got wrong
            if name in SHIPPED:
                raise
            advice = f"`python -c 'import {path}'` shows the traceback; the others work"
            broken[name] = failure = fault(name, error, advice)
            failure.__cause__ = error
            warnings.warn(str(failure), RuntimeWarning, stacklevel=2)
            continue
        for value in contents.values():
            if isinstance(value, type) and issubclass(value, Strategy) and hasattr(value, "name"):
                found[value.name] = value
    return dict(sorted(found.items())), broken


def all_strategies() -> tuple[type[Strategy], ...]:
    """Return every strategy class, by name."""
    return tuple(_discover()[0].values())


def strategy_named(name: str) -> type[Strategy]:
    """Return the strategy class called `name`.

    Raises InvalidValueError that lists the known ones, StrategyError for one that was added and
    cannot be imported.
    """
    found, _ = _discover()
    if name in found:
        return found[name]
    require_sound(name)
    raise InvalidValueError(unknown("strategy", name, found))


def require_sound(name: str) -> None:
    """Raise StrategyError if `name` is a module of a strategy that cannot be imported."""
    _, broken = _discover()
    if name in broken:
        raise broken[name] from broken[name].__cause__
