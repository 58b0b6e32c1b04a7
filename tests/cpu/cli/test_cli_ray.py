"""softgen tune --ray: actors of a Ray cluster, begun here with GPUs that are none."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from softgen.cli import group
from softgen.tuning import cache, cluster
from tests.helpers import fake_tuner
from tests.helpers.cli_helpers import ROOT, cli, document, refused
from tests.helpers.fake_tuner import CRASHING_COLS, KILLING_COLS, KILLING_ONCE_COLS, WRONG_COLS, log


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))  # of Ray's processes
    return pytest.importorskip("ray")


def begin(ray: Any, gpus: int, **resources: float) -> None:
    ray.init(
        num_gpus=gpus,
        num_cpus=2,
        resources=resources,
        include_dashboard=False,
        log_to_driver=False,
    )


@pytest.fixture
def two_gpus(ray: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cluster, "connect", lambda address: begin(ray, 2))
    monkeypatch.setattr(cluster, "Tuner", fake_tuner.FakeTuner)
    monkeypatch.setenv(fake_tuner.LOG, str(tmp_path / "log"))


@pytest.mark.usefixtures("two_gpus")
def test_the_gpus_of_a_cluster_share_the_shapes_and_the_choices_come_here(
    monkeypatch: pytest.MonkeyPatch, own_cache: Path, tmp_path: Path
) -> None:
    widths = (8, 512, KILLING_ONCE_COLS, KILLING_COLS, CRASHING_COLS, WRONG_COLS)
    words = [word for cols in widths for word in ("--shape", f"64x{cols}")]
    result = cli("tune", *words, "--ray", "x", "--json")
    assert result.exit_code == group.FAILED
    assert [line["cols"] for line in document(result)] == [8, 512, KILLING_ONCE_COLS]
    assert {entry.key.problem.cols for entry in cache.entries()} == {8, 512, KILLING_ONCE_COLS}
    begun = [each.cols for each in log()]
    assert [begun.count(cols) for cols in widths] == [1, 1, 2, 2, 2, 1]
    told = result.stderr
    assert "GPU 0 of " in told
    assert "GPU 1 of " in told
    assert f"error: softmax float32 64x{KILLING_COLS}: the process that tuned it ended on" in told
    assert "(RuntimeError: an illegal memory access was encountered)" in told
    assert "no candidate works" in told


def test_a_cluster_without_gpus(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "connect", lambda address: begin(ray, 0))
    result = cli("tune", "--shape", "8x8", "--ray", "x")
    assert result.exit_code == group.NO_DEVICE
    assert "no GPU of the cluster is free" in result.stderr


def test_a_cluster_of_two_models(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    models = {"accelerator_type:H200": 1.0, "accelerator_type:A10G": 1.0}
    monkeypatch.setattr(cluster, "connect", lambda address: begin(ray, 2, **models))
    result = cli("tune", "--shape", "8x8", "--ray", "x")
    assert result.exit_code == group.USAGE
    assert "one model of GPU, and the cluster has A10G, H200" in result.stderr


def test_another_version_of_softgen_is_not_used(
    two_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softgen.tuning.cluster.__version__", "0.0.0")
    result = cli("tune", "--shape", "8x8", "--ray", "x")
    assert result.exit_code == group.FAILED
    assert "is installed there, and 0.0.0 here" in result.stderr
    assert "no GPU is left" in result.stderr


def test_an_address_where_nothing_is(ray: Any) -> None:
    told = refused(group.NO_DEVICE, "tune", "--shape", "8x8", "--ray", "127.0.0.1:1")
    assert "no cluster of Ray can be joined at '127.0.0.1:1'" in told


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    told = refused(group.FAILED, "tune", "--shape", "8x8", "--ray", "local")
    assert "install it with `pip install '.[ray]'`" in told


@pytest.mark.parametrize(
    "words", [("--gpus", "all"), ("--shard", "0/2"), ("--candidates",)], ids=lambda words: words[0]
)
def test_what_goes_without_ray(words: tuple[str, ...]) -> None:
    told = refused(group.USAGE, "tune", "--shape", "8x8", "--ray", "local", *words)
    assert f"free GPUs of a cluster; leave out {words[0]}, or --ray" in told
