"""Values and gradients of softgen.torch, against PyTorch's in float64 and finite differences."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

import softgen.torch as mine  # noqa: E402
from softgen.errors import InvalidValueError, NotSupportedError  # noqa: E402
from tests.helpers.hooked_losses import every_other  # noqa: E402

gradcheck, gradgradcheck = torch.autograd.gradcheck, torch.autograd.gradgradcheck
NAMES = ("softmax", "log_softmax", "logsumexp", "entropy")


def draw(*shape: int, dtype: Any = torch.float64) -> Any:
    torch.manual_seed(len(shape))
    return (torch.randn(*shape, dtype=torch.float64) * 2).to(dtype).requires_grad_()


def entropy(x: Any, dim: Any, keepdim: bool = False) -> Any:
    dims = (dim,) if isinstance(dim, int) else tuple(dim) or tuple(range(x.dim()))
    log_p = x - torch.logsumexp(x, dims, True)
    return -(log_p.exp() * log_p).sum(dims, keepdim)


def theirs(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = entropy if name == "entropy" else getattr(torch, name)
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_values_and_both_gradients_along_any_dimension(name: str, dim: int) -> None:
    x, f = draw(2, 2, 3), getattr(mine, name)
    torch.testing.assert_close(f(x, dim), theirs(name)(x, dim))
    assert gradcheck(lambda a: f(a, dim), (x,))
    if name != "entropy":
        assert gradgradcheck(lambda a: f(a, dim), (x,))


@pytest.mark.parametrize("name", ["logsumexp", "entropy"])
@pytest.mark.parametrize("dim", [(0, 2), (2, 1), ()])
def test_several_dimensions_are_one_row(name: str, dim: tuple[int, ...]) -> None:
    x, f = draw(2, 3, 2), getattr(mine, name)
    for keepdim in (False, True):
        wanted = theirs(name)(x, dim or (0, 1, 2), keepdim)
        torch.testing.assert_close(f(x, dim, keepdim), wanted)
    assert gradcheck(lambda a: f(a, dim), (x,))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_types_of_results_and_gradients(name: str, dtype: Any) -> None:
    x, options = draw(3, 5, dtype=dtype), {} if name == "logsumexp" else {"dtype": torch.float32}
    y = getattr(mine, name)(x, -1, **options)
    assert y.dtype is (torch.float32 if options else dtype)
    dy = torch.randn_like(y)
    (dx,) = torch.autograd.grad(y, x, dy)
    assert dx.dtype is dtype
    wide = x.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(theirs(name)(wide, -1), wide, dy.double())
    torch.testing.assert_close(dx, wanted.to(dtype))


@pytest.mark.parametrize("ids_shape", [(2, 3), (2, 3, 2)])
@pytest.mark.parametrize("temperature", [None, 0.5])
def test_log_probabilities_of_tokens(ids_shape: tuple[int, ...], temperature: float | None) -> None:
    x, ids = draw(2, 3, 4), torch.randint(4, ids_shape)
    z = x / (temperature or 1.0)
    log_p = torch.log_softmax(z, -1)
    wanted = log_p.gather(-1, ids if ids.dim() == 3 else ids[..., None]).reshape(ids_shape)
    alone = functools.partial(mine.token_log_probs, ids=ids, temperature=temperature)
    f = functools.partial(alone, return_entropy=True)
    torch.testing.assert_close(f(x)[0], wanted)
    torch.testing.assert_close(f(x)[1], entropy(z, -1))
    assert gradcheck(f, (x,))
    assert gradcheck(alone, (x,))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"weight": True}])
def test_cross_entropy(reduction: str, options: dict[str, Any]) -> None:
    x, target = draw(4, 5), torch.tensor([0, 4, -100, 2])
    if "weight" in options:
        options = {"weight": torch.rand(5, dtype=torch.float64) + 0.5}
    request: dict[str, Any] = {"target": target, "reduction": reduction, **options}
    f: Callable[[Any], Any] = functools.partial(mine.cross_entropy, **request)
    wanted = torch.nn.functional.cross_entropy(x, **request)
    torch.testing.assert_close(f(x), wanted)
    assert gradcheck(f, (x,))
    assert gradcheck(lambda a: f(a) * 3 if reduction != "none" else f(a) * wanted.detach(), (x,))


IDS, TARGET = torch.tensor([0, 4, 1, 2]), torch.tensor([0, 4, -100, 2])
PAIRS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "softmax": (lambda x: mine.softmax(x, -1), lambda x: torch.softmax(x, -1)),
    "log_softmax": (lambda x: mine.log_softmax(x, -1), lambda x: torch.log_softmax(x, -1)),
    "logsumexp": (lambda x: mine.logsumexp(x, -1), lambda x: torch.logsumexp(x, -1)),
    "entropy": (lambda x: mine.entropy(x, -1), lambda x: entropy(x, -1)),
    "token_log_probs": (
        lambda x: mine.token_log_probs(x, IDS),
        lambda x: torch.log_softmax(x, -1)[torch.arange(4), IDS],
    ),
    "cross_entropy": (
        lambda x: mine.cross_entropy(x, TARGET, reduction="none"),
        lambda x: torch.nn.functional.cross_entropy(x, TARGET, reduction="none"),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_an_upstream_with_strides_of_its_own(name: str) -> None:
    x = draw(4, 5)
    y, exact = (run(x) for run in PAIRS[name])
    for dy in every_other(y), y.new_ones(()).expand_as(y):
        (found,) = torch.autograd.grad(y, x, dy, retain_graph=True)
        torch.testing.assert_close(found, torch.autograd.grad(exact, x, dy, retain_graph=True)[0])


@pytest.mark.parametrize("name", ["entropy", "token_log_probs"])
def test_gradients_that_are_not_differentiable_again_say_so(name: str) -> None:
    x, ids = draw(3, 4), torch.tensor([0, 1, 3])
    y = getattr(mine, name)(x, *([] if name == "entropy" else [ids]))
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(NotSupportedError, match=f"softgen.torch.{name} is not differentiable"):
        dx.sum().backward()


def test_inputs_without_a_gradient_are_refused_where_one_is_asked_for() -> None:
    x, ids = draw(3, 4), torch.tensor([0, 1, 3])
    weight, temperature = torch.rand(4).requires_grad_(), torch.rand(3).requires_grad_()
    with pytest.raises(NotSupportedError, match=r"pass weight\.detach\(\)"):
        mine.cross_entropy(x, ids, weight)
    with pytest.raises(InvalidValueError, match=r"pass temperature\.detach\(\)"):
        mine.token_log_probs(x, ids, temperature=temperature)
    with torch.no_grad():
        loss = mine.cross_entropy(x, ids, weight)
    torch.testing.assert_close(
        loss, torch.nn.functional.cross_entropy(x.detach(), ids, weight.detach().double())
    )
