"""A few random calls of each function beside PyTorch's: `python -m tests.torch_calls` has more."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

from tests.torch_calls import NAMES, SEED, Report, calls

CALLS = range(100)


@pytest.mark.parametrize("name", NAMES)
def test_random_calls_are_pytorchs(name: str) -> None:
    report = Report()
    calls(report, CALLS, SEED, "cpu", (name,))
    print(report)
    assert not report.wrong, "\n".join(report.wrong)
    assert report.served[name] >= 0.8 * len(CALLS)
    assert report.gradients[name] >= 0.4 * len(CALLS)
