"""Processes that are threads, for the tests of the direct exchange."""

from __future__ import annotations

import importlib
from typing import Any

import pytest


@pytest.fixture
def every(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what runs a function of (exchange, rank) in each of some processes, and the host."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    return importlib.import_module("tests.cpu.distributed.hosts").processes(monkeypatch)
