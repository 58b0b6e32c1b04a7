"""The inputs of `softgen verify` on the GPU: every strategy and type, x and y at other offsets."""

from __future__ import annotations

import pytest

from softgen.spec.dtypes import DType
from softgen.strategies.registry import all_strategies
from softgen.verify.verify import Report, verify
from tests.mutation import subjects

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.short)
def test_every_strategy_passes(dtype: DType) -> None:
    report = verify(device="cuda", dtypes=[dtype])
    print(f"{dtype.value}: {report.checked} checked, {report.by_strategy}, worst {report.worst}")
    assert report.failures == []
    # OneFlow holds no row of float64 in registers.
    absent = {"oneflowwarp"} if dtype is DType.FLOAT64 else set()
    assert set(report.by_strategy) == {kind.name for kind in all_strategies()} - absent


def test_the_emulators_twins_are_what_the_ptx_does() -> None:
    """The kernels that tests/mutation.py breaks, with all ways to load, to copy and to wait."""
    names = [source.name for source in subjects()]
    report: Report = verify(device="cuda", variants=names)
    assert report.failures == []
    assert report.checked == len(names)
