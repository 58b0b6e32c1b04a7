"""DDP and FSDP2 on two processes: softgen's functions train a model as PyTorch's do."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

from tests.helpers.ranks import run_ranks
from tests.helpers.torch_parallel import train


def test_two_processes_train_as_with_pytorchs_functions(tmp_path: Path) -> None:
    run_ranks(2, train, tmp_path)
