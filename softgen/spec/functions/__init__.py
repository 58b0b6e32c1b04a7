"""The functions of a row, found by importing every module of this package."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from softgen.spec.functions.base import Function


@functools.cache
def all_functions() -> tuple[Function, ...]:
    """Return every function, by module and in the module's own order."""
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    found: list[Function] = []
    for name in modules:
        module = importlib.import_module(f"{__name__}.{name}")
        found += getattr(module, "FUNCTIONS", ())
    return tuple(found)
