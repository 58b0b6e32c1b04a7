"""docs/losses.md and docs/linear_losses.md: their Python."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
*CUPY, TORCH = BLOCK.findall((ROOT / "docs" / "losses.md").read_text())
LINEAR = "".join(BLOCK.findall((ROOT / "docs" / "linear_losses.md").read_text()))


def test_it_names_calls_that_there_are() -> None:
    import softgen

    tree = ast.parse("".join((*CUPY, TORCH)))
    functions = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    called = {each.attr for each in functions if isinstance(each, ast.Attribute)}
    assert called >= {"cross_entropy", "cross_entropy_grad", "cross_entropy_backward"}
    assert {name for name in called if name.startswith("cross")} <= set(softgen.__all__)


@pytest.mark.gpu
@pytest.mark.parametrize("code", ["".join(CUPY), TORCH, LINEAR], ids=["cupy", "torch", "linear"])
def test_it_runs(code: str) -> None:
    if code in (TORCH, LINEAR):
        pytest.importorskip("torch")
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "SOFTGEN_TUNE": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
