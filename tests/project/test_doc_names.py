"""What README and docs/ call by a dotted name or by a template's path is there."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = (page.relative_to(ROOT) for page in ROOT.glob("docs/**/*.md"))
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(map(str, DOCS))]
DOTTED = re.compile(r"(?<![\w./@-])softgen(?:\.[A-Za-z_]\w*)+")
TEMPLATE = re.compile(
    r"(?<![\w/])(?:templates|lib|functions|hooks|parts|strategies)/[\w/]+\.cuh?\.j2"
)
# What readers of README and of CONTRIBUTING.md write.
TAUGHT = {"strategies/thread.cu.j2", "functions/logmeanexp.cuh.j2"}


@functools.cache
def _names(module: str) -> frozenset[str] | None:
    """Return the names that a module's text binds or lists, or None if there is no such module."""
    stem = ROOT.joinpath(*module.split("."))
    for path in (stem / "__init__.py", stem.with_suffix(".py")):
        if path.is_file():
            text = path.read_text()
            break
    else:
        return None
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)  # of __all__, and of names that are imported when asked for
    return frozenset(found)


def _is_there(dotted: str) -> bool:
    """Whether the longest module that begins a name has what comes behind it."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        names = _names(".".join(parts[:end]))
        if names is not None:
            return end == len(parts) or parts[end] in names
    return False


@pytest.mark.parametrize("page", PAGES)
def test_names_of_a_page_are_there(page: str) -> None:
    text = (ROOT / page).read_text()
    absent = sorted({name for name in DOTTED.findall(text) if not _is_there(name)})
    assert not absent, f"{page} names {', '.join(absent)}"


@pytest.mark.parametrize("page", PAGES)
def test_templates_of_a_page_are_there(page: str) -> None:
    found = {
        path.removeprefix("templates/") for path in TEMPLATE.findall((ROOT / page).read_text())
    }
    absent = sorted(p for p in found - TAUGHT if not (ROOT / "templates" / p).is_file())
    assert not absent, f"{page} names {', '.join(absent)}"


def test_the_page_of_parts_has_every_file() -> None:
    table = (ROOT / "docs/parts.md").read_text()
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    told = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    files = ROOT.glob("templates/parts/**/*.cuh.j2")
    absent = {path.name.removesuffix(".cuh.j2") for path in files} - told
    assert not absent, f"docs/parts.md lacks {', '.join(sorted(absent))}"


def test_a_name_that_moved_is_noticed() -> None:
    assert _is_there("softgen.strategies.lessons.ladder.LADDER")
    assert not _is_there("softgen.ladder.LADDER")
    assert not _is_there("softgen.problems.hooks.HOOKS")
