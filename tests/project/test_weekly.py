"""The weekly workflow runs each piece of tests/whole.py, and the oldest versions that are taken."""

from __future__ import annotations

import re

import pytest

from softgen.errors import InvalidValueError
from softgen.switches import is_on
from tests import whole
from tests.helpers.cli_helpers import ROOT

WORKFLOW = (ROOT / ".github" / "workflows" / "weekly.yml").read_text()
PROJECT = (ROOT / "pyproject.toml").read_text()


def test_every_piece_is_run() -> None:
    pieces = WORKFLOW.partition("piece:\n")[2].partition("    steps:")[0]
    assert re.findall(r"- ([\w-]+)", pieces) == [*whole.PIECES]


def test_the_oldest_versions_are_those_that_are_supported() -> None:
    (python,) = re.findall(r'requires-python = ">=([\d.]+)"', PROJECT)
    (torch,) = re.findall(r'torch = \["torch>=([\d.]+)"\]', PROJECT)
    oldest = re.findall(r'python: "([\d.]+)"\n\s+torch: "torch==([\d.]+)\.\*"', WORKFLOW)
    assert oldest == [(python, torch)]
    extras = set(re.findall(r"- extra: (\w+)", WORKFLOW))
    assert extras == set(re.findall(r"^(cuda\d+) = ", PROJECT, re.MULTILINE))


def test_a_piece_that_fails_is_told_with_what_it_said_last(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert whole.run("good", ("this",))
    assert not whole.run("bad", ("softgen", "verify", "no_such_strategy"))
    said = capfd.readouterr().out
    assert re.search(r"^good: ok, \d+\.\d min: ", said, re.MULTILINE)
    assert re.search(r"^bad: failed \(\d+\), \d+\.\d min: ", said, re.MULTILINE)
    assert "no_such_strategy" in said


def test_parts_are_whole_where_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.helpers import whole as helper

    monkeypatch.setattr(helper, "WHOLE", False)
    assert [*helper.part(range(7), 3, 1)] == [1, 4]
    monkeypatch.setattr(helper, "WHOLE", True)
    assert [*helper.part(range(7), 3, 1)] == [*range(7)]
    monkeypatch.setenv("SOFTGEN_TEST_WHOLE", "yes")
    with pytest.raises(InvalidValueError, match="SOFTGEN_TEST_WHOLE must be 0 or 1"):
        is_on("SOFTGEN_TEST_WHOLE")
