"""A small part of the differential run on a GPU: `python -m tests.differential --device cuda`."""

from __future__ import annotations

import pytest

from softgen.devices.gpu.device import arch_of
from tests.differential.__main__ import SEED
from tests.differential.cases import kernel
from tests.differential.run import Report, differential, public_calls

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")

KERNELS, CALLS = range(0, 360, 15), range(60)


def test_drawn_kernels_are_right() -> None:
    from tests.differential.on_gpu import Gpu

    arch, report = arch_of(cupy.cuda.Device().id), Report()
    drawn = [kernel(SEED, number, arch) for number in KERNELS]
    differential(report, 0, SEED, arch, runner=Gpu, drawn=drawn)
    print(report)
    assert report.results >= 150
    assert not report.wrong, "\n".join(report.wrong)


def test_drawn_calls_are_right() -> None:
    from tests.differential.calls import Cupy

    report = Report()
    public_calls(report, CALLS, SEED, Cupy())
    assert report.refused < report.calls / 10
    assert not report.wrong, "\n".join(report.wrong)
