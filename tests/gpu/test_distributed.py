"""softgen.distributed on two GPUs of this host, by both exchanges: a process each, over NCCL."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from softgen.devices.gpu.device import count
from tests.helpers.ranks import run_ranks

pytestmark = pytest.mark.gpu


@pytest.fixture
def on_two(tmp_path: Path, own_cache: Path) -> Callable[..., None]:
    """Return what runs a function of `distributed_bodies` in two processes."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if count() < 2:
        pytest.skip("needs two GPUs")
    if not torch.cuda.can_device_access_peer(0, 1):
        pytest.skip("needs GPUs that reach each other's memory")
    bodies = importlib.import_module("tests.gpu.distributed_bodies")

    def run(name: str, *arguments: str) -> None:
        run_ranks(2, getattr(bodies, name), tmp_path, str(own_cache), *arguments)

    return run


@pytest.mark.parametrize("exchange", ["direct", "gather"])
@pytest.mark.parametrize("body", ["right", "hidden", "graphs", "dtensors"])
def test_by_both_exchanges(body: str, exchange: str, on_two: Callable[..., None]) -> None:
    on_two(body, exchange)


def test_processes_choose_a_kernel_together(on_two: Callable[..., None]) -> None:
    on_two("tuned")


def test_a_process_that_does_not_come(on_two: Callable[..., None]) -> None:
    on_two("absent")
