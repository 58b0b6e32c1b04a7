"""Functions of softgen.torch with hooks and their gradients, against PyTorch's in float64."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import softgen.torch as mine  # noqa: E402
from tests.helpers.hooked_losses import (  # noqa: E402
    COLS,
    FUNCTIONS,
    HOOKS,
    ROWS,
    TARGET,
    drawn,
    given_of,
    hooked,
    on,
    with_gradients,
)

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]  # of PyTorch's own code


@pytest.fixture(autouse=True)
def untuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTGEN_TUNE", "off")


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("asked", [HOOKS, ("softcap",), ("bias", "mask")], ids="_".join)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name: str, asked: tuple[str, ...], compiled: bool) -> None:
    ours, theirs, takes_sink = FUNCTIONS[name]
    torch._dynamo.reset()
    hooks = tuple(each for each in asked if takes_sink or each != "sink")
    x, given = on("cuda", drawn(ROWS, COLS), given_of(hooks))

    def run(x: Any, hooks: dict[str, Any]) -> Any:
        return ours(x, **hooks)

    if compiled:
        run = torch.compile(run, fullgraph=True)
    found = with_gradients(run, x, given)
    wanted = with_gradients(lambda x, hooks: theirs(hooked(x, hooks), hooks.get("sink")), x, given)
    for got, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_overwritten_logits_are_their_gradient(dtype: Any) -> None:
    x = torch.randn(4, 32000, device="cuda", dtype=dtype)
    target, kept = TARGET.cuda(), x.clone().requires_grad_()
    logits = kept * 1
    loss = mine.cross_entropy(logits, target, overwrite=True, dtype=torch.float32)
    (dx,) = torch.autograd.grad(loss, kept)
    exact = kept.detach().double().requires_grad_()
    wanted = torch.nn.functional.cross_entropy(exact, target)
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-5, atol=1e-5)
    (right,) = torch.autograd.grad(wanted, exact)
    close = {"rtol": 1e-2 if dtype is torch.bfloat16 else 1e-4, "atol": 1e-6}
    torch.testing.assert_close(dx.double(), right, **close)
    torch.testing.assert_close(logits.detach(), dx)
