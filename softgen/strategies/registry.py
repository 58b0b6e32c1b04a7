"""The strategies, found by importing every module of this package.

A module that somebody added and that cannot be imported is left out, with a warning, so that all
the others work; softgen's own have to be sound, and raise as any module does.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings

from softgen.errors import InvalidValueError, StrategyError
from softgen.faults import SHIPPED, fault
from softgen.names import unknown
from softgen.strategies.base import Launch, Strategy

__all__ = ["Launch", "Strategy", "all_strategies", "require_sound", "strategy_named"]


def _discover() -> tuple[dict[str, type[Strategy]], dict[str, StrategyError]]:
    """Return the strategies by name, and what is wrong with modules that cannot be imported."""
    found: dict[str, type[Strategy]] = {}
    broken: dict[str, StrategyError] = {}
    for module in pkgutil.iter_modules(__path__):
        path = f"{__name__}.{module.name}"
        try:
            contents = vars(importlib.import_module(path))
        except Exception as error:  # whatever the author of the module got wrong
            if module.name in SHIPPED:
                raise
            advice = f"`python -c 'import {path}'` shows the traceback; the others work"
            broken[module.name] = failure = fault(module.name, error, advice)
            failure.__cause__ = error
            warnings.warn(str(failure), RuntimeWarning, stacklevel=2)
            continue
        for value in contents.values():
            if isinstance(value, type) and issubclass(value, Strategy) and hasattr(value, "name"):
                found[value.name] = value
    return dict(sorted(found.items())), broken


_STRATEGIES, _BROKEN = _discover()


def all_strategies() -> tuple[type[Strategy], ...]:
    """Return every strategy class, by name."""
    return tuple(_STRATEGIES.values())


def strategy_named(name: str) -> type[Strategy]:
    """Return the strategy class called `name`.

    Raises InvalidValueError that lists the known ones, StrategyError for one that was added and
    cannot be imported.
    """
    if name in _STRATEGIES:
        return _STRATEGIES[name]
    require_sound(name)
    raise InvalidValueError(unknown("strategy", name, _STRATEGIES))


def require_sound(name: str) -> None:
    """Raise StrategyError if `name` is a module of a strategy that cannot be imported."""
    if name in _BROKEN:
        raise _BROKEN[name] from _BROKEN[name].__cause__
