"""What was added to softgen: functions, hooks and strategies of one's own, and their templates.

`softgen.register` adds them, in a program, or in a module that an installed package names as an
entry point of the group "softgen". A module that fails is left out, with a warning that names it,
so that all others work. softgen's own have to be sound, and raise as any module does.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from softgen.errors import FunctionError, PluginError, PluginWarning, StrategyError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "softgen"

# What an author's line may raise that is no Exception and must not end the program. Ctrl-C must.
AUTHORS = (Exception, SystemExit)

_ERRORS = {"function": FunctionError, "strategy": StrategyError}


class Added(NamedTuple):
    """A function, a hook or a strategy of one's own.

    Attributes:
        kind: "function", "hook" or "strategy".
        name: as in names of kernels.
        item: a Function, a Hook, or a class of Strategy.
        templates: the folder of its templates, laid out as softgen's is.
    """

    kind: str
    name: str
    item: Any
    templates: Path


class Plugin(NamedTuple):
    """An entry point of an installed package.

    Attributes:
        name: of the entry point.
        package: name and version.
        added: what its module registered.
        error: why it is left out; None where it is not.
    """

    name: str
    package: str
    added: tuple[Added, ...]
    error: PluginError | None


_added: list[Added] = []
_plugins: list[Plugin] | None = None
_lock = threading.RLock()  # a module that is loaded may look for functions itself


def add(found: list[Added]) -> None:
    """Add what was checked, in place of what the same modules registered by the same names."""
    again = {(each.kind, each.name) for each in found}
    with _lock:
        _added[:] = [each for each in _added if (each.kind, each.name) not in again] + found


def added(kind: str) -> dict[str, Any]:
    """Return the functions, hooks or strategies of one's own, by name."""
    plugins()
    return {each.name: each.item for each in sorted(_added) if each.kind == kind}


def template_folders() -> tuple[Path, ...]:
    """Return the folders of templates of one's own."""
    return tuple(dict.fromkeys(each.templates for each in _added))


def folder_of(item: Any) -> Path | None:
    """Return the folder of the templates of what was registered; None if it was not."""
    return next((each.templates for each in _added if each.item in (item, type(item))), None)


def plugins() -> list[Plugin]:
    """Return the entry points of packages, whose modules are imported at the first call."""
    global _plugins
    with _lock:
        if _plugins is None:
            _plugins = []
            if _some_package_names_one():
                from importlib.metadata import entry_points

                points = entry_points(group=GROUP)
                for point in sorted(points, key=lambda point: (point.name, point.value)):
                    _plugins.append(_loaded(point))
    return _plugins


def require_sound(name: str) -> None:
    """Raise the error of the entry point called `name`, if it was left out."""
    for plugin in plugins():
        if plugin.name == name and plugin.error is not None:
            raise plugin.error from plugin.error.__cause__


def _some_package_names_one() -> bool:
    """Whether the file of any installed package has the group.

    A look at the files takes 1.5 ms of a first call, `importlib.metadata` 15 and its import 40.
    """
    group = f"[{GROUP}]".encode()
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:  # it is not there, or a file
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                try:
                    with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                        if group in file.read():
                            return True
                except OSError:  # it has none
                    continue
    return False


def _loaded(point: EntryPoint) -> Plugin:
    package = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
    before = list(_added)
    try:
        importlib.import_module(point.module)
    except AUTHORS as cause:
        _added[:] = before
        lines = cause.__cause__ if isinstance(cause, PluginError) and cause.__cause__ else cause
        place, reason = told(lines, _of_package(point.module))
        error = PluginError(
            f"{place or f'entry point {point.name} of {package}'}: {reason}; "
            f"`python -c 'import {point.module}'` shows the traceback; the others work"
        )
        error.__cause__ = cause
        warnings.warn(str(error), PluginWarning, stacklevel=2)
        return Plugin(point.name, package, (), error)
    brought = [e for e in _added if e not in before or class_of(e.item).__module__ == point.module]
    return Plugin(point.name, package, tuple(brought), None)


def _of_package(module: str) -> Callable[[Path], bool]:
    """Return what tells whether a file is of the package, or the single module, of a module."""
    from importlib.util import find_spec

    top = module.partition(".")[0]
    spec = find_spec(top)
    place = Path(spec.origin) if spec and spec.origin else Path(top)
    home = place.parent if place.name == "__init__.py" else place
    return lambda path: path.is_relative_to(home)


def is_own(kind: type) -> bool:
    """Whether a class of functions, hooks or strategies is somebody's own, not softgen's."""
    return kind.__module__.partition(".")[0] != "softgen"


def modules_of(kind: type) -> list[Path] | None:
    """Return the files of a class of one's own and of its bases, and those beside it.

    None where it has no file, as in a notebook.
    """
    found: set[Path] = set()
    for each in kind.__mro__:
        if is_own(each) and each.__module__.partition(".")[0] not in sys.stdlib_module_names:
            module = sys.modules.get(each.__module__)
            file = module and module.__file__
            if module is None or file is None:
                return None
            found |= {*Path(file).parent.glob("*.py")} if module.__package__ else {Path(file)}
    return sorted(found)


def fault(kind: str, item: Any, error: BaseException) -> PluginError:
    """Return what to raise from `error`, which a function, hook or strategy of one's own caused.

    Its message names the innermost line of its modules and templates.
    """
    place, reason = told(error, _owned_by(item))
    return _ERRORS.get(kind, PluginError)(f"{place or f'{kind} {item.name}'}: {reason}")


def causes(item: Any, error: BaseException) -> bool:
    """Whether an error is from a line of the modules or templates of `item`."""
    return told(error, _owned_by(item))[0] is not None


def missing(kind: str, item: Any, template: str, folder: Path) -> PluginError:
    """Return what to raise where what was added lacks its template."""
    path = (folder_of(item) or folder) / template
    return _ERRORS.get(kind, PluginError)(f"{kind} {item.name} has no template; write {path}")


def _owned_by(item: Any) -> Callable[[Path], bool]:
    modules = modules_of(class_of(item)) or []
    folder = folder_of(item)
    return lambda path: path in modules or (folder is not None and path.is_relative_to(folder))


def class_of(item: Any) -> type:
    """Return the class of a function or hook; that of a strategy is itself registered."""
    return item if isinstance(item, type) else type(item)


def told(error: BaseException, mine: Callable[[Path], bool]) -> tuple[str | None, str]:
    """Return the innermost line of files that are `mine`, if there is one, and the reason."""
    reason = f"{type(error).__name__}: {error}".strip().splitlines()[0].removesuffix(":")
    return _place(error, mine), str(error) if isinstance(error, PluginError) else reason


def _place(error: BaseException, mine: Callable[[Path], bool]) -> str | None:
    import traceback  # milliseconds, which a sound process need not spend

    if isinstance(error, SyntaxError) and error.filename:  # it has no frame in that file
        return f"{error.filename}, line {error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if mine(Path(frame.filename)):
            return f"{frame.filename}, line {frame.lineno}"
    return None
