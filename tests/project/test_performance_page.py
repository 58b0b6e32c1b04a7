"""docs/performance.md: the tables of whole suites are what the CSV files hold."""

from __future__ import annotations

import pytest

from tests.helpers.cli_helpers import ROOT
from tests.performance_page import SECTIONS
from tests.sources_page import rendered

PAGE = (ROOT / "docs" / "performance.md").read_text()


def test_the_page_is_what_the_files_say() -> None:
    assert rendered(PAGE, sections=SECTIONS) == PAGE, (
        "python -m tests.performance_page docs/performance.md writes it anew"
    )


@pytest.mark.parametrize("name", SECTIONS)
def test_no_figure_of_a_suite_is_missing(name: str) -> None:
    section = PAGE.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- end of {name} -->")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(lines) >= 4
    for line in lines:
        assert " - |" not in line, f"not measured: {line}"
