"""A call like the last one is known by one comparison, in whatever state its thread is."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

import softgen.torch as mine  # noqa: E402
from softgen.call.eager import is_launchable  # noqa: E402
from softgen.torch.operators import Softmax, SoftmaxBackward  # noqa: E402


def asks(call: Callable[[], Any]) -> int:
    """Return how often a call that follows three like it asks what tensors are: it takes 2 us."""
    for _ in range(3):
        call()
    asked = 0

    def seen(frame: FrameType, event: str, _: Any) -> None:
        nonlocal asked
        asked += event == "call" and frame.f_code is is_launchable.__code__

    sys.setprofile(seen)
    try:
        call()
    finally:
        sys.setprofile(None)
    return asked


STATES: dict[str, Callable[[], Any]] = {
    "autocast": lambda: torch.autocast("cpu"),
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "none": contextlib.nullcontext,
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("tracked", [False, True])
def test_in_any_state_of_the_thread(state: str, tracked: bool) -> None:
    plain = torch.randn(3, 4)
    x = plain.clone().requires_grad_(tracked)
    mine.softmax(plain, -1)  # the first of the shape
    with STATES[state]():
        assert not asks(lambda: mine.softmax(x, -1))
        torch.testing.assert_close(mine.softmax(x, -1), torch.softmax(x, -1))
    assert not asks(lambda: mine.softmax(plain, -1))


@pytest.mark.filterwarnings("ignore")  # of PyTorch's own code
@pytest.mark.parametrize("tracked", [False, True])
def test_in_compiled_code(tracked: bool) -> None:
    """Its first call finds its thread in another state than those that follow."""
    x = torch.randn(3, 4, requires_grad=tracked)
    compiled = torch.compile(lambda x: mine.softmax(x, -1), backend="aot_eager", fullgraph=True)
    assert not asks(lambda: compiled(x))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda x: mine.softmax(x, -1),
    "log_softmax": lambda x: mine.log_softmax(x, -1),
    "logsumexp": lambda x: mine.logsumexp(x, -1),
    "entropy": lambda x: mine.entropy(x, -1),
    "token_log_probs": lambda x: mine.token_log_probs(x, torch.ones(3, dtype=torch.int64)),
    "cross_entropy": lambda x: mine.cross_entropy(x, torch.ones(3, dtype=torch.int64)),
}


@pytest.mark.parametrize("expanded", [False, True], ids=["dense", "of a sum"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_with_its_gradient(name: str, expanded: bool) -> None:
    x = torch.randn(3, 4, requires_grad=True)

    def step() -> None:
        y = FUNCTIONS[name](x)
        y.sum().backward() if expanded else y.backward(torch.ones_like(y))

    assert not asks(step)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_an_operator_without_a_dtype_gives_that_of_its_input(dtype: Any) -> None:
    x = torch.randn(3, 4).to(dtype)
    y = Softmax.operator(x, -1, None, None)
    assert y.dtype is dtype
    torch.testing.assert_close(y, torch.softmax(x.float(), -1).to(dtype), rtol=1e-3, atol=1e-3)
    assert SoftmaxBackward.operator(y, y, -1, None, None).dtype is dtype
    assert Softmax.operator(x.to("meta"), -1, None, None).dtype is dtype
