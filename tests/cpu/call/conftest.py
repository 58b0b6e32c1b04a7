"""CuPy's arrays without a GPU, for the tests of this folder that ask for it."""

from __future__ import annotations

import pytest

from tests.helpers.cupy_calls import World, on_cupy


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return on_cupy(monkeypatch)
