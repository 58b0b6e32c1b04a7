"""Gradients of softgen.torch.softmax with hooks, against PyTorch's own in float64."""

from __future__ import annotations

from typing import Any

import pytest

import softgen
from softgen.errors import NotSupportedError
from softgen.problems.hooks.dropout import bits_of, kept_scale_of, threshold_of

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

SHAPE = BATCH, HEADS, QUERIES, KEYS = 2, 3, 5, 264


@pytest.fixture(autouse=True)
def untuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTGEN_TUNE", "off")


def leaf(*shape: int, dtype: Any = None) -> Any:
    made = torch.randn(shape, device="cuda", dtype=dtype or torch.float32)
    return made.requires_grad_()


def usual(x: Any, given: dict[str, Any]) -> Any:
    """Return what PyTorch's operations give in float64."""
    z, scale, c = x.double(), given.get("scale"), given.get("softcap")
    if scale is not None:
        z = z * (scale.double()[..., None] if isinstance(scale, torch.Tensor) else scale)
    if c is not None:
        z = c * torch.tanh(z / c)
    if (bias := given.get("bias")) is not None:
        z = z + bias.double()
    if (mask := given.get("mask")) is not None:
        z = z.masked_fill(~mask, -torch.inf)
    columns = torch.arange(KEYS, device="cuda")
    if (lengths := given.get("lengths")) is not None:
        z = z.masked_fill(columns >= lengths[..., None], -torch.inf)
    if given.get("causal"):
        last = torch.arange(QUERIES, device="cuda")[:, None] + KEYS - QUERIES
        z = z.masked_fill(columns > last, -torch.inf)
    if (sink := given.get("sink")) is not None:
        z = torch.cat((z, sink.double().expand(SHAPE[:-1])[..., None]), -1)
    y = torch.softmax(z, -1)[..., :KEYS] * given.get("out_scale", 1.0)
    if p := given.get("dropout"):
        import numpy as np

        dropped = threshold_of(p)
        numbers = np.arange(x.numel(), dtype=np.uint64)
        kept = bits_of(numbers, given["seed"], 0).reshape(SHAPE) >= dropped
        y = y * torch.from_numpy(kept).cuda() * kept_scale_of(dropped)
    return y


def cases() -> list[dict[str, Any]]:
    return [
        {"scale": -0.5},
        {"scale": leaf(HEADS, 1), "mask": torch.rand(BATCH, 1, 1, KEYS, device="cuda") < 0.7},
        {"softcap": 2.0, "scale": leaf(BATCH, 1, 1)},
        {"bias": leaf(HEADS, 1, KEYS), "causal": True},
        {"sink": leaf(HEADS, 1), "lengths": torch.tensor([[[7]], [[KEYS]]], device="cuda")},
        {"dropout": 0.3, "seed": 5, "out_scale": 2.0, "sink": leaf(HEADS, 1), "bias": leaf(KEYS)},
    ]


@pytest.mark.parametrize("number", range(6))
def test_gradients_are_pytorchs(number: int) -> None:
    torch.manual_seed(number)
    given, x = cases()[number], leaf(*SHAPE)
    dy = torch.randn_like(x)
    leaves = [x, *(t for t in given.values() if getattr(t, "requires_grad", False))]
    wanted = torch.autograd.grad(usual(x, given), leaves, dy.double())
    y = softgen.torch.softmax(x, -1, **given)
    found = torch.autograd.grad(y, leaves, dy)
    compiled = torch.compile(
        lambda x: softgen.torch.softmax(x, -1, **given), fullgraph=True, backend="aot_eager"
    )
    again = torch.autograd.grad(compiled(x), leaves, dy)
    for one, other, exact in zip(found, again, wanted, strict=True):
        size = float(exact.abs().max())
        torch.testing.assert_close(one.double(), exact.double(), rtol=1e-4, atol=1e-5 * size)
        torch.testing.assert_close(other, one, rtol=0, atol=1e-5 * size)


def test_16_bit_gradients_and_types() -> None:
    x, bias = leaf(*SHAPE, dtype=torch.bfloat16), leaf(KEYS, dtype=torch.float16)
    given = {"bias": bias, "scale": 0.5, "dropout": 0.25, "seed": 2**64 - 1}
    y = softgen.torch.softmax(x, -1, dtype=torch.float32, **given)
    dy = torch.randn_like(y)
    dx, dbias = torch.autograd.grad(y, (x, bias), dy)
    assert (dx.dtype, dbias.dtype) == (torch.bfloat16, torch.float16)
    exact = torch.autograd.grad(usual(x, {**given, "seed": -1}), (x, bias), dy.double())
    torch.testing.assert_close(dx.double(), exact[0].double(), rtol=2e-2, atol=2e-4)
    torch.testing.assert_close(dbias.double(), exact[1].double(), rtol=2e-2, atol=2e-3)


def test_without_gradients_it_is_the_call_and_twice_is_refused() -> None:
    x = leaf(*SHAPE)
    y = softgen.torch.softmax(x.detach(), -1, causal=True)
    assert torch.equal(y, softgen.softmax(x.detach(), causal=True))
    z = softgen.torch.softmax(x, -1, causal=True)
    (dx,) = torch.autograd.grad(z.square().sum(), x, create_graph=True)
    with pytest.raises(NotSupportedError, match="with hooks is not differentiable again"):
        dx.sum().backward()
    ends = {"causal": True, "causal_offset": 0}  # by default most of the rows see nothing
    moved = softgen.torch.softmax(x.detach().movedim(1, -1), -1, **ends).movedim(-1, 1)
    along = softgen.torch.softmax(x.detach(), 1, **ends)
    torch.testing.assert_close(along, moved, rtol=1e-5, atol=1e-6)
