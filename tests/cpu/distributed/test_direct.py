"""What the direct exchange gives, by one kernel or two, in several processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

from softgen.distributed import direct
from tests.cpu.distributed.hosts import WIDE, shards_of

WIDTHS = [(40, 37), (33, 0, 64), (200, 50), (160, 170)]


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_elements(name: str, widths: tuple[int, ...], every: Any) -> None:
    """Each process launches as it can: kernels of other widths, of none, and of one column."""
    exact, shards = shards_of(widths, torch.float32)
    results, host = every(
        len(widths), lambda exchange, rank: getattr(exchange, name)(shards[rank], torch.float32)
    )
    wanted = getattr(torch, name)(exact, -1).split(widths, -1)
    for got, right in zip(results, wanted, strict=True):
        torch.testing.assert_close(got.double(), right, rtol=3e-6, atol=3e-6, equal_nan=True)
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
    results, _ = every(len(widths), lambda exchange, rank: exchange.logsumexp(shards[rank]))
    wanted = torch.logsumexp(exact, -1)
    for got in results:
        assert torch.equal(got.nan_to_num(7), results[0].nan_to_num(7))
        torch.testing.assert_close(got.double(), wanted, rtol=3e-6, atol=3e-6, equal_nan=True)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_losses(kind: str, widths: tuple[int, ...], every: Any) -> None:
    """Targets of every process, one that is ignored, and one of nobody."""
    exact, shards = shards_of(widths, torch.float64 if kind == "int32" else torch.float32)
    cols = sum(widths)
    target = torch.tensor([0, cols - 1, widths[0], 2, 3, cols], dtype=getattr(torch, kind))
    starts = np.cumsum([0, *widths])

    def body(exchange: Any, rank: int) -> Any:
        return exchange.losses(shards[rank], target, int(starts[rank]), 2, 0.25)

    results, _ = every(len(widths), body)
    lse = torch.logsumexp(exact, -1)
    at = target.long().clamp(max=cols - 1)[:, None]
    loss = lse - exact.gather(-1, at)[:, 0] + 0.25 * lse * lse
    loss[5], loss[3] = torch.nan, 0
    lse[3] = -torch.inf
    for got, got_lse in results:
        torch.testing.assert_close(got.double(), loss, rtol=3e-6, atol=3e-6, equal_nan=True)
        torch.testing.assert_close(got_lse.double(), lse, rtol=3e-6, atol=3e-6, equal_nan=True)
        assert torch.equal(got.nan_to_num(7), results[0][0].nan_to_num(7))
