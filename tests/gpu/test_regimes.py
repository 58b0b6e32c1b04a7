"""The inputs of `softgen verify` on the GPU: every strategy and type, x and y at other offsets."""

from __future__ import annotations

import pytest

from softgen.problems.dtypes import DType
from softgen.strategies.registry import all_strategies
from softgen.verify.verify import Report, verify
from tests.mutation import subjects

pytestmark = pytest.mark.gpu


# OneFlow holds no row of float64 in registers.
CASES = [
    (kind.name, dtype)
    for dtype in DType
    for kind in all_strategies()
    if (kind.name, dtype) != ("oneflowwarp", DType.FLOAT64)
]


@pytest.mark.parametrize(
    ("strategy", "dtype"), CASES, ids=lambda value: getattr(value, "short", value)
)
def test_every_strategy_passes(strategy: str, dtype: DType) -> None:
    report = verify(device="cuda", variants=[strategy], dtypes=[dtype])
    print(f"{dtype.value}: {report.checked} checked, worst {report.worst}")
    assert report.failures == []
    assert set(report.by_strategy) == {strategy}


def test_the_emulators_twins_are_what_the_ptx_does() -> None:
    """The kernels that tests/mutation.py breaks, with all ways to load, to copy and to wait."""
    names = [source.name for source in subjects()]
    report: Report = verify(device="cuda", variants=names)
    assert report.failures == []
    assert report.checked == len(names)
