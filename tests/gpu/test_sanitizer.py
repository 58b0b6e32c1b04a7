"""compute-sanitizer over one kernel of each strategy, and over two that are broken on purpose."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from softgen.strategies.registry import all_strategies
from tests.gpu.sanitized import COLS

SANITIZER = shutil.which("compute-sanitizer", path="/usr/local/cuda/bin") or shutil.which(
    "compute-sanitizer"
)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(SANITIZER is None, reason="compute-sanitizer is not installed"),
]


# Of a cluster. The synccheck of CUDA 13.0 says "Missing wait" of the only arrival at the mbarriers
# of blocks 8 to 15 of a cluster of 16, the same ones in every run, and nothing of blocks 0 to 7.
BLOCKS = {"memcheck": 16, "racecheck": 16, "synccheck": 8}


def errors(tool: str, name: str) -> int:
    """Return the errors in the tool's summary line, which has to be there."""
    assert SANITIZER is not None
    watched = [sys.executable, "-m", "tests.gpu.sanitized", name, str(BLOCKS[tool])]
    command = [SANITIZER, "--tool", tool, *watched]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
    text = done.stdout + done.stderr
    pattern = (
        r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) error)"
    )
    found = re.search(pattern, text)
    assert found, text[-3000:]
    summary = next(line for line in text.splitlines() if "SUMMARY" in line)
    print(f"{name}, {tool}: {summary.strip('= ')}")
    return int(found[1] or found[2])


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
@pytest.mark.parametrize("name", COLS)
def test_no_error(name: str, tool: str) -> None:
    assert errors(tool, name) == 0


def test_every_tuned_strategy_is_watched() -> None:
    assert set(COLS) == {kind.name for kind in all_strategies() if kind.tuned}


@pytest.mark.parametrize(
    ("name", "tool"), [("broken_index", "memcheck"), ("broken_barrier", "racecheck")]
)
def test_planted_mistakes_are_flagged(name: str, tool: str) -> None:
    assert errors(tool, name) > 0
