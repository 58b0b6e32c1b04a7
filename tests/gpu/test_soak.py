"""A soak on a GPU, whose memory the driver counts: SOFTGEN_SOAK_CALLS says of how many calls."""

from __future__ import annotations

import os

import pytest

from tests.soak.run import EVERY, Place, soak

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")

COUNT = int(os.environ.get("SOFTGEN_SOAK_CALLS", 100 * EVERY))
KINDS = 60  # each takes a kernel or two of its own, 0.2 s to compile


def right(place: Place) -> None:
    report = soak(place, COUNT, kinds=KINDS)
    print(report)
    assert report.wrong == []
    assert report.checked >= KINDS + COUNT // EVERY


def test_calls_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.soak.of_cupy import CupyOnGpu

    right(CupyOnGpu(monkeypatch))


def test_softgen_torchs_calls_and_gradients_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    from tests.soak.of_torch import TorchOnGpu

    right(TorchOnGpu(monkeypatch))
