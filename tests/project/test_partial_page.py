"""docs/partial.md: its commands, run on the emulator, and its Python."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest

from softgen.problems import numerics
from softgen.problems.problem import Problem
from tests.helpers.cli_helpers import python

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall((ROOT / "docs" / "partial.md").read_text())
CHUNKS, SHARDS, CUT, MERGE = (body for kind, body in BLOCKS if kind == "python")
PARTIAL, FINISH = (body for kind, body in BLOCKS if kind == "sh")


@pytest.mark.usefixtures("host_built")
def test_the_commands_give_softmax(tmp_path: Path) -> None:
    python("-c", CUT, cwd=tmp_path)
    for lines in (PARTIAL, FINISH):
        for line in lines.splitlines():
            program, *words = line.split()
            assert program == "softgen"
            assert "the bound is" in python(
                "-m", "softgen", *words, "--device", "cpu", cwd=tmp_path
            )
        if lines is PARTIAL:
            python("-c", MERGE, cwd=tmp_path)
    x = np.hstack([np.load(tmp_path / f"{name}.npy") for name in ("left", "right")])
    y = np.hstack([np.load(tmp_path / f"y{i}.npy") for i in range(2)])
    checked = numerics.check((y,), (x,), Problem.of("softmax", "float32", x.shape[1]))
    assert checked.ok, checked.message


def test_the_function_of_shards_is_python() -> None:
    ast.parse(SHARDS)


@pytest.mark.gpu
def test_the_chunks_give_softmax() -> None:
    assert python("-c", CHUNKS, cwd=ROOT) == "True\n"
