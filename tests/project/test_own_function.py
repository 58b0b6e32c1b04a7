"""Functions added to a copy of the package, 1 + 1 files each: CONTRIBUTING.md's, and a gradient."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = dict(BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text()))
GRADIENT = Path(__file__).parent / "own" / "softmax_backward"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for folder in ("softgen", "templates"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    (tmp_path / "softgen/spec/functions/logmeanexp.py").write_text(BLOCKS["python"])
    (tmp_path / "templates/functions/logmeanexp.cuh.j2").write_text(BLOCKS["cuda"])
    return tmp_path


def python(checkout: Path, *arguments: str) -> str:
    answer = subprocess.run(
        [sys.executable, *arguments],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def test_the_example_works(checkout: Path) -> None:
    commands = BLOCKS["sh"].splitlines()
    assert len(commands) == 3
    for command in commands:
        program, *words = command.split()
        assert program == "softgen"
        assert "the bound is" in python(checkout, "-m", "softgen", *words)
    listed = python(checkout, "-m", "softgen", "list", "--function", "logmeanexp", "--cols", "5000")
    for strategy in ("block", "cluster", "split", "online", "safe"):
        assert re.search(rf"^logmeanexp_f32_5000_{strategy}_", listed, re.MULTILINE), strategy
    matrix = (
        "from softgen.verify.matrix import problems; "
        "print(sum(p.function.name == 'logmeanexp' for p in problems()))"
    )
    assert int(python(checkout, "-c", matrix)) > 0


VERIFY = """
from softgen.source.render import render
from softgen.spec.arch import arch_named
from softgen.spec.dtypes import DType
from softgen.spec.problem import Problem
from softgen.strategies.registry import all_strategies
from softgen.strategies.variants import candidates
from softgen.verify.verify import on_emulator

sources = [
    render(next(candidates(problem, 64, arch_named("sm_90"), kind.name)))
    for dtype in DType
    for cols in (7, 100, 1000, 2048)
    for problem in [Problem.of("softmax_backward", dtype, cols)]
    for kind in all_strategies()
    if kind.computes(problem) and any(candidates(problem, 64, arch_named("sm_90"), kind.name))
]
for source, verdicts in zip(sources, on_emulator(sources), strict=True):
    print(source.name, len(verdicts), *[one.objection for one in verdicts if one.objection])
"""


def test_a_function_of_two_inputs_whose_parts_are_sums(checkout: Path) -> None:
    """softmax's gradient: every regime, out of place and with dx in place of dy, to the bit."""
    shutil.copy(GRADIENT.with_suffix(".py"), checkout / "softgen/spec/functions")
    shutil.copy(GRADIENT.with_suffix(".cuh.j2"), checkout / "templates/functions")
    lines = python(checkout, "-c", VERIFY).splitlines()
    assert {line.split("_")[4] for line in lines} == {"block", "safe"}, lines
    assert len(lines) >= 25
    assert all(line.endswith(" 2") for line in lines), lines  # two launches, and no objection
    wrong = (checkout / "templates/functions/softmax_backward.cuh.j2").read_text()
    wrong = wrong.replace("product - y * sum", "product - sum")
    (checkout / "templates/functions/softmax_backward.cuh.j2").write_text(wrong)
    for line in python(checkout, "-c", VERIFY).splitlines():
        assert "dx[" in line, line
