"""Shared set-up: no test touches the user's cache, and GPU tests say why they are skipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from softgen.device import unavailable_reason


def pytest_xdist_auto_num_workers() -> int:
    """Emulator and compiler tests keep a core busy each; more than four gain little."""
    return min(4, os.cpu_count() or 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    for item in gpu:  # one process on the GPU: the large shapes fill its memory
        item.add_marker(pytest.mark.xdist_group("gpu"))
    reason = unavailable_reason() if gpu else None
    if reason is not None:
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {reason}"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test an empty cache folder and none of the user's settings."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", str(folder))
    for name in ("SOFTGEN_TUNE", "SOFTGEN_TUNE_BUDGET", "SOFTGEN_BATCH_INVARIANT"):
        monkeypatch.delenv(name, raising=False)
    return folder
