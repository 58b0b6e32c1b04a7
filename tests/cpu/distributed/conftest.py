"""Processes that are threads, for the tests of the direct exchange."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tests.helpers.emulator_helpers import share_programs


@pytest.fixture
def every(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what runs a function of (exchange, rank) in each of some processes, and the host."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    share_programs(tmp_path_factory, monkeypatch)
    return importlib.import_module("tests.cpu.distributed.hosts").processes(monkeypatch)
