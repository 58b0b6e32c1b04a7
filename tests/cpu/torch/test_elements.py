"""softmax and log_softmax: what a call is asked again, what it is not, and values of PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

import softgen  # noqa: E402
import softgen.torch as mine  # noqa: E402
from softgen.errors import InvalidTypeError, NotSupportedError  # noqa: E402
from tests.helpers.torch_calls import World  # noqa: E402

NAMES = ("softmax", "log_softmax")


def leaf(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(*shape).to(dtype).requires_grad_()


def same_as_torchs(name: str, x: Any, dim: Any = -1) -> None:
    """Forward and backward."""
    y = getattr(mine, name)(x, dim)
    wanted = getattr(torch, name)(x.detach(), dim)
    torch.testing.assert_close(y, wanted)
    dy = torch.randn_like(y)
    (dx,) = torch.autograd.grad(y, x, dy)
    b = x.detach().clone().requires_grad_()
    torch.testing.assert_close(dx, torch.autograd.grad(getattr(torch, name)(b, dim), b, dy)[0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [torch.Tensor.requires_grad_, torch.nn.Parameter])
def test_after_the_first_step_nothing_is_asked_again(name: str, kind: Any, world: World) -> None:
    x = kind(torch.randn(3, 4))
    for _ in range(5):
        same_as_torchs(name, x)
    assert world.chosen == [name, f"{name}_backward"]
    assert world.launches == [name, f"{name}_backward"] * 5


def test_shapes_types_and_dimensions_that_take_turns(world: World) -> None:
    xs = [leaf(3, 4), leaf(4, 3), leaf(3, 4, dtype=torch.float64), leaf(2, 4)[:, :3]]
    for _ in range(3):
        for x in xs[:3]:
            for dim in (-1, 0):
                same_as_torchs("softmax", x, dim)
        view = xs[3].detach().requires_grad_()
        same_as_torchs("softmax", view)
    assert len(world.chosen) == len(set(world.chosen)) * 6 + 2


def test_more_requests_in_turn_than_are_compared_one_by_one(world: World) -> None:
    xs = [leaf(2, cols) for cols in range(3, 9)]
    for _ in range(3):
        for x in xs:
            same_as_torchs("softmax", x)
    assert len(world.chosen) == 2 * len(xs)


def test_a_dimension_that_only_equals_the_last_is_looked_at() -> None:
    x = leaf(3, 4)
    dims: tuple[Any, ...] = (True, 1.0)
    for dim in dims:
        for _ in range(2):
            mine.softmax(x, 1)
        with pytest.raises(TypeError):
            mine.softmax(x, dim)
    with pytest.raises(IndexError):
        mine.softmax(x, 2)


def test_who_differentiates_decides_anew_at_each_call() -> None:
    x = leaf(3, 4)
    for _ in range(3):
        assert mine.softmax(x, -1).requires_grad
        with torch.no_grad():
            assert not mine.softmax(x, -1).requires_grad
        assert not mine.softmax(x.detach(), -1).requires_grad
        with torch.inference_mode():
            assert mine.softmax(x, -1).is_inference()
        with pytest.raises(NotSupportedError, match="requires grad"):
            softgen.softmax(x)


def test_a_gradient_that_is_differentiated_again_is_tracked() -> None:
    x = leaf(3, 4)
    for _ in range(3):
        same_as_torchs("softmax", x)
        twice = []
        for f in (mine.softmax, torch.softmax):
            (dx,) = torch.autograd.grad(f(x, -1).pow(2).sum(), x, create_graph=True)
            twice.append(torch.autograd.grad(dx.pow(2).sum(), x)[0])
        torch.testing.assert_close(*twice)


def test_the_environment_counts_at_each_call(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    x = leaf(3, 4)
    for _ in range(2):
        same_as_torchs("softmax", x)
    monkeypatch.setenv("SOFTGEN_TUNE", "off")
    before = len(world.chosen)
    same_as_torchs("softmax", x)
    assert len(world.chosen) == before + 2
    monkeypatch.delenv("SOFTGEN_TUNE")
    same_as_torchs("softmax", x)
    assert len(world.chosen) == before + 2


def test_a_gradient_is_computed_in_the_environment_of_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = leaf(3, 4)
    y = mine.softmax(x, -1)
    with monkeypatch.context() as patch:
        patch.setenv("SOFTGEN_BATCH_INVARIANT", "1")
        for _ in range(3):
            y.backward(torch.randn(3, 4), retain_graph=True)
    assert world.chosen == ["softmax", "softmax_backward"]
    for _ in range(3):
        same_as_torchs("softmax", x)
        assert world.chosen == ["softmax", "softmax_backward", "softmax_backward"]


def test_gradients_that_lie_otherwise(world: World) -> None:
    """dy of a sum is expanded; one may start off the boundary of 16 bytes."""
    x = leaf(3, 4)
    y = mine.softmax(x, -1)
    for dy in (torch.randn(3, 4), torch.ones(()).expand(3, 4), torch.randn(13)[1:].view(3, 4)):
        for _ in range(2):
            (dx,) = torch.autograd.grad(y, x, dy, retain_graph=True)
            p = y.detach()
            torch.testing.assert_close(dx, p * (dy - (dy * p).sum(-1, keepdim=True)))


@pytest.mark.parametrize("name", NAMES)
def test_results_that_come_back_otherwise(name: str, world: World) -> None:
    """Hooks may give what was saved back anywhere, and in any layout."""
    x = leaf(3, 4)
    for _ in range(3):
        same_as_torchs(name, x)

    def shifted(t: Any) -> Any:
        return torch.cat((t.new_zeros(1), t.reshape(-1)))[1:].view(3, 4)

    unpacks = (
        *(torch.clone, shifted, lambda t: t.T.contiguous().T),
        lambda t: t.clone().requires_grad_(),
    )
    dy = torch.randn(3, 4)
    for unpack in (*unpacks, *unpacks):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            y = getattr(mine, name)(x, -1)
        (dx,) = torch.autograd.grad(y, x, dy)
        wanted = torch.autograd.grad(getattr(torch, name)(x, -1), x, dy)[0]
        torch.testing.assert_close(dx, wanted)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.double()):
        y = getattr(mine, name)(x, -1)
    with pytest.raises(InvalidTypeError, match="y must be float32, got float64"):
        torch.autograd.grad(y, x, dy)


def test_a_result_that_was_changed_is_noticed() -> None:
    x = leaf(3, 4)
    for _ in range(3):
        y = mine.softmax(x, -1)
        y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        same_as_torchs("softmax", x)


def test_autocast_gives_float32_and_ends() -> None:
    x = leaf(3, 4, dtype=torch.float16)
    for _ in range(3):
        assert mine.softmax(x, -1).dtype is torch.float16
        with torch.autocast("cpu", dtype=torch.float16):
            y = mine.softmax(x, -1)
        assert y.dtype is torch.float32
        (dx,) = torch.autograd.grad(y.sum(), x)
        assert dx.dtype is torch.float16
        assert mine.softmax(x, -1, dtype=torch.float64).dtype is torch.float64


def test_hooks_are_never_taken_for_a_plain_call() -> None:
    x = leaf(3, 4)
    for _ in range(2):
        torch.testing.assert_close(mine.softmax(x, -1), torch.softmax(x, -1))
        torch.testing.assert_close(mine.softmax(x, -1, scale=2.0), torch.softmax(2 * x, -1))
