"""The drawings of docs/: what their script writes, well-formed, in both schemes, on a page."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "drawings"
NAMES = sorted(path.stem for path in FOLDER.glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def canvas(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Import the canvas as the script does."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield importlib.import_module("canvas")
    del sys.modules["canvas"]


def test_the_drawings_are_what_the_script_writes(tmp_path: Path) -> None:
    """ladder.svg has the times of docs/published/ladder.csv: draw again where they change."""
    words = [sys.executable, "-B", str(FOLDER / "draw.py"), str(tmp_path)]
    subprocess.run(words, check=True, capture_output=True)
    assert sorted(path.stem for path in tmp_path.iterdir()) == NAMES
    assert {"rows", "exchange", "groups", "ladder"} <= {*NAMES}
    for name in NAMES:
        written = (tmp_path / f"{name}.svg").read_text()
        assert written == (FOLDER / f"{name}.svg").read_text(), (
            f"{name}.svg is not what `python docs/drawings/draw.py` writes; run it"
        )


@pytest.mark.parametrize("name", NAMES)
def test_a_drawing_is_whole_and_has_both_schemes(name: str) -> None:
    root = ElementTree.parse(FOLDER / f"{name}.svg").getroot()
    assert root.tag == f"{SVG}svg"
    for part in ("title", "desc"):  # for those who do not see it
        text = root.findtext(f"{SVG}{part}")
        assert text
        assert len(text) > 10
    style = root.findtext(f"{SVG}style") or ""
    light, _, dark = style.partition("@media (prefers-color-scheme:dark)")
    used = {kind for each in root.iter() for kind in each.get("class", "").split()}
    for kind in used - {"faint", "dashed"}:
        shades = [re.findall(rf"\.{kind}{{\w+:(#\w+)}}", scheme) for scheme in (light, dark)]
        assert [len(found) for found in shades] == [1, 1], kind
        assert shades[0] != shades[1], kind
    # Nothing is loaded from elsewhere, and what has a colour has a class.
    assert not re.search(r"(?:href|url\((?!#head))", ElementTree.tostring(root, "unicode"))
    assert not [e for e in root.iter() if e.get("fill") or e.get("stroke") or e.get("style")]


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour (WCAG 2.1)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * p for weight, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", [1, 2], ids=["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(scheme: int, canvas: ModuleType) -> None:
    """4.5 to 1 is what WCAG 2.1 asks of text."""
    colours = {name: luminance(each[scheme]) for name, each in canvas.COLOURS.items()}
    for text, grounds in (("ink", ("bg", "idle", *canvas.OWNERS)), ("dim", ("bg",))):
        for ground in grounds:
            low, high = sorted((colours[text], colours[ground]))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)


def test_text_that_does_not_fit_is_an_error(canvas: ModuleType) -> None:
    drawn = canvas.Canvas("a title", "a description", 200, 100)
    drawn.text(10, 20, "within")
    drawn.text(10, 40, "the next line")
    with pytest.raises(ValueError, match="'over it' runs into 'within'"):
        drawn.text(30, 24, "over it")
    with pytest.raises(ValueError, match="leaves the picture"):
        drawn.text(150, 60, "past the right edge")
    with pytest.raises(ValueError, match="leaves the picture"):
        drawn.text(10, 99, "gone")
    with pytest.raises(ValueError, match=r"'a long label' needs \d+ pixels and has 20"):
        drawn.box(100, 60, 20, 20, "a", "a long label")


def test_every_drawing_is_on_one_page() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = [
        (page.parent / target).resolve()
        for page in pages
        for target in re.findall(r"!\[[^\]]{20,}\]\((\S+\.svg)\)", page.read_text())
    ]
    assert sorted(found) == sorted(FOLDER / f"{name}.svg" for name in NAMES)
