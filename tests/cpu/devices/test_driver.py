"""Calls of the driver by ctypes, with a function of this process in its place."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from softgen.devices.gpu import driver


def test_a_launch_gets_whole_addresses_and_returns_the_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[int | None, ...]] = []

    def record(*words: int | None) -> int:
        seen.append(words)
        return 720 if len(seen) == 2 else 0

    launch = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_void_p,) * 4)(record)
    # As a library has it: without the types of its arguments.
    address = ctypes.cast(launch, ctypes.c_void_p).value
    assert address is not None
    function = ctypes.CFUNCTYPE(ctypes.c_int)(address)
    monkeypatch.setattr(driver, "_library", lambda: SimpleNamespace(cuLaunchKernelEx=function))
    words = (0x7F12_3456_789A, 0x5512_3456_789B, 0x7FFF_FFFF_FFF0)
    go = driver.launch_of(*words)
    assert [go(), go(), go()] == [0, 720, 0]
    assert seen == [(*words, None)] * 3
