"""The examples run, small, and softgen's numbers in them are PyTorch's."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

cupy = pytest.importorskip("cupy")
pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]


def run(
    name: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *words: str,
    launcher: tuple[str, ...] = (),
) -> str:
    """Run an example in a folder of its own, and return what it prints."""
    monkeypatch.setenv("SOFTGEN_TUNE", "off")
    command = [sys.executable, *launcher, str(ROOT / "examples" / name), "--small", *words]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_gpt_learns_as_with_pytorchs_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = run("gpt.py", tmp_path, monkeypatch, "--steps", "8", "--out", "curves")
    with (tmp_path / "curves" / "losses.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    for row in rows:
        for name in ("softgen", "softmax turned", "loss turned", "both turned"):
            assert float(row[name]) == pytest.approx(float(row["torch"]), abs=0.01)
    assert float(rows[0]["torch"]) == pytest.approx(10.83, abs=0.1)  # log(50304), nothing learned
    assert float(rows[-1]["softgen"]) < float(rows[0]["softgen"])
    assert re.search(r"^ +[\d.]+  softmax_", printed, re.MULTILINE), printed
    assert re.search(r"^softgen's and PyTorch's are 0\.\d+ to 0\.\d+ apart", printed, re.MULTILINE)
    with (tmp_path / "curves" / "kernels.csv").open(newline="") as file:
        kernels = [row for row in csv.DictReader(file) if row["run"] == "softgen"]
    counted = " ".join(row["kernel"] for row in kernels if row["softmax_or_loss"] == "True")
    for name in ("softmax_bf16", "softmax_backward_f32", "cross_entropy"):
        assert name in counted, counted
    assert all(float(row["us_a_step"]) > 0 for row in kernels)


def test_a_gpt_learns_without_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--steps", "8", "--loss", "linear", "--out", "curves")
    run("gpt.py", tmp_path, monkeypatch, *words)
    with (tmp_path / "curves" / "losses.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    for row in rows:
        for name in ("softgen", "torch compiled", "softgen compiled"):
            assert float(row[name]) == pytest.approx(float(row["torch"]), abs=0.01)


def test_a_policy_gradient_step_makes_no_second_tensor_of_all_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("policy_gradient.py", tmp_path, monkeypatch, "--csv", "steps.csv")
    with (tmp_path / "steps.csv").open(newline="") as file:
        rows = {row["peer"]: row for row in csv.DictReader(file)}
    mine, theirs = rows["softgen"], rows["torch"]
    assert float(mine["loss"]) == pytest.approx(float(theirs["loss"]), rel=1e-4)
    assert float(mine["error"]) < 2**-8  # dx is rounded to bfloat16
    logits = 2 * 64 * 50304 * 2 / 1e9
    assert float(mine["gigabytes_beside"]) < logits / 4 < logits < float(theirs["gigabytes_beside"])


def test_a_policy_gradient_step_of_hidden_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("policy_gradient.py", tmp_path, monkeypatch, "--loss", "linear", "--csv", "steps.csv")
    with (tmp_path / "steps.csv").open(newline="") as file:
        rows = {row["peer"]: row for row in csv.DictReader(file)}
    assert float(rows["softgen"]["loss"]) == pytest.approx(float(rows["torch"]["loss"]), rel=1e-3)
    assert float(rows["softgen"]["error"]) < 2**-5  # logits are rounded to bfloat16


def test_a_vocabulary_in_shards_learns_as_with_loss_parallel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    words = ("--steps", "8", "--out", "curves")
    printed = run("vocabulary_parallel.py", tmp_path, monkeypatch, *words, launcher=torchrun)
    with (tmp_path / "curves" / "losses.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    for row in rows:
        assert float(row["softgen"]) == pytest.approx(float(row["loss_parallel"]), abs=0.01)
    assert float(rows[0]["softgen"]) == pytest.approx(11.76, abs=0.1)  # log(128256)
    assert re.search(r"^ +[\d.]+  cross_entropy_backward_shard", printed, re.MULTILINE), printed
