"""The functions of a row: one by its name, or all, found by importing every module here.

What somebody added is left out, with a warning, where its module is broken, so that all the others
work; softgen's own have to be sound, and raise as any module does.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, cast

from softgen.errors import FunctionError, FunctionWarning
from softgen.faults import AUTHORS
from softgen.names import LIKENESS, unknown
from softgen.spec.functions.base import Function

if TYPE_CHECKING:
    from softgen.spec.functions.exhibit import Exhibit


# The modules that come with softgen. Their errors are softgen's bugs, which nothing rewords.
SHIPPED = frozenset(
    (
        *("base", "exhibit", "faults", "of_logarithms"),
        *("cross_entropy", "cross_entropy_backward", "cross_entropy_probs"),
        *("entropy", "entropy_backward"),
        *("finish", "log_finish", "log_softmax", "logsumexp", "logsumexp_backward"),
        *("merge", "merge_losses", "partial", "partial_target", "ranked_log_probs"),
        *("softmax", "softmax_backward"),
        *("token_log_probs", "token_log_probs_backward"),
        *("sample", "topk_softmax", "topk_softmax_backward"),
    )
)


@functools.cache
def function_named(name: str) -> Function | None:
    """Return the function called `name`, or None.

    It is looked for where its name says: softmax_lse in the module softmax_lse, then in softmax.
    Only where it is in neither are all modules imported, 5 ms that a first call need not spend.

    Raises FunctionError for one that was added and is left out.
    """
    words = name.split("_") if name.isidentifier() else []
    stems = ["_".join(words[:count]) for count in range(len(words), 0, -1)]
    for stem in stems:
        if any(os.path.isfile(os.path.join(folder, f"{stem}.py")) for folder in __path__):
            module = _module(stem) if stem in SHIPPED else _discover()[0].get(stem)
            for function in _functions_of(module):
                if function.name == name:
                    return function
            named = getattr(module, "function_of", None)  # of those that are too many to list
            try:
                if named is not None and (function := named(name)) is not None:
                    return cast("Function", function)
            except AUTHORS as error:
                if stem in SHIPPED:
                    raise
                from softgen.spec.functions.faults import module_fault

                raise module_fault(stem, error) from error
    found = {function.name: function for function in all_functions()}.get(name)
    if found is None:
        for left_out in (_discover()[1].get(stem) for stem in stems):
            if left_out is not None:
                raise left_out from left_out.__cause__
    return found


# In the order in which they stand in a name. Compiled at its first use.
_SUFFIX = r"lse|entropy|i32|k\d{1,2}"
_ORDER = ("l", "e", "i", "k")

# Names that are too many to list.
SUFFIXES = (
    "those of targets or ids also end in _i32, for 32 bits, and ranked_log_probs, token_log_probs "
    "and its gradient in _k2 to _k64, for so many ids a row"
)


def unknown_function(name: str) -> str:
    """Return the message for a name that no function has, with the likely one."""
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


@functools.cache
def all_functions() -> tuple[Function, ...]:
    """Return every function that can be used, by module and in the module's own order."""
    return tuple(function for module in _sound() for function in _functions_of(module))


def _functions_of(module: ModuleType | None) -> tuple[Function, ...]:
    found: tuple[Function, ...] = getattr(module, "FUNCTIONS", ())
    return found


@functools.cache
def all_exhibits() -> tuple[Exhibit, ...]:
    """Return every function's kernels of the gallery."""
    return tuple(exhibit for module in _sound() for exhibit in getattr(module, "EXHIBITS", ()))


def _sound() -> list[ModuleType]:
    modules, _ = _discover()
    return [modules[name] for name in sorted(modules)]


@functools.cache
def _discover() -> tuple[dict[str, ModuleType], dict[str, FunctionError]]:
    """Return the modules that can be used, by name, and what is wrong with those left out."""
    import pkgutil

    names = [module.name for module in pkgutil.iter_modules(__path__)]
    modules = {name: _module(name) for name in names if name in SHIPPED}
    taken = {function.name for module in modules.values() for function in _functions_of(module)}
    broken = {}
    for name in sorted(set(names) - SHIPPED):
        try:
            modules[name] = _added(name, taken)
        except FunctionError as failure:
            broken[name] = failure
            warnings.warn(str(failure), FunctionWarning, stacklevel=2)
        else:
            taken |= {function.name for function in _functions_of(modules[name])}
    return modules, broken


def _added(name: str, taken: set[str]) -> ModuleType:
    """Return an added module; FunctionError says what its author got wrong."""
    from softgen.spec.functions.faults import FOLDER, module_fault, objection

    advice = f"`python -c 'import {__name__}.{name}'` shows the traceback"
    try:
        module = _module(name)
        advice = ""
        wrong = objection(module, taken)
    except AUTHORS as error:
        raise module_fault(name, error, advice) from error
    if wrong:
        raise FunctionError(f"{FOLDER / f'{name}.py'}: {wrong}; the others work")
    return module


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")
