"""The strategies: one by its name, or all: of every module of their packages, and those added."""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
from pathlib import Path

from softgen import plugins
from softgen.errors import InvalidValueError
from softgen.names import unknown
from softgen.problems.layouts import Columns, Layout
from softgen.strategies.base import Strategy

PACKAGE = "softgen.strategies"
LESSONS = f"{PACKAGE}.lessons"
# The strategies for other axes than the last, which a choice along the last does without.
COLUMNAR = frozenset(("bands", "columns", "spread", "strips"))
# What need not be imported to find strategies: what they consist of, and what chooses among them.
HELPERS = frozenset(
    (
        *("base", "choice", "columnar", "costs", "ladder", "launch", "lessons", "name_errors"),
        *("oneflow", "own", "registers", "registry", "select", "sliced", "spreading"),
        *("variants", "winners"),
    )
)


@functools.cache
def _shipped(package: str, columnar: bool = False) -> tuple[type[Strategy], ...]:
    """Return softgen's own strategies of a package, those of columns or the other ones.

    Without the lessons a first call takes 3 ms less, without those of columns 6.
    """
    import pkgutil

    modules = pkgutil.iter_modules(importlib.import_module(package).__path__)
    names = [module.name for module in modules if module.name not in HELPERS]
    wanted = [name for name in names if (name in COLUMNAR) == columnar]
    return tuple(kind for name in wanted for kind in _strategies_of(f"{package}.{name}"))


def _strategies_of(module: str) -> list[type[Strategy]]:
    """Return the strategies that a module defines."""
    values = vars(importlib.import_module(module)).values()
    kinds = [value for value in values if isinstance(value, type) and issubclass(value, Strategy)]
    return [kind for kind in kinds if kind.__module__ == module and hasattr(kind, "name")]


def tuned_strategies(layout: Layout) -> list[type[Strategy]]:
    """Return the strategy classes whose candidates are timed for rows in `layout`, by name.

    Among them may be some that do not compute rows that lie so.
    """
    found = [*_shipped(PACKAGE), *plugins.added("strategy").values()]
    if isinstance(layout, Columns):
        found += _shipped(PACKAGE, columnar=True)
    return sorted((kind for kind in found if kind.tuned), key=lambda kind: kind.name)


def all_strategies() -> tuple[type[Strategy], ...]:
    """Return every strategy class, by name."""
    found = [*_shipped(PACKAGE), *_shipped(PACKAGE, columnar=True), *_shipped(LESSONS)]
    found += plugins.added("strategy").values()
    return tuple(sorted(found, key=lambda kind: kind.name))


def strategy_named(name: str) -> type[Strategy]:
    """Return the strategy class called `name`.

    Raises InvalidValueError that lists the known ones, PluginError for one of a package that is
    left out.
    """
    found: type[Strategy] | None = shipped_named(name) or plugins.added("strategy").get(name)
    if found is None:
        plugins.require_sound(name)
        raise InvalidValueError(unknown("strategy", name, [kind.name for kind in all_strategies()]))
    return found


@functools.cache
def shipped_named(name: str) -> type[Strategy] | None:
    """Return the strategy of softgen's own called `name`, which is in a module of its name.

    Its own module is all that is imported: all of them take 10 ms.
    """
    for package in (PACKAGE, LESSONS):
        folders = importlib.import_module(package).__path__
        if any(os.path.isfile(os.path.join(folder, f"{name}.py")) for folder in folders):
            kinds = _strategies_of(f"{package}.{name}")
            return next((kind for kind in kinds if kind.name == name), None)
    return None


def added_strategies() -> str:
    """Return a digest of the strategies that do not come with softgen; empty without any.

    A choice is made again where there is another one, or one has changed: it may win. Of softgen's
    own a winner is kept as long as its own code is.
    """
    state, kinds = hashlib.sha256(), plugins.added("strategy").values()
    for kind in kinds:
        state.update(f"{kind.__module__} {kind.name}\0".encode())
        template = (plugins.folder_of(kind) or Path()) / "strategies" / f"{kind.name}.cu.j2"
        for path in (*(plugins.modules_of(kind) or ()), template):
            state.update(path.read_bytes() if path.is_file() else b"")
    return state.hexdigest()[:16] if kinds else ""
