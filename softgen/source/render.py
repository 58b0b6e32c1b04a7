"""From a variant to its CUDA source text: one Jinja environment and one function."""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from softgen.errors import FunctionError, SoftgenError, StrategyError
from softgen.faults import AUTHORS, told
from softgen.spec.arch import Arch
from softgen.spec.functions import faults as functions
from softgen.strategies import faults as strategies
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
        """Digest of the text without comments and blank lines: of what is compiled."""
        code = re.sub(_COMMENT, lambda found: found[1] or "", self.text)
        lines = filter(None, map(str.rstrip, code.splitlines()))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


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
    return f"{STRATEGY_FOLDERS[0]}/{name}.cu.j2"  # where a new one is written


@functools.cache
def environment() -> jinja2.Environment:
    """Return the Jinja environment, whose delimiters are C++ comments and `${ }`.

    CUDA then needs no escapes: Jinja's own would take `{{0, 0}}`, `{#pragma` and `{%0, %1}` for
    tags.
    """
    import jinja2  # 18 ms that a process whose texts are all on disk does not spend

    from softgen.source.cpp import nested, spell

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template_directory()),
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

    Raises StrategyError or FunctionError where a strategy or a function that was added to softgen,
    or its template, fails.
    """
    try:
        return Source.of(variant, _text(variant, arch))
    except AUTHORS as error:
        if isinstance(error, StrategyError | FunctionError):
            raise
        raise_added_fault(variant, error)
        raise


def raise_added_fault(variant: Variant, error: BaseException) -> None:
    """Raise StrategyError or FunctionError from `error` if what was added to softgen caused it."""
    kind, function = type(variant.strategy), variant.problem.function
    from jinja2 import TemplateNotFound

    missing = error.name if isinstance(error, TemplateNotFound) else None
    if strategies.is_own(kind):
        template = strategy_template(kind.name)
        if missing == template:
            raise StrategyError(_unwritten(f"strategy {kind.name}", template)) from error
        if not functions.is_own(function) or told(error, strategies.is_added)[0]:
            raise strategies.fault(kind.name, error) from error
    if functions.is_own(function):
        template = f"functions/{function.template}.cuh.j2"
        if missing == template:
            raise FunctionError(_unwritten(f"function {function.name}", template)) from error
        raise functions.fault(function, error) from error


def _unwritten(whose: str, template: str) -> str:
    return f"{whose} has no template; write {template_directory() / template}"


def _text(variant: Variant, arch: Arch | None) -> str:
    from softgen.source.context import context

    path = strategy_template(variant.strategy.name)
    template = environment().get_template(path)
    given = context(variant, arch)
    return template.render(template=path, options=" ".join(COMPILE_OPTIONS), **given)
