"""examples/vocabulary_parallel.py in two processes, on the CPU, small."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path

import pytest

from tests.helpers.ranks import run_ranks


def test_both_losses_train_one_model(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    bodies = importlib.import_module("tests.cpu.distributed.bodies")
    run_ranks(2, bodies.vocabulary_parallel, tmp_path, tmp_path)
    with (tmp_path / "curves" / "losses.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3
    for row in rows:
        assert float(row["softgen"]) == pytest.approx(float(row["loss_parallel"]), abs=2e-5)
        turned = float(row["loss_parallel turned"])
        assert turned == pytest.approx(float(row["loss_parallel"]), abs=2e-5)
    first = float(rows[0]["softgen"])
    assert first == pytest.approx(11.76, abs=0.05)  # log(128256), nothing learned
    with (tmp_path / "curves" / "steps.csv").open(newline="") as file:
        figures = {row["run"]: row for row in csv.DictReader(file)}
    assert figures["softgen"]["last loss"] == f"{float(rows[-1]['softgen']):.4f}"
    assert float(figures["loss_parallel"]["ms a step"]) > 0
    assert figures["softgen"]["peak GB"] == "-"  # of a GPU's memory
