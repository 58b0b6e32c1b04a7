"""The functions of a row, found by importing every module of this package."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from types import ModuleType

from softgen.spec.functions.base import Function
from softgen.spec.functions.exhibit import Exhibit


@functools.cache
def all_functions() -> tuple[Function, ...]:
    """Return every function, by module and in the module's own order."""
    return tuple(function for module in _modules() for function in getattr(module, "FUNCTIONS", ()))


@functools.cache
def all_exhibits() -> tuple[Exhibit, ...]:
    """Return every function's kernels of the gallery."""
    return tuple(exhibit for module in _modules() for exhibit in getattr(module, "EXHIBITS", ()))


def _modules() -> list[ModuleType]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [importlib.import_module(f"{__name__}.{name}") for name in names]
