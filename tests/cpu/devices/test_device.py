"""What is said where no GPU can be used."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from softgen.devices.gpu import device


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    device.unavailable_reason.cache_clear()
    yield
    device.unavailable_reason.cache_clear()


def cupy_with(monkeypatch: pytest.MonkeyPatch, driver: int, count: Any) -> None:
    """Replace CuPy by one whose runtime answers so."""
    runtime = SimpleNamespace(driverGetVersion=lambda: driver, getDeviceCount=count)
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setattr(device, "require_cupy", lambda: cupy)


def fails() -> int:
    raise RuntimeError("cudaErrorInsufficientDriver: too old")


def test_no_driver_is_not_called_an_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy_with(monkeypatch, 0, fails)
    assert device.unavailable_reason() == (
        "no NVIDIA driver is installed here (CUDA finds no libcuda)"
    )


def test_a_driver_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy_with(monkeypatch, 11040, fails)
    assert device.unavailable_reason() == (
        "the CUDA driver does not answer: cudaErrorInsufficientDriver: too old"
    )


def test_a_driver_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy_with(monkeypatch, 13000, lambda: 0)
    assert device.unavailable_reason() == "CUDA sees no GPU"
    cupy_with(monkeypatch, 13000, lambda: 2)
    device.unavailable_reason.cache_clear()
    assert device.unavailable_reason() is None
