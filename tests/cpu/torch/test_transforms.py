"""softgen.torch under what PyTorch does to functions: transforms, checkpoints, hooks, patches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

import softgen.torch as mine  # noqa: E402
from softgen.torch.patching import SERVED  # noqa: E402

func = torch.func


def weighed(f: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda v: (f(v, -1) * torch.arange(v.shape[-1])).sum()


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_transforms_of_functions(name: str) -> None:
    ours, theirs = getattr(mine, name), getattr(torch, name)
    x = torch.randn(2, 3, 4)
    transforms: tuple[Callable[[Any], Any], ...] = (
        lambda f: func.vmap(lambda v: f(v, 0), in_dims=1)(x),
        lambda f: func.grad(weighed(f))(x),
        lambda f: func.vmap(func.grad(weighed(f)))(x),
        lambda f: func.jacrev(lambda v: f(v, -1))(x[0]),
    )
    for transform in transforms:
        torch.testing.assert_close(transform(ours), transform(theirs))


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_batched_gradients_are_those_of_torch_func(name: str) -> None:
    """The older way to batch them is PyTorch's own error: docs/pytorch.md says what to take."""
    ours, theirs = getattr(mine, name), getattr(torch, name)
    x, upstream = torch.randn(3, 4, requires_grad=True), torch.randn(5, 3, 4)
    y = theirs(x, -1)
    (wanted,) = torch.autograd.grad(y, x, upstream, is_grads_batched=True)
    _, pull = func.vjp(lambda v: ours(v, -1), x.detach())
    torch.testing.assert_close(func.vmap(pull)(upstream)[0], wanted)
    with pytest.raises(RuntimeError, match="doesn't have storage"):
        torch.autograd.grad(ours(x, -1), x, upstream, is_grads_batched=True)


def test_checkpoints_and_tensors_that_are_kept_elsewhere() -> None:
    from torch.utils.checkpoint import checkpoint

    x = torch.randn(3, 4, requires_grad=True)
    (wanted,) = torch.autograd.grad(torch.softmax(x, -1).pow(2).sum(), x)
    for _ in range(3):
        y = checkpoint(lambda t: mine.softmax(t, -1), x, use_reentrant=False)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
            z = mine.softmax(x, -1)
        for each in (y, z):
            (found,) = torch.autograd.grad(each.pow(2).sum(), x)
            torch.testing.assert_close(found, wanted)


def test_patching_twice_is_patching_once() -> None:
    functional = torch.nn.functional
    before = {name: getattr(functional, name) for name in SERVED}
    mine.patch()
    mine.patch()
    try:
        assert all(getattr(functional, name) is not before[name] for name in SERVED)
        x = torch.randn(2, 3)  # on the CPU, so PyTorch's own
        torch.testing.assert_close(functional.softmax(x, -1), torch.softmax(x, -1))
    finally:
        mine.unpatch()
    assert {name: getattr(functional, name) for name in SERVED} == before
