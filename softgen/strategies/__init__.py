"""The strategies, found by importing every module of this package."""

from __future__ import annotations

import importlib
import pkgutil

from softgen.errors import InvalidValueError
from softgen.strategies.base import Launch, Strategy

__all__ = ["Launch", "Strategy", "all_strategies", "strategy_named"]


def _discover() -> dict[str, type[Strategy]]:
    found: dict[str, type[Strategy]] = {}
    for module in pkgutil.iter_modules(__path__):
        contents = vars(importlib.import_module(f"{__name__}.{module.name}"))
        for value in contents.values():
            if isinstance(value, type) and issubclass(value, Strategy) and hasattr(value, "name"):
                found[value.name] = value
    return dict(sorted(found.items()))


_STRATEGIES = _discover()


def all_strategies() -> tuple[type[Strategy], ...]:
    """Return every strategy class, by name."""
    return tuple(_STRATEGIES.values())


def strategy_named(name: str) -> type[Strategy]:
    """Return the strategy class called `name`; InvalidValueError lists the known ones."""
    try:
        return _STRATEGIES[name]
    except KeyError:
        raise InvalidValueError(
            f"unknown strategy {name!r}; softgen knows: {', '.join(_STRATEGIES)}"
        ) from None
