"""Entropies and log-probabilities of tokens: launches counted, and the values of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

import softgen.torch as mine  # noqa: E402
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError  # noqa: E402
from tests.helpers.torch_calls import World  # noqa: E402

Request = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]


def their_entropy(x: Any, dim: int = -1) -> Any:
    log_p = torch.log_softmax(x, dim)
    return -(log_p.exp() * log_p).sum(dim)


def their_log_probs(x: Any, ids: Any) -> Any:
    return torch.log_softmax(x, -1).gather(-1, ids.long()[..., None])[..., 0]


def requests(x: Any) -> dict[str, Request]:
    ids = torch.randint(x.shape[-1], x.shape[:-1])
    return {
        "entropy": (mine.entropy, their_entropy, ()),
        "token_log_probs": (mine.token_log_probs, their_log_probs, (ids,)),
    }


NAMES = tuple(requests(torch.zeros(1, 1)))


def leaf(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(*shape).to(dtype).requires_grad_()


def same_as_torchs(x: Any, request: Request, g: Any = None) -> None:
    """Forward and backward."""
    f, theirs, others = request
    y, wide = f(x, *others), x.detach().double().requires_grad_()
    wanted = theirs(wide, *others)
    near = {"rtol": 2e-2, "atol": 2e-2} if x.dtype.itemsize == 2 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(y.double(), wanted, **near)
    g = torch.randn_like(y) if g is None else g.to(y.dtype).expand(y.shape)
    (dx,) = torch.autograd.grad(y, x, g)
    assert dx.dtype is x.dtype
    (wanted_dx,) = torch.autograd.grad(wanted, wide, g.double())
    torch.testing.assert_close(dx.double(), wanted_dx, **near)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", [torch.Tensor.requires_grad_, torch.nn.Parameter])
def test_after_the_first_step_nothing_is_asked_again(
    name: str, dtype: Any, kind: Any, world: World
) -> None:
    x = kind(torch.randn(3, 4).to(dtype))
    request = requests(x)[name]
    for g in (None, torch.ones(()), None, torch.ones(())):  # that of a sum is expanded
        same_as_torchs(x, request, g)
    both = [f"{name}_lse", f"{name}_backward"]
    assert world.chosen == both
    assert world.launches == both * 4


@pytest.mark.parametrize("name", NAMES)
def test_shapes_in_turn(name: str, world: World) -> None:
    xs = [leaf(2, cols) for cols in range(3, 9)]
    for _ in range(3):
        for x in xs:
            same_as_torchs(x, requests(x)[name])
    assert len(world.chosen) == 2 * len(xs)


@pytest.mark.parametrize("name", NAMES)
def test_who_differentiates_decides_anew_at_each_call(name: str, world: World) -> None:
    x = leaf(3, 4)
    f, _, others = requests(x)[name]
    for _ in range(3):
        assert f(x, *others).requires_grad
        with torch.no_grad():
            assert not f(x, *others).requires_grad
        assert not f(x.detach(), *others).requires_grad
    assert world.launches == [f"{name}_lse", name, name] * 3


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives_and_transforms(name: str) -> None:
    x = leaf(3, 4)
    f, theirs, others = requests(x)[name]
    wanted = torch.autograd.grad(theirs(x, *others).sum(), x)[0]
    for _ in range(3):
        (dx,) = torch.autograd.grad(f(x, *others).sum(), x, create_graph=True)
        torch.testing.assert_close(dx, wanted)
        with pytest.raises(NotSupportedError, match=f"{name} is not differentiable again"):
            dx.sum().backward()
        dx = torch.func.grad(lambda a: f(a, *others).sum())(x.detach())
        torch.testing.assert_close(dx, wanted)


def test_options_are_never_taken_for_a_plain_call() -> None:
    x, ids = leaf(3, 4), torch.tensor([0, 3, 1])
    for _ in range(2):
        same_as_torchs(x, (mine.entropy, their_entropy, ()))
        torch.testing.assert_close(mine.entropy(x, 0), their_entropy(x, 0))
        assert mine.entropy(x, keepdim=True).shape == (3, 1)
        assert mine.entropy(x, dtype=torch.float64).dtype is torch.float64
        torch.testing.assert_close(mine.entropy(x, (0, 1)), their_entropy(x.reshape(-1)))
        same_as_torchs(x, (mine.token_log_probs, their_log_probs, (ids,)))
        cooler = mine.token_log_probs(x, ids, temperature=2.0)
        torch.testing.assert_close(cooler, their_log_probs(x / 2, ids))
        assert len(mine.token_log_probs(x, ids, return_lse=True, return_entropy=True)) == 3
        assert mine.token_log_probs(x, ids[:, None]).shape == (3, 1)
        with pytest.raises(InvalidValueError, match="ids must be from 0 to 3"):
            mine.token_log_probs(x, ids + 1, checked=True)
        with pytest.raises(InvalidValueError, match="ids must have the shape of x's rows"):
            mine.token_log_probs(x, ids[1:])
        with pytest.raises(InvalidTypeError, match="ids must be int32 or int64"):
            mine.token_log_probs(x, ids.bool())
        with pytest.raises(IndexError):
            mine.entropy(x, 2)


def test_what_was_saved_comes_back_otherwise() -> None:
    x = leaf(3, 4)
    for request in requests(x).values():
        for _ in range(3):
            same_as_torchs(x, request)
        f, theirs, others = request
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, torch.clone):
            y = f(x, *others).sum()
        wanted = torch.autograd.grad(theirs(x, *others).sum(), x)[0]
        torch.testing.assert_close(torch.autograd.grad(y, x)[0], wanted)
