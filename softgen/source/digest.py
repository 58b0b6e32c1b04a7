"""What decides a text, file by file: by a digest of it, what was kept of a variant stays or goes.

These are the strategy's template and all that it names, the modules of its function and of its
strategy and all that they import, and `render.py` with what that imports. The files are read for
the names of others, so that nobody keeps a list. What is named counts, also where one variant has
no use for it. Other functions, other strategies and how exact a result must be decide no text.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Iterator

from softgen.source import render
from softgen.strategies.base import Strategy
from softgen.strategies.faults import PACKAGES, SHIPPED
from softgen.strategies.variants import Variant

# The rooms whose modules may decide a text; the names and errors below them do not.
ROOMS = ("source", "spec", "strategies")

# The words of tags that name a template, and those that may follow the name.
NAMING = ("include", "extends", "import", "from")
FOLLOWING = ("import", "as", "with", "without", "ignore")
OF_FUNCTION = '"functions/" ~ problem.function.template ~ ".cuh.j2"'
OF_PART = '"parts/" ~ problem.function.part.name ~ '
OF_HOOK = '"hooks/" ~ hook.kind ~ ".cuh.j2"'


def digest(variant: Variant) -> str:
    """Return a digest of all that decides the text of `variant` beside its name."""
    function, hooks = variant.problem.function, variant.problem.modifiers
    of_hooks = tuple(f"hooks/{hook.kind}.cuh.j2" for hook in hooks)
    names = (function.template, function.part.name, of_hooks)
    return _digest(type(function), names, type(variant.strategy))


@functools.cache
def _digest(
    function: type, names: tuple[str, str, tuple[str, ...]], strategy: type[Strategy]
) -> str:
    files = _templates(render.strategy_template(strategy.name), *names)
    files |= _modules(_homes(function) | _homes(strategy) | {"softgen.source.render"})
    state = hashlib.sha256()
    for name in sorted(files):
        state.update(name.encode() + b"\0" + files[name] + b"\0")
    return state.hexdigest()[:16]


def added_strategies() -> str:
    """Return a digest of the strategies that do not come with softgen; empty without any.

    A choice is made again where there is another one, or one has changed: it may win. Of softgen's
    own a winner is kept as long as its own text is.
    """
    state, some = hashlib.sha256(), False
    for package in PACKAGES:
        folder = os.path.join(render.PACKAGE, *package.split(".")[1:])
        stems = {name[:-3] for name in os.listdir(folder) if name.endswith(".py")}
        for stem in sorted(stems - SHIPPED - {"__init__"}):
            template = os.path.join(render.template_directory(), render.strategy_template(stem))
            for path in (os.path.join(folder, f"{stem}.py"), template):
                state.update(stem.encode() + b"\0" + _read(path) + b"\0")
                some = True
    return state.hexdigest()[:16] if some else ""


def _homes(kind: type) -> set[str]:
    """Return the modules of a class and of its bases, without Python's own."""
    found = {each.__module__ for each in kind.__mro__}
    return {name for name in found if name.partition(".")[0] not in sys.stdlib_module_names}


def _templates(
    first: str, of_function: str, of_part: str, of_hooks: tuple[str, ...]
) -> dict[str, bytes]:
    """Return what a template and those that it names hold, by path.

    Where a name is computed in a way that is not known here, it is every template there is. One
    that is missing counts as empty: emitting the text says so.
    """
    folder = str(render.template_directory())
    found: dict[str, bytes] = {}
    open_names = [first]
    while open_names:
        name = open_names.pop()
        if name in found:
            continue
        found[name] = _read(os.path.join(folder, name))
        for named in _named(found[name].decode("latin-1")):
            if named == OF_FUNCTION:
                open_names.append(f"functions/{of_function}.cuh.j2")
            elif named.startswith(OF_PART):
                open_names.append(f"parts/{of_part}{named.removeprefix(OF_PART).strip(chr(34))}")
            elif named == OF_HOOK:
                open_names += of_hooks
            elif plain := _plain(named):
                open_names.append(plain)
            else:
                paths = (path for path in render.template_directory().rglob("*") if path.is_file())
                open_names += [path.relative_to(folder).as_posix() for path in paths]
    return found


def _named(text: str) -> Iterator[str]:
    """Yield what the tags of a template say after `include`, `extends`, `import` and `from`.

    Without regular expressions: to compile them takes as long as to read all files.
    """
    for piece in text.split("/*%")[1:]:
        words = piece.partition("%*/")[0].strip("+-").split(None, 1)
        if len(words) == 2 and words[0] in NAMING:
            yield words[1].strip()


def _plain(named: str) -> str:
    """Return the name that a tag says as it is; nothing if it is computed."""
    before, *quoted = named.split('"', 2)
    if before or len(quoted) != 2:
        return ""
    name, after = quoted
    return name if after.split()[:1] in ([], *([word] for word in FOLLOWING)) else ""


def _imported(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the modules of ROOMS that a module imports from, and the names that it imports."""
    for piece in text.split("from softgen.")[1:]:
        module, _, rest = piece.partition(" import ")
        if module.partition(".")[0] in ROOMS:
            names = rest[: rest.find(")" if rest[:1] == "(" else "\n")]
            yield module, names.strip("( \n").replace(",", " ").split()


def _modules(first: set[str]) -> dict[str, bytes]:
    """Return what modules and those that they import from ROOMS hold, by name."""
    found: dict[str, bytes] = {}
    open_names = [*first]
    while open_names:
        name = open_names.pop()
        if name in found:
            continue
        path = _path(name)
        if path is None:  # a name that a module has, or a module without a file
            continue
        found[name] = _read(path)
        for module, names in _imported(found[name].decode("latin-1")):
            open_names.append(f"softgen.{module}")
            if _is_package(module):
                open_names += [f"softgen.{module}.{name}" for name in names]
    return found


@functools.cache
def _is_package(module: str) -> bool:
    """Whether a module of softgen's is a folder; many import from the same."""
    return os.path.isdir(os.path.join(render.PACKAGE, *module.split(".")))


def _path(module: str) -> str | None:
    """Return the file of a module; None if there is none."""
    package, _, rest = module.partition(".")
    if package != "softgen":
        return getattr(sys.modules.get(module), "__file__", None)
    stem = os.path.join(render.PACKAGE, *rest.split("."))
    for path in (f"{stem}.py", os.path.join(stem, "__init__.py")):
        if os.path.isfile(path):
            return path
    return None


def _read(path: str) -> bytes:
    """Return what a file holds; nothing if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
