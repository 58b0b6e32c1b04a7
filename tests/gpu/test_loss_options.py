"""What cross entropy takes beside class indices, and losses of hidden states, against float64."""

from __future__ import annotations

from typing import Any

import pytest

import softgen

torch = pytest.importorskip("torch")

import softgen.torch as mine  # noqa: E402

pytestmark = pytest.mark.gpu

F = torch.nn.functional
ROWS = 9


@pytest.fixture(autouse=True)
def untuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTGEN_TUNE", "off")


def near(dtype: Any) -> dict[str, float]:
    return {"rtol": 1e-2, "atol": 1e-4} if dtype.itemsize == 2 else {"rtol": 1e-4, "atol": 1e-6}


def drawn(cols: int, dtype: Any) -> tuple[Any, Any, Any]:
    torch.manual_seed(cols)
    x = (torch.randn(ROWS, cols, device="cuda") * 3).to(dtype).requires_grad_()
    target = torch.randint(cols, (ROWS,), device="cuda")
    target[4] = -100
    return x, target, torch.rand(cols, device="cuda") + 0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("cols", [7, 1000, 8193, 50257])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("kind", ["smooth", "weight", "both", "probabilities"])
def test_values_and_gradients(kind: str, reduction: str, cols: int, dtype: Any) -> None:
    x, target, weight = drawn(cols, dtype)
    options: dict[str, Any] = {"reduction": reduction}
    if kind in ("weight", "both"):
        options["weight"] = weight
    if kind in ("smooth", "both"):
        options["label_smoothing"] = 0.2
    given: Any = target
    if kind == "probabilities":
        given = torch.softmax(torch.randn(ROWS, cols, device="cuda"), -1).to(dtype)
    wide = x.detach().double().requires_grad_()
    wanted = F.cross_entropy(
        *(wide, given if given is target else given.double()),
        **{name: each.double() if name == "weight" else each for name, each in options.items()},
    )
    loss = mine.cross_entropy(x, given, dtype=torch.float32, **options)
    torch.testing.assert_close(loss.double(), wanted, rtol=2e-5, atol=2e-5)
    up = torch.rand_like(wanted) + 0.5
    (dx,) = torch.autograd.grad(loss, x, up.to(loss.dtype))
    (right,) = torch.autograd.grad(wanted, wide, up)
    torch.testing.assert_close(dx.double(), right, **near(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("cols", [1000, 50257])
@pytest.mark.parametrize("hooks", [{}, {"softcap": 5.0}, {"scale": 0.5, "softcap": 2.0}])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradients_in_one_pass(
    dtype: Any, cols: int, hooks: dict[str, Any], smoothing: float
) -> None:
    """In the place of the logits, with upstreams of rows, and with respect to x."""
    x, target, _ = drawn(cols, dtype)
    up = torch.rand(ROWS, device="cuda") + 0.5
    wide = x.detach().double().requires_grad_()
    z = wide * hooks.get("scale", 1.0)
    if "softcap" in hooks:
        z = hooks["softcap"] * torch.tanh(z / hooks["softcap"])
    rows = F.cross_entropy(z, target, reduction="none", label_smoothing=smoothing)
    rows = rows + 1e-3 * (target != -100) * z.logsumexp(-1).square()
    (right,) = torch.autograd.grad(rows, wide, up.double())
    memory = x.detach().clone()
    request: dict[str, Any] = {"label_smoothing": smoothing, "z_loss": 1e-3, **hooks}
    dx, loss, lse = softgen.cross_entropy_grad(memory, target, up, out=memory, **request)
    assert dx is memory
    torch.testing.assert_close(loss.double(), rows.detach(), rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(dx.double(), right, **near(dtype))
    again = softgen.cross_entropy_backward(x.detach(), target, lse, up, **request)
    torch.testing.assert_close(again.double(), right, **near(dtype))


@pytest.mark.parametrize("mode", ["fast", "lean"])
@pytest.mark.parametrize("cols", [1003, 4096])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("smoothed", [False, True])
def test_losses_of_hidden_states(mode: str, cols: int, dtype: Any, smoothed: bool) -> None:
    """Of smoothed weights with a softcap too, which PyTorch does."""
    torch.manual_seed(0)
    x = torch.randn(257, 64, device="cuda").to(dtype).requires_grad_()
    weight = (torch.randn(cols, 64, device="cuda") / 8).to(dtype).requires_grad_()
    target = torch.randint(cols, (257,), device="cuda")
    target[::7] = -100
    wide = [each.detach().double().requires_grad_() for each in (x, weight)]
    logits, options = F.linear(*wide), {}
    if smoothed:
        logits = 3 * torch.tanh(logits / 3)
        of_classes = torch.arange(cols, device="cuda").double() / cols
        options = {"weight": of_classes, "label_smoothing": 0.1}
    wanted = F.cross_entropy(logits, target, **options)
    softcap = 3.0 if smoothed else None
    loss = mine.linear_cross_entropy(x, weight, target, mode=mode, softcap=softcap, **options)
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype.itemsize == 2 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(loss.double(), wanted, **close)
    for _ in range(2):
        found = torch.autograd.grad(loss, (x, weight), retain_graph=True)
        rights = torch.autograd.grad(wanted, wide, retain_graph=True)
        for got, right in zip(found, rights, strict=True):
            size = float(right.abs().max())
            torch.testing.assert_close(got.double(), right, rtol=0, atol=close["atol"] * size)
