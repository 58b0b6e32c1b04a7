"""softgen.torch under what PyTorch does to functions: transforms, checkpoints, hooks."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

import softgen.torch as mine  # noqa: E402

func = torch.func

IDS = torch.tensor([2, 0, 1])


def entropy(x: Any, dim: int) -> Any:
    log_p = torch.log_softmax(x, dim)
    return -(log_p.exp() * log_p).sum(dim)


# softgen's function and PyTorch's, of x of 3 rows.
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "softmax": (lambda x: mine.softmax(x, -1), lambda x: torch.softmax(x, -1)),
    "log_softmax": (lambda x: mine.log_softmax(x, -1), lambda x: torch.log_softmax(x, -1)),
    "hooks": (
        lambda x: mine.softmax(x, -1, softcap=2.0, dropout=0.5, seed=1, scale=x[:, 0]) * 0.5,
        lambda x: _capped(x) * (mine.softmax(x, -1, dropout=0.5, seed=1).detach() != 0),
    ),
    "logsumexp": (lambda x: mine.logsumexp(x, -1), lambda x: torch.logsumexp(x, -1)),
    "entropy": (lambda x: mine.entropy(x, -1), lambda x: entropy(x, -1)),
    "token_log_probs": (
        lambda x: mine.token_log_probs(x, IDS),
        lambda x: torch.log_softmax(x, -1).gather(-1, IDS[:, None])[:, 0],
    ),
    "cross_entropy": (
        lambda x: mine.cross_entropy(x, IDS),
        lambda x: torch.nn.functional.cross_entropy(x, IDS),
    ),
}


def _capped(x: Any) -> Any:
    return torch.softmax(2.0 * torch.tanh(x * x[:, :1] / 2.0), -1)


def weighed(f: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda v: (f(v, -1) * torch.arange(v.shape[-1])).sum()


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp", "entropy"])
def test_transforms_of_functions(name: str) -> None:
    ours, theirs = getattr(mine, name), entropy if name == "entropy" else getattr(torch, name)
    x, of_elements = torch.randn(2, 3, 4), name.endswith("softmax")

    def loss(f: Callable[..., Any], dim: int = -1) -> Callable[[Any], Any]:
        return weighed(f) if of_elements else lambda v: f(v, dim).pow(2).sum()

    transforms: tuple[Callable[[Any], Any], ...] = (
        lambda f: func.vmap(lambda v: f(v, 0), in_dims=1)(x),
        lambda f: func.grad(loss(f))(x),
        lambda f: func.vmap(func.grad(loss(f, 0)))(x),
        lambda f: func.jacrev(lambda v: f(v, -1))(x[0]),
    )
    for transform in transforms:
        torch.testing.assert_close(transform(ours), transform(theirs))


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch's loop over a batch
def test_gradients_are_batched_by_both_ways(name: str) -> None:
    ours, theirs = getattr(mine, name), getattr(torch, name)
    x, upstream = torch.randn(3, 4, requires_grad=True), torch.randn(5, 3, 4)
    y = theirs(x, -1)
    (wanted,) = torch.autograd.grad(y, x, upstream, is_grads_batched=True)
    _, pull = func.vjp(lambda v: ours(v, -1), x.detach())
    torch.testing.assert_close(func.vmap(pull)(upstream)[0], wanted)
    (found,) = torch.autograd.grad(ours(x, -1), x, upstream, is_grads_batched=True)
    torch.testing.assert_close(found, wanted)


@pytest.mark.filterwarnings("ignore")  # of PyTorch's own decompositions for forward mode
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_second_derivatives_by_any_order_of_modes(name: str) -> None:
    ours, theirs = getattr(mine, name), getattr(torch, name)
    x, forward, reverse = torch.randn(5), func.jacfwd, func.jacrev
    for outer, inner in itertools.product((forward, reverse), repeat=2):
        found, wanted = (
            outer(inner(lambda v, f=f: f(v, 0).square().sum()))(x) for f in (ours, theirs)
        )
        torch.testing.assert_close(found, wanted)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_forward_mode_inside_of_compiled_code(name: str) -> None:
    x, moved = torch.randn(5), torch.randn(5)

    def run(of: Any, x: Any, moved: Any) -> Any:
        along = functools.partial(of, dim=0)
        return func.jvp(along, (x,), (moved,)), func.hessian(lambda v: along(v).square().sum())(x)

    torch._dynamo.reset()
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    found, wanted = compiled(getattr(mine, name), x, moved), run(getattr(torch, name), x, moved)
    torch.testing.assert_close(found, wanted)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_tangents_of_gradients_have_the_type_of_the_input(name: str, dtype: Any) -> None:
    """Where the result has another."""
    x, moved = torch.randn(5).to(dtype), torch.randn(5).to(dtype)
    found, wanted = (
        func.jvp(func.grad(lambda v, f=f: f(v, 0, dtype=torch.float32).square().sum()), *of)
        for f in (getattr(mine, name), getattr(torch, name))
        for of in [((x,), (moved,))]
    )
    near = {"rtol": 0.05, "atol": 0.05} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(found, wanted, **near)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_a_batch_of_numbers_has_rows_of_one(name: str) -> None:
    ours, theirs = getattr(mine, name), getattr(torch, name)
    x = torch.randn(3)
    for dim in (0, -1):
        found, wanted = (
            func.vmap(func.grad(functools.partial(f, dim=dim)))(x) for f in (ours, theirs)
        )
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_gradient_of_torch_func_is_autograds(name: str) -> None:
    ours, theirs = FUNCTIONS[name]
    x = torch.randn(3, 4)
    found, wanted = (func.grad(lambda v, f=f: f(v).pow(2).sum())(x) for f in (ours, theirs))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_checkpoints_and_tensors_that_are_kept_elsewhere(name: str) -> None:
    from torch.utils.checkpoint import checkpoint

    ours, theirs = FUNCTIONS[name]
    x, kept = torch.randn(3, 4, requires_grad=True), []
    (wanted,) = torch.autograd.grad(theirs(x).pow(2).sum(), x)

    def pack(t: Any) -> Any:
        kept.append(t.clone())
        return len(kept) - 1

    for _ in range(3):
        kept.clear()
        y = checkpoint(ours, x, use_reentrant=False)
        with torch.autograd.graph.saved_tensors_hooks(pack, kept.__getitem__):
            z = ours(x)
        assert kept
        for each in (y, z):
            (found,) = torch.autograd.grad(each.pow(2).sum(), x)
            torch.testing.assert_close(found, wanted)
