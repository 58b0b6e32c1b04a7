"""Links of the pages to files and headings, their length, and what they say of the environment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {path}"
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {path}#{anchor}"


MOST_WORDS = 1500
# What is looked up, and not read from its beginning to its end.
LONG = ("docs/results/", "docs/lab/")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_of_docs_is_short(page: Path) -> None:
    where = page.relative_to(ROOT).as_posix()
    if where.startswith("docs/") and not where.startswith(LONG):
        count = len(page.read_text().split())
        assert count <= MOST_WORDS, f"{where} has {count} words: it answers more than one question"


def test_a_page_names_every_environment_variable() -> None:
    read = re.compile(r"[\"'](SOFTGEN_[A-Z_]+)[\"']")
    found = {
        name for path in (ROOT / "softgen").rglob("*.py") for name in read.findall(path.read_text())
    }
    assert {"SOFTGEN_TUNE", "SOFTGEN_PDL", "SOFTGEN_CACHE_DIR"} <= found
    pages = (page.read_text() for page in PAGES)
    told = {name for text in pages for name in re.findall(r"`(SOFTGEN_[A-Z_]+)(?:=\w+)?`", text)}
    assert found <= told, f"no page names {sorted(found - told)}"
