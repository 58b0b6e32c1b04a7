"""The functions of a row: one by its name, or all: of every module here, and those added."""

from __future__ import annotations

import functools
import importlib
import os
import re
from types import ModuleType
from typing import TYPE_CHECKING, cast

from softgen import plugins
from softgen.names import LIKENESS, unknown
from softgen.problems.functions.base import Function

if TYPE_CHECKING:
    from softgen.problems.functions.exhibit import Exhibit


def function_named(name: str) -> Function | None:
    """Return the function called `name`, or None.

    Raises PluginError for one of a package that is left out.
    """
    found = _shipped_named(name) or plugins.added("function").get(name)
    if found is None:
        plugins.require_sound(name)
    return cast("Function | None", found)


@functools.cache
def _shipped_named(name: str) -> Function | None:
    """Return the function of softgen's own called `name`, or None.

    It is looked for where its name says: softmax_lse in the module softmax_lse, then in softmax.
    Only where it is in neither are all modules imported, 5 ms that a first call need not spend.
    """
    words = name.split("_") if name.isidentifier() else []
    for stem in ("_".join(words[:count]) for count in range(len(words), 0, -1)):
        if any(os.path.isfile(os.path.join(folder, f"{stem}.py")) for folder in __path__):
            module = _module(stem)
            for function in _functions_of(module):
                if function.name == name:
                    return function
            named = getattr(module, "function_of", None)  # of those that are too many to list
            if named is not None and (function := named(name)) is not None:
                return cast("Function", function)
    return {function.name: function for function in _shipped()}.get(name)


# In the order in which they stand in a name. Compiled at its first use.
_SUFFIX = r"lse|entropy|i32|k\d{1,2}"
_ORDER = ("l", "e", "i", "k")

SUFFIXES = (
    "those of targets or ids also end in _i32, for 32 bits, and token_log_probs and its gradient "
    "in _k2 to _k64, for so many ids a row"
)


def rules() -> dict[str, str]:
    """Return what names a module has that are too many to list, by the stem of all of them."""
    found = {each.__name__.rpartition(".")[2]: getattr(each, "NAMES", "") for each in _modules()}
    return {stem: rule for stem, rule in found.items() if rule}


def unknown_function(name: str) -> str:
    """Return the message for a name that no function has, with the likely one."""
    near = {stem: rule for stem, rule in rules().items() if f"{name}_".startswith(f"{stem}_")}
    if near:
        return f"unknown function {name!r}; such names are {near[max(near, key=len)]}"
    known = [function.name for function in all_functions() if not function.twin]
    return unknown("function", name, known, f"; {SUFFIXES}", meant=_meant(name, known))


def _meant(name: str, known: list[str]) -> str:
    """Return the function whose suffixes stand in another order, or whose stem has a slip."""
    words = name.split("_")
    count = len(words)
    while count > 1 and re.fullmatch(_SUFFIX, words[count - 1]):
        count -= 1
    suffixes = sorted(words[count:], key=lambda word: _ORDER.index(word[0]))
    stem = "_".join(words[:count])
    if not suffixes:
        return ""
    import difflib  # milliseconds, which a process that fails anyway may spend

    near = difflib.get_close_matches(stem[:80], known, n=1, cutoff=LIKENESS)
    for likely in (stem, *near):
        found = "_".join([likely, *suffixes])
        if function_named(found) is not None:
            return found
    return ""


def all_functions() -> tuple[Function, ...]:
    """Return every function: softgen's own by module, in the module's order, then those added."""
    return (*_shipped(), *plugins.added("function").values())


@functools.cache
def all_exhibits() -> tuple[Exhibit, ...]:
    """Return every function's kernels of the gallery."""
    return tuple(e for module in _modules() for e in getattr(module, "EXHIBITS", ()))


@functools.cache
def _shipped() -> tuple[Function, ...]:
    return tuple(function for module in _modules() for function in _functions_of(module))


def _functions_of(module: ModuleType) -> tuple[Function, ...]:
    found: tuple[Function, ...] = getattr(module, "FUNCTIONS", ())
    return found


def _modules() -> list[ModuleType]:
    import pkgutil

    return [_module(name) for name in sorted(each.name for each in pkgutil.iter_modules(__path__))]


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")
