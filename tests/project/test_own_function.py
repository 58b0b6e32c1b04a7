"""The function that CONTRIBUTING.md adds: 1 + 1 files in a copy of the package, run as it says."""

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
