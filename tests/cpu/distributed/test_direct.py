"""What the direct exchange gives, by one kernel or two, in several processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

from softgen.distributed import direct, operators
from softgen.errors import CaptureError
from tests.cpu.distributed.hosts import ROOM, WIDE, here, shards_of

WIDTHS = [(40, 37), (33, 0, 64, 20), (200, 50), (160, 170)]


def close(got: Any, right: Any, bound: float = 3e-6) -> None:
    torch.testing.assert_close(got.double(), right, rtol=bound, atol=bound, equal_nan=True)


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_elements(name: str, widths: tuple[int, ...], every: Any) -> None:
    """Each process launches as it can: kernels of other widths, of none, and of one column."""
    exact, shards = shards_of(widths, torch.float32)
    upstream = torch.randn(exact.shape, generator=torch.Generator().manual_seed(2))
    of_shards = upstream.split(widths, -1)

    def body(exchange: Any, rank: int) -> Any:
        x = shards[rank].requires_grad_()
        y = operators.softmax(x, torch.float32, name == "log_softmax", "")
        return y.detach(), *torch.autograd.grad(y, x, of_shards[rank])

    results, host = every(len(widths), body)
    y = getattr(torch, name)(exact.requires_grad_(), -1)
    (dx,) = torch.autograd.grad(y, exact, upstream.double())
    for i, right in enumerate((y.detach(), dx)):
        for got, wanted in zip(results, right.split(widths, -1), strict=True):
            close(got[i], wanted)
    for names, width in zip(host.launched, widths, strict=True):
        (launched,) = names
        assert launched.startswith("merge_f32_1_sharded" if width >= WIDE else f"{name}_f32_")


@pytest.fixture(params=[direct.TWO_KERNELS, 0], ids=["one", "two"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel, or two."""
    monkeypatch.setattr(direct, "TWO_KERNELS", request.param)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_logsumexp(widths: tuple[int, ...], every: Any) -> None:
    exact, shards = shards_of(widths, torch.bfloat16)
    upstream = torch.linspace(-1, 2, len(exact))

    def body(exchange: Any, rank: int) -> Any:
        x = shards[rank].requires_grad_()
        lse = operators.logsumexp(x, "")
        return lse.detach(), *torch.autograd.grad(lse, x, upstream)

    results, _ = every(len(widths), body)
    wanted = torch.logsumexp(exact.requires_grad_(), -1)
    (dx,) = torch.autograd.grad(wanted, exact, upstream.double())
    sure = wanted.isfinite()  # else PyTorch's gradient is NaN or 0, by its version
    for (got, got_dx), right in zip(results, dx.split(widths, -1), strict=True):
        assert torch.equal(got.nan_to_num(7), results[0][0].nan_to_num(7))
        close(got, wanted.detach())
        close(got_dx[sure], right[sure], 8e-3)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_losses(kind: str, widths: tuple[int, ...], every: Any) -> None:
    """Targets of every process, one that is ignored, and one of nobody."""
    exact, shards = shards_of(widths, torch.float64 if kind == "int32" else torch.float32)
    cols = sum(widths)
    targets = [0, cols - 1, widths[0], 2, 3, cols, 1, cols // 2]
    target = torch.tensor(targets, dtype=getattr(torch, kind))
    starts = np.cumsum([0, *widths])
    upstream = torch.linspace(-1, 2, len(exact), dtype=shards[0].dtype)

    def body(exchange: Any, rank: int) -> Any:
        x = shards[rank].requires_grad_()
        loss, lse = operators.losses(x, target, int(starts[rank]), -1, 2, 0.0, 0.25, False, "")
        return loss.detach(), lse, *torch.autograd.grad(loss, x, upstream)

    results, _ = every(len(widths), body)
    lse = torch.logsumexp(exact, -1)
    at = target.long().clamp(max=cols - 1)[:, None]
    loss = lse - exact.gather(-1, at)[:, 0] + 0.25 * lse * lse
    hot = torch.zeros_like(exact).scatter_(-1, at, 1)
    dx = (torch.exp(exact - lse[:, None]) * (1 + 0.5 * lse[:, None]) - hot) * upstream[:, None]
    dx[~lse.isfinite()] = torch.nan
    loss[5], dx[5], loss[3], dx[3] = torch.nan, torch.nan, 0, 0
    lse[3] = -torch.inf
    for (got, got_lse, got_dx), right in zip(results, dx.split(widths, -1), strict=True):
        close(got, loss)
        close(got_lse, lse)
        close(got_dx, right, 3e-6 * 120)  # lse is rounded at 120
        assert torch.equal(got.nan_to_num(7), results[0][0].nan_to_num(7))


def test_a_capture_makes_no_mailboxes(every: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a call before it chose a kernel, and had no memory for them."""
    asked: list[int] = []  # for room, by all processes

    def mailboxes(group: Any, device: Any, room: int, seconds: float) -> Any:
        asked.append(room)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(direct, "Mailboxes", mailboxes)
    monkeypatch.setattr(direct, "patience_of", lambda group: 1.0)
    monkeypatch.setattr(
        "torch.cuda.is_current_stream_capturing", lambda: getattr(here, "captures", False)
    )

    def body(exchange: Any, rank: int) -> Any:
        x = torch.zeros(ROOM + 1, 40)
        with pytest.raises(RuntimeError, match="out of memory"):
            exchange.softmax(x, torch.float32)
        here.captures = True
        with pytest.raises(CaptureError, match="no mailboxes for so many rows yet, and cannot be"):
            exchange.softmax(x, torch.float32)

    _, host = every(2, body)
    assert len(asked) == 2
    assert min(asked) > ROOM
    assert host.launched == [[], []]
