"""What tests/python_mutation.py learns of the tests that it runs."""

from __future__ import annotations

from pathlib import Path

from tests.python_mutation import Tree

TESTS = """
import time
import pytest

@pytest.mark.parametrize("text", ["right", "(x[0] - y) - z", "a - b"])
def test_given(text):
    assert text == "right", "[1] - [2]"

def test_slow():
    time.sleep(60)
"""
RIGHT, FIRST, OTHER = (
    f"test_some.py::test_given[{text}]" for text in ("right", "(x[0] - y) - z", "a - b")
)


def test_a_test_that_fails_is_named_so_that_it_runs_alone(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    tree = Tree(tmp_path)
    assert tree.run(["test_some.py"], 60) == FIRST
    assert tree.run([OTHER], 60) == OTHER
    assert tree.run([RIGHT], 60) == ""


def test_what_does_not_end_or_cannot_run_does_not_pass(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_no.py").write_text("import no_such_module\n")
    tree = Tree(tmp_path)
    assert tree.run(["test_no.py"], 60) == "test_no.py"
    assert tree.run([OTHER.partition(" - ")[0]], 60) == "pytest"  # which is none
    assert tree.run(["test_some.py::test_slow"], 1) is None
