"""The functions of a row: one by its name, or all, found by importing every module here."""

from __future__ import annotations

import functools
import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING, cast

from softgen.spec.functions.base import Function

if TYPE_CHECKING:
    from softgen.spec.functions.exhibit import Exhibit


@functools.cache
def function_named(name: str) -> Function | None:
    """Return the function called `name`, or None.

    It is looked for where its name says: softmax_lse in the module softmax_lse, then in softmax.
    Only where it is in neither are all modules imported, 5 ms that a first call need not spend.
    """
    words = name.split("_") if name.isidentifier() else []
    for count in range(len(words), 0, -1):
        stem = "_".join(words[:count])
        if any(os.path.isfile(os.path.join(folder, f"{stem}.py")) for folder in __path__):
            module = importlib.import_module(f"{__name__}.{stem}")
            for function in _functions_of(module):
                if function.name == name:
                    return function
            named = getattr(module, "function_of", None)  # of those that are too many to list
            if named is not None and (function := named(name)) is not None:
                return cast("Function", function)
    return {function.name: function for function in all_functions()}.get(name)


@functools.cache
def all_functions() -> tuple[Function, ...]:
    """Return every function, by module and in the module's own order."""
    return tuple(function for module in _modules() for function in _functions_of(module))


def _functions_of(module: ModuleType) -> tuple[Function, ...]:
    found: tuple[Function, ...] = getattr(module, "FUNCTIONS", ())
    return found


@functools.cache
def all_exhibits() -> tuple[Exhibit, ...]:
    """Return every function's kernels of the gallery."""
    return tuple(exhibit for module in _modules() for exhibit in getattr(module, "EXHIBITS", ()))


def _modules() -> list[ModuleType]:
    import pkgutil

    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [importlib.import_module(f"{__name__}.{name}") for name in names]
