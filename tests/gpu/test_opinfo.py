"""PyTorch's own samples of softmax and its kin: what is served, copied first and refused."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # which PyTorch's tests import

import softgen  # noqa: E402
import softgen.torch  # noqa: E402
from softgen.call.torch_library import TorchLibrary  # noqa: E402
from softgen.errors import NotSupportedError, SoftgenError  # noqa: E402

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
DTYPES = ("float16", "bfloat16", "float32", "float64")
HALVES = (torch.float16, torch.bfloat16)
SERVED, COPIED = "served", "copied first"


@pytest.fixture(autouse=True)
def no_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape of its own each, which would be tuned for up to 2 s."""
    monkeypatch.setenv("SOFTGEN_TUNE", "off")


@dataclass(frozen=True)
class Operation:
    """What softgen computes for the samples of one of PyTorch's operations.

    Attributes:
        mine: takes what the operation takes.
        backward: samples whose gradients, with respect to the input, kernels serve without a copy,
            at least, of all types; 0 where none are compared.
        served: the same of the operation itself.
        copied: samples that are copied first, at least.
        refused: how the reason for which some are refused begins; "" where none is.
    """

    mine: Callable[..., Any]
    backward: int
    served: int
    copied: int = 0
    refused: str = ""


def _masked(name: str) -> Callable[..., Any]:
    """Return a function of torch.masked by softgen's; an axis that takes no mask is moved last."""
    function = getattr(softgen, name)

    def call(x: Any, dim: int, *, mask: Any = None, dtype: Any = None) -> Any:
        x = x.detach()
        if mask is None:
            return function(x, dim, dtype=dtype)
        whole = mask.expand(x.shape)
        try:
            return function(x, dim, dtype=dtype, mask=whole)
        except NotSupportedError:
            moved = function(x.movedim(dim, -1), dtype=dtype, mask=whole.movedim(dim, -1))
            return moved.movedim(-1, dim)

    return call


def _backward(dy: Any, y: Any, dim: int, dtype: Any) -> Any:
    return softgen.softmax_backward(dy.detach(), y.detach(), dim, dtype=dtype)


OPERATIONS = {
    "softmax": Operation(softgen.torch.softmax, 40, 40),
    "log_softmax": Operation(softgen.torch.log_softmax, 40, 40),
    "logsumexp": Operation(softgen.torch.logsumexp, 30, 40),
    "_softmax_backward_data": Operation(_backward, 0, 4, refused="refused: y must be float32"),
    "nn.functional.cross_entropy": Operation(softgen.torch.cross_entropy, 24, 24, 4),
    "masked.softmax": Operation(_masked("softmax"), 0, 20, 4),
    "masked.log_softmax": Operation(_masked("log_softmax"), 0, 20, 4),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_samples_agree_within_pytorchs_tolerances(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warnings.catch_warnings():  # of what PyTorch's tests import
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db

    copies = _count_copies(monkeypatch)
    counts: Counter[str] = Counter()
    of_gradients: Counter[str] = Counter()
    for operation in op_db:
        if operation.name != name:
            continue
        for dtype in map(lambda each: getattr(torch, each), DTYPES):
            if dtype in operation.supported_dtypes(DEVICE):
                for sample in operation.sample_inputs(DEVICE, dtype, requires_grad=True):
                    copies.clear()
                    forward, backward = _outcome(name, operation.op, sample, copies)
                    counts[forward] += 1
                    of_gradients[backward] += 1
    wanted = OPERATIONS[name]
    print(_counted(f"{name}, forward", counts))  # pytest -rA shows it
    if wanted.backward:
        print(_counted(f"{name}, backward", of_gradients))
        assert of_gradients[SERVED] >= wanted.backward
    refused = {reason for reason in counts if reason not in (SERVED, COPIED)}
    assert all(wanted.refused and each.startswith(wanted.refused) for each in refused), refused
    assert bool(refused) is bool(wanted.refused)
    assert counts[SERVED] >= wanted.served
    assert counts[COPIED] >= wanted.copied


def _counted(title: str, counts: Counter[str]) -> str:
    """Return the three counts as a line, and a line for each reason of a refusal."""
    reasons = {key: n for key, n in counts.items() if key not in (SERVED, COPIED)}
    line = (
        f"{title}: {counts[SERVED]} served by kernels, {counts[COPIED]} copied first, "
        f"{sum(reasons.values())} refused"
    )
    return "\n".join([line, *(f"    {n} {reason}" for reason, n in reasons.items())])


def _count_copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets a name for each array that softgen copies."""
    copies: list[str] = []
    contiguous, copy = TorchLibrary.contiguous, TorchLibrary.copy

    def seen_contiguous(self: Any, x: Any) -> Any:
        if not x.is_contiguous():
            copies.append("contiguous")
        return contiguous(self, x)

    def seen_copy(self: Any, x: Any) -> Any:
        copies.append("copy")
        return copy(self, x)

    monkeypatch.setattr(TorchLibrary, "contiguous", seen_contiguous)
    monkeypatch.setattr(TorchLibrary, "copy", seen_copy)
    return copies


def _outcome(
    name: str, theirs: Callable[..., Any], sample: Any, copies: list[str]
) -> tuple[str, str]:
    """Compare one sample, and return what became of it, forward and backward.

    Of 16 bits PyTorch's gradients are too coarse to be compared with: of its logsumexp they are off
    by 6%, since the result that they start from is rounded. So it computes those in float32.
    """
    mine = OPERATIONS[name]
    x = _wide(sample.input.detach()).requires_grad_()
    try:
        ours = mine.mine(sample.input, *sample.args, **sample.kwargs)
    except SoftgenError as error:
        return f"refused: {error}", "refused as forward is"
    became = COPIED if copies else SERVED
    given = [_wide(each) for each in sample.args]
    wanted = theirs(x, *given, **{key: _wide(each) for key, each in sample.kwargs.items()})
    half = sample.input.dtype in HALVES
    torch.testing.assert_close(ours, wanted.to(ours.dtype), equal_nan=True)
    if not mine.backward:
        return became, became
    dy = torch.randn_like(wanted)
    copies.clear()
    (ours_dx,) = torch.autograd.grad(ours, sample.input, dy.to(ours.dtype))
    after = COPIED if copies else SERVED
    (dx,) = torch.autograd.grad(wanted, x, dy.to(ours.dtype).to(wanted.dtype))
    if half:  # y, which the gradient starts from, is rounded, and terms cancel
        torch.testing.assert_close(ours_dx, dx.to(ours_dx.dtype), rtol=0.016, atol=0.02)
    elif ours.dtype is torch.float32:
        torch.testing.assert_close(ours_dx, dx, rtol=1.3e-6, atol=1e-5)
    else:
        torch.testing.assert_close(ours_dx, dx)
    return became, after


def _wide(value: Any) -> Any:
    """Return a tensor of 16 bits in float32, and their dtype as that; else a copy, or itself."""
    if not isinstance(value, torch.Tensor):
        return torch.float32 if value in HALVES else value
    return value.detach().float() if value.dtype in HALVES else value.detach().clone()
