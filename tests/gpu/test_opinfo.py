"""PyTorch's own samples of softmax, log_softmax and logsumexp, forward and backward."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # which PyTorch's tests import

import softgen.torch  # noqa: E402
from softgen.errors import SoftgenError  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def no_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape of its own each, which would be tuned for up to 2 s."""
    monkeypatch.setenv("SOFTGEN_TUNE", "off")


NAMES = ("softmax", "log_softmax", "logsumexp")
DTYPES = ("float16", "bfloat16", "float32", "float64")


@pytest.mark.parametrize("name", NAMES)
def test_samples_agree_within_pytorchs_tolerances(name: str) -> None:
    with warnings.catch_warnings():  # of what PyTorch's tests import
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db

    counts: Counter[str] = Counter()
    for operation in op_db:
        if operation.name != name:
            continue
        for dtype in map(lambda each: getattr(torch, each), DTYPES):
            for sample in operation.sample_inputs("cuda", dtype, requires_grad=True):
                counts[_outcome(name, sample)] += 1
    print(name, dict(counts))
    assert set(counts) == {"served"}
    assert counts["served"] >= 20


def _outcome(name: str, sample: Any) -> str:
    """Compare one sample, and return what became of it.

    Of 16 bits PyTorch's gradients are too coarse to be compared with: of its logsumexp they are off
    by 6%, since the result that they start from is rounded. So it computes those in float32.
    """
    mine, theirs = getattr(softgen.torch, name), getattr(torch, name)
    x = sample.input.detach()
    half = x.dtype in (torch.float16, torch.bfloat16)
    x = (x.float() if half else x.clone()).requires_grad_()
    try:
        ours = mine(sample.input, *sample.args, **sample.kwargs)
    except SoftgenError as error:
        return f"refused: {error}"
    wanted = theirs(x, *sample.args, **sample.kwargs).to(ours.dtype)
    torch.testing.assert_close(ours, wanted)
    dy = torch.randn_like(wanted)
    (ours_dx,) = torch.autograd.grad(ours, sample.input, dy)
    (dx,) = torch.autograd.grad(wanted, x, dy)
    if half:  # y, which the gradient starts from, is rounded, and terms cancel
        torch.testing.assert_close(ours_dx, dx.to(ours_dx.dtype), rtol=0.016, atol=0.02)
    elif ours.dtype is torch.float32:
        torch.testing.assert_close(ours_dx, dx, rtol=1.3e-6, atol=1e-5)
    else:
        torch.testing.assert_close(ours_dx, dx)
    return "served"
