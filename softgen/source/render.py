"""From a variant to its CUDA source text: one Jinja environment and one function."""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softgen import plugins
from softgen.errors import PluginError, SoftgenError
from softgen.plugins import AUTHORS, is_own
from softgen.problems.arch import Arch
from softgen.strategies.variants import Variant

if TYPE_CHECKING:
    import jinja2

# CuPy adds both to every NVRTC compile; they are stated so that nvcc on the emitted file gives the
# same kernel.
COMPILE_OPTIONS = ("--std=c++17", "-ftz=true")


PACKAGE = Path(__file__).resolve().parents[1]

# A comment, or a string, in which slashes are none and which stays. Compiled at its first use.
_COMMENT = r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*(?s:.*?)\*/'

# Where the template of a strategy lies.
STRATEGY_FOLDERS = ("strategies", "strategies/lessons")


@dataclass(frozen=True)
class Source:
    """An emitted CUDA file. Its text is the whole truth: no include but the toolkit's own.

    Attributes:
        variant: what it computes and how.
        name: stem of the file.
        symbol: name of the one `extern "C"` kernel, the file's stem. It takes the operands of the
            problem, the number of rows and, if the launch says so, a workspace.
        text: the CUDA C++ text.
        options: what NVRTC or nvcc must be given.
        edited: the path of the file that somebody edited; empty for what softgen writes.
    """

    variant: Variant
    name: str
    symbol: str
    text: str
    options: tuple[str, ...] = COMPILE_OPTIONS
    edited: str = ""

    @classmethod
    def of(cls, variant: Variant, text: str) -> Source:
        """Return the source of `variant`, whose file and kernel have its name."""
        return cls(variant, variant.name, variant.name, text)

    @property
    def sha256(self) -> str:
        """Digest of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def code_sha256(self) -> str:
        """Digest of what runs: text without comments and blank lines, options and launch."""
        code = re.sub(_COMMENT, lambda found: found[1] or "", self.text)
        lines = filter(None, map(str.rstrip, code.splitlines()))
        made_of = ("\n".join(lines), *self.options, repr(self.variant.launch))
        return hashlib.sha256("\0".join(made_of).encode()).hexdigest()


def template_directory() -> Path:
    """Return the folder of templates: inside an installed package, beside it in a checkout."""
    for folder in (PACKAGE / "templates", PACKAGE.parent / "templates"):
        if (folder / "kernel.cu.j2").is_file():
            return folder
    raise SoftgenError(
        f"no templates in {PACKAGE / 'templates'} nor {PACKAGE.parent / 'templates'}: "
        "the installation is damaged; install softgen again"
    )


def strategy_template(name: str) -> str:
    """Return the template of the strategy called `name`, as a path in the folder of templates."""
    for folder in STRATEGY_FOLDERS:
        if (template_directory() / folder / f"{name}.cu.j2").is_file():
            return f"{folder}/{name}.cu.j2"
    return f"{STRATEGY_FOLDERS[0]}/{name}.cu.j2"  # of one that was added


def template_file(name: str) -> Path:
    """Return the file of a template, of softgen's own or of what was added."""
    folders = (template_directory(), *plugins.template_folders())
    found = (folder / name for folder in folders if (folder / name).is_file())
    return next(found, template_directory() / name)


@functools.cache
def environment() -> jinja2.Environment:
    """Return the Jinja environment, whose delimiters are C++ comments and `${ }`.

    CUDA then needs no escapes: Jinja's own would take `{{0, 0}}`, `{#pragma` and `{%0, %1}` for
    tags.
    """
    import jinja2  # 18 ms that a process whose texts are all on disk does not spend

    from softgen.source.cpp import nested, spell
    from softgen.source.paste import Paste

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template_directory()),
        extensions=[Paste],
        block_start_string="/*%",
        block_end_string="%*/",
        variable_start_string="${",
        variable_end_string="}",
        comment_start_string="/*#",
        comment_end_string="#*/",
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        optimized=False,  # folding constants takes longer than it saves, 15% of a first text
        finalize=spell,
    )
    made.filters["nested"] = nested
    return made


@functools.lru_cache(maxsize=4096)
def render(variant: Variant, arch: Arch | None = None) -> Source:
    """Return the source of `variant`: the same text on every machine and day.

    `arch` is what the header's line `compile:` names, by default the oldest that the variant fits;
    the code does not depend on it. What runs is always rendered without it, so that there is one
    text of a variant on disk and in CuPy's cache, whatever a file was emitted for.

    Raises PluginError where a strategy, a function or a hook that was added to softgen, or its
    template, fails.
    """
    try:
        return Source.of(variant, _text(variant, arch))
    except AUTHORS as error:
        if not isinstance(error, PluginError):
            raise_added_fault(variant, error)
        raise


def own_parts(variant: Variant) -> list[tuple[str, Any, str]]:
    """Return what is not softgen's own of a variant: its kind, itself, and its template."""
    problem, strategy = variant.problem, type(variant.strategy)
    function = problem.function
    parts: list[tuple[str, Any, str]] = [
        ("strategy", strategy, strategy_template(strategy.name)),
        ("function", function, f"functions/{function.template}.cuh.j2"),
        *(("hook", hook, f"hooks/{hook.kind}.cuh.j2") for hook in problem.hooks),
    ]
    return [part for part in parts if is_own(plugins.class_of(part[1]))]


def raise_added_fault(variant: Variant, error: BaseException) -> None:
    """Raise PluginError from `error` if what was added to softgen caused it."""
    parts = own_parts(variant)
    if not parts:
        return
    from jinja2 import TemplateNotFound

    absent = error.name if isinstance(error, TemplateNotFound) else None
    for kind, item, template in parts:
        if absent == template:
            raise plugins.missing(kind, item, template, template_directory()) from error
    caused = [part for part in parts if plugins.causes(part[1], error)]
    kind, item, _ = (*caused, *parts)[0]
    raise plugins.fault(kind, item, error) from error


def _text(variant: Variant, arch: Arch | None) -> str:
    from softgen.source.context import context

    path = strategy_template(variant.strategy.name)
    folders = plugins.template_folders() if own_parts(variant) else ()
    template = (_with_folders(folders) if folders else environment()).get_template(path)
    given = context(variant, arch)
    return template.render(template=path, options=" ".join(COMPILE_OPTIONS), **given)


@functools.lru_cache(maxsize=8)
def _with_folders(folders: tuple[Path, ...]) -> jinja2.Environment:
    """Return the environment that also finds templates in folders of what was added."""
    import jinja2

    loader = jinja2.FileSystemLoader((template_directory(), *folders))
    return environment().overlay(loader=loader)
