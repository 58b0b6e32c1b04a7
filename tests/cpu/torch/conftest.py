"""softgen.torch on CPU tensors, for all tests of this folder, which are skipped without PyTorch."""

from __future__ import annotations

import pytest

from tests.helpers.torch_calls import World, on_cpu


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return on_cpu(monkeypatch)
