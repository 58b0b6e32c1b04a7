"""The committed gallery: complete, formatted, and just what the generator writes today."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from softgen.problems.dtypes import DType
from softgen.problems.functions import all_exhibits, all_functions
from softgen.source.drift import check
from softgen.source.gallery import gallery
from softgen.strategies.base import Lesson
from softgen.strategies.registry import all_strategies

ROOT = Path(__file__).resolve().parents[3]
GENERATED = ROOT / "generated"


def clang_format() -> str:
    """Return the clang-format beside this Python, else the one on the path."""
    beside = Path(sys.executable).with_name("clang-format")
    found = str(beside) if beside.exists() else shutil.which("clang-format")
    assert found, "clang-format is missing: pip install '.[dev]'"
    return found


def test_the_committed_files_are_what_would_be_emitted() -> None:
    differences = check(GENERATED, gallery())
    assert not differences, "run `softgen emit`:\n" + "".join(found.diff for found in differences)


def test_every_strategy_function_and_dtype_is_shown() -> None:
    variants = [source.variant for source in gallery()]
    timed = {kind.name for kind in all_strategies() if kind.tuned or issubclass(kind, Lesson)}
    assert {v.strategy.name for v in variants} == timed
    shown = {v.problem.function.template for v in variants}
    assert shown == {function.template for function in all_functions()}
    assert {v.problem.dtype for v in variants} == set(DType)
    assert 12 <= len(variants) <= 64


def test_the_widths_that_people_meet_are_shown() -> None:
    widths = {source.variant.problem.cols for source in gallery()}
    assert widths >= {10, 512, 1000, 1024, 2048, 4096, 32000, 50257, 128256, 131072}
    mixed = [s for s in gallery() if s.variant.problem.out_dtype is not s.variant.problem.dtype]
    assert len(mixed) == 1


def test_every_exhibit_says_where_it_is_met_and_is_there_once() -> None:
    places = [exhibit.where for exhibit in all_exhibits()]
    assert all(places)
    assert len(set(places)) == len(places)


def test_the_files_are_formatted() -> None:
    sources = sorted(map(str, GENERATED.glob("*.cu")))
    command = [clang_format(), "--dry-run", "-Werror", *sources]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr


def test_the_files_hold_no_trace_of_templates_machines_or_days() -> None:
    for path in GENERATED.iterdir():
        text = path.read_text()
        assert not re.search(r"\$\{|/\*[%#]|[%#]\*/", text), path
        assert not re.search(r"/home/|/root/|/tmp/|\b20\d\d-\d\d-\d\d\b", text), path
        assert "\n\n\n" not in text, path
        assert text.endswith("\n"), path
        assert not re.search(r"[ \t]$", text, re.MULTILINE), path
