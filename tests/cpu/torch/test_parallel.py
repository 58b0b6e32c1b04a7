"""DDP and FSDP2 on two processes: softgen's functions train a model as PyTorch's do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

from tests.helpers.torch_parallel import RANKS


def test_two_processes_train_as_with_pytorchs_functions(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.torch_parallel", str(rank), tmp_path / "store"],
            cwd=Path(__file__).parents[3],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        said = [each.communicate(timeout=300)[0] for each in ranks]
    finally:
        for each in ranks:
            each.kill()
    assert all(text.strip().endswith("the same") for text in said), "\n".join(said)
