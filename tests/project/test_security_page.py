"""SECURITY.md names tests for what it promises: each of them is there."""

from __future__ import annotations

import re

from tests.helpers.cli_helpers import ROOT

ROW = re.compile(r"^\| (?P<what>.+) \| `(?P<place>tests/[^`]+)` \| (?P<tests>`test_.+`) \|$")


def test_each_test_that_the_page_names_is_there() -> None:
    section = (ROOT / "SECURITY.md").read_text().partition("## The tests that hold it")[2]
    table = section.partition("\n## ")[0].strip().splitlines()[2:]
    assert len(table) > 10
    for line in table:
        row = ROW.match(line)
        assert row, line
        place = ROOT / row["place"]
        files = [place] if place.is_file() else sorted(place.glob("test_*.py"))
        found = {
            name for file in files for name in re.findall(r"^def (\w+)", file.read_text(), re.M)
        }
        assert set(re.findall(r"`(\w+)`", row["tests"])) <= found, row["what"]
