"""Every figure of the pages is made from a committed file, or is no measurement."""

from __future__ import annotations

import pytest

from tests import claims as pages
from tests import results_page
from tests.claims import ALL, read, words
from tests.claims_of import NO_MEASUREMENT, claims
from tests.figures import DOCS


@pytest.mark.parametrize("page", ALL)
def test_sentences_are_what_the_files_say(page: str) -> None:
    text = words(read(page))
    for claim in claims(page):
        assert words(claim.text) in text, (
            f"{page} must say: {claim.text} ({', '.join(claim.files)}). "
            "`python -m tests.claims write` writes figures anew"
        )


@pytest.mark.parametrize("page", ALL)
def test_tables_are_what_the_files_hold(page: str) -> None:
    assert pages.written(page) == read(page), "python -m tests.claims write"


@pytest.mark.parametrize("page", pages.RESULTS)
def test_a_page_of_results_is_what_its_file_holds(page: str) -> None:
    there = (DOCS.parent / page).is_file()
    assert there, "python -m tests.claims write"
    assert read(page) == results_page.results(pages.RESULTS[page]), "python -m tests.claims write"


def test_no_page_of_results_is_without_a_file() -> None:
    there = {f"docs/results/{path.name}" for path in (DOCS / "results").glob("*.md")}
    assert there == pages.RESULTS.keys()


@pytest.mark.parametrize("page", ALL)
def test_no_figure_is_without_a_file(page: str) -> None:
    assert pages.uncovered(page, read(page)) == [], (
        "give it a CSV file and a claim in tests/claims_of.py, or take it out; what is no "
        "measurement goes into NO_MEASUREMENT with the reason"
    )


def test_a_figure_that_nothing_covers_is_seen() -> None:
    added = read("README.md") + "\nA call takes 3.7 us, 1.25 of a copy's, at 2.5 TB/s: 12% less."
    found = pages.uncovered("README.md", added)
    assert len(found) == 4
    assert pages.uncovered("docs/lab/spills.md", "It takes\n5 us.") == ["It takes 5 us."]


def test_an_edited_figure_is_seen_and_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    page = read("docs/tuning.md")
    edited = page.replace("took 32.4 s", "took 31.0 s").replace("16.5\non", "17\non")
    assert edited != page
    assert pages.uncovered("docs/tuning.md", edited)
    monkeypatch.setattr(pages, "read", lambda _: edited)
    assert pages.written("docs/tuning.md") == page


def test_each_figure_has_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    """What `python -m tests.claims` prints: pytest -s shows it."""
    found = list(pages.sources())
    with capsys.disabled():
        print(f"\n{len(found)} tables and sentences with figures, and their files:")
        for page, what, files in found:
            print(f"{page}: {what}\n    {files}")
    for page, what, files in found:
        assert files, f"{page}: {what}"
        for file in files.split(", "):
            assert (DOCS / file).is_file() or (DOCS.parent / file).exists(), file


def test_what_is_no_measurement_is_on_its_page() -> None:
    for page, parts in NO_MEASUREMENT.items():
        for part, reason in parts.items():
            assert part in words(read(page)), f"{page}: {part}"
            assert reason
