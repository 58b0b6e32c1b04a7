"""A few seconds of `python -m tests.soak`, and that it sees what it looks for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.differential.storage import Stored
from tests.soak import run
from tests.soak.of_cupy import CupyStandIn
from tests.soak.run import soak

EVERY, KINDS = 200, 15
COUNT = 3 * EVERY


def test_calls_are_right_and_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    report = soak(CupyStandIn(monkeypatch), COUNT, kinds=KINDS, every=EVERY)
    print(report)
    assert report.wrong == []
    assert report.checked >= KINDS + COUNT // EVERY
    assert report.entries > 5
    assert [each.calls for each in report.taken] == [EVERY, 2 * EVERY, 3 * EVERY]


def test_softgen_torchs_calls_and_gradients_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="softgen.torch needs PyTorch")
    from tests.soak.of_torch import TorchStandIn

    report = soak(TorchStandIn(monkeypatch), COUNT, kinds=KINDS, every=EVERY)
    print(report)
    assert report.wrong == []


class Leaking(CupyStandIn):
    """Keeps every result that is looked at, and more."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(patch)
        self.kept: list[Any] = []

    def host(self, array: Any) -> Stored:
        self.kept.append((array, *([] for _ in range(10))))
        return super().host(array)


def test_what_is_kept_of_calls_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MOST_CALLS", 3)
    report = soak(Leaking(monkeypatch), COUNT, kinds=KINDS, every=EVERY)
    grown = {line.split()[0] for line in report.wrong}
    assert {"blocks", "device", str(report.entries)} <= grown, report.wrong


class Wrong(CupyStandIn):
    """Adds a step to one element of results of 64 bits."""

    def host(self, array: Any) -> Stored:
        stored = super().host(array).copy()
        if stored.dtype.itemsize == 8 and stored.size:
            stored.reshape(-1)[0] += 1
        return stored


def test_a_value_that_is_wrong_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    report = soak(Wrong(monkeypatch), COUNT, kinds=KINDS, every=EVERY)
    assert report.wrong
    assert all(": call " in line for line in report.wrong)
