"""What inductor compiles: softgen's operators beside others compute what they do in eager mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

import softgen.torch as mine  # noqa: E402

# Of PyTorch's own code.
pytestmark = pytest.mark.filterwarnings("ignore")

ROWS, COLS = 3, 5
IDS = torch.tensor([2, 0, 1])
WEIGHTS = torch.linspace(-1.0, 2.0, COLS * COLS).view(COLS, COLS)
BIAS = torch.linspace(-2.0, 2.0, ROWS * COLS).view(ROWS, COLS)


def _log_probs(x: Any, ids: Any, return_entropy: bool = False) -> Any:
    found = torch.log_softmax(x, -1).gather(-1, ids[:, None])[:, 0]
    return (found, _entropy(x)) if return_entropy else found


def _entropy(x: Any) -> Any:
    return torch.distributions.Categorical(logits=x).entropy()


def _softmax(x: Any, dim: int, bias: Any = 0.0) -> Any:
    return torch.softmax(x + bias, dim)


# softgen's functions by PyTorch's own.
THEIRS = SimpleNamespace(
    softmax=_softmax,
    log_softmax=torch.log_softmax,
    logsumexp=torch.logsumexp,
    entropy=_entropy,
    cross_entropy=torch.nn.functional.cross_entropy,
    token_log_probs=_log_probs,
)


def _operator(name: str, schema: str, run: Callable[..., Any]) -> Any:
    """Return an operator of another library."""
    return torch.library.custom_op(f"beside_softgen::{name}", run, mutates_args=(), schema=schema)


def _parted_backward(x: Any, above: Any, below: Any) -> Any:
    return torch.where(x > 0, above, below)


# With a gradient each: one of one result, one of two.
tripled = _operator("tripled", "(Tensor x) -> Tensor", lambda x: x * 3)
parted = _operator(
    "parted", "(Tensor x) -> (Tensor, Tensor)", lambda x: (x.clamp(min=0), x.clamp(max=0))
)
parted_backward = _operator(
    "parted_backward", "(Tensor x, Tensor above, Tensor below) -> Tensor", _parted_backward
)
tripled.register_fake(torch.empty_like)
parted.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))
parted_backward.register_fake(lambda x, above, below: torch.empty_like(x))
tripled.register_autograd(lambda ctx, dy: tripled(dy))
parted.register_autograd(
    lambda ctx, above, below: parted_backward(*ctx.saved_tensors, above, below),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)

# Each with the functions of softgen.torch, or of THEIRS, and x. None needs a kernel that inductor
# would write itself: on a CPU that is C++, whose first takes 15 s.
GRAPHS: dict[str, Callable[[Any, Any], Any]] = {
    "softmax alone": lambda f, x: f.softmax(x, -1),
    "log_softmax of softmax": lambda f, x: f.log_softmax(f.softmax(x, -1), -1),
    "softmax of log_softmax along another dimension": (
        lambda f, x: f.softmax(f.log_softmax(x, 0), 1)
    ),
    "three in a row": lambda f, x: f.softmax(f.softmax(f.softmax(x, -1), -1), -1),
    "a row each of softmax": lambda f, x: f.logsumexp(f.softmax(x, -1), -1),
    "entropy of log_softmax": lambda f, x: f.entropy(f.log_softmax(x, 0)),
    "losses of softmax": lambda f, x: f.cross_entropy(f.softmax(x, -1), IDS, reduction="none"),
    "log_probs of softmax": lambda f, x: f.token_log_probs(f.softmax(x, -1), IDS),
    "several results of softmax": (
        lambda f, x: f.token_log_probs(f.softmax(x, -1), IDS, return_entropy=True)
    ),
    "softmax of several results": lambda f, x: tuple(
        f.softmax(each, 0) for each in f.token_log_probs(x, IDS, return_entropy=True)
    ),
    "hooks of softmax": lambda f, x: f.softmax(f.softmax(x, -1), -1, bias=BIAS),
    "softmax of hooks": lambda f, x: f.log_softmax(f.softmax(x, -1, bias=BIAS), -1),
    "another in front": lambda f, x: f.softmax(tripled(x), -1),
    "another behind": lambda f, x: tripled(f.softmax(x, -1)),
    "another between": lambda f, x: f.log_softmax(tripled(f.softmax(x, -1)), -1),
    "a tuple in front": lambda f, x: tuple(f.softmax(each, -1) for each in parted(x)),
    "a tuple behind": lambda f, x: parted(f.log_softmax(x, -1)),
    "a matrix product in front": lambda f, x: f.softmax(x @ WEIGHTS, -1),
    "a matrix product between": lambda f, x: f.log_softmax(f.softmax(x, -1) @ WEIGHTS, -1),
    "a matrix product behind": lambda f, x: f.log_softmax(x, -1) @ WEIGHTS,
    "a view between": lambda f, x: f.log_softmax(f.softmax(x, -1).T, -1),
}


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    """Nothing that was compiled before, also not on disk."""
    import torch._inductor.config as config

    torch._dynamo.reset()
    with config.patch(force_disable_caches=True):
        yield


def results(run: Callable[[Any], Any], x: Any) -> list[Any]:
    """Return what run(x) gives, and the gradient of x."""
    given = run(x)
    found = given if isinstance(given, tuple) else (given,)
    upstream = [torch.linspace(-1.0, 3.0, y.numel()).view(y.shape) for y in found]
    return [each.detach() for each in (*found, *torch.autograd.grad(found, x, upstream))]


@pytest.mark.parametrize(
    ("graph", "dynamic"),
    [
        *((graph, False) for graph in GRAPHS),
        ("log_softmax of softmax", True),
        ("another between", True),
    ],
)
def test_a_call_beside_others(graph: str, dynamic: bool) -> None:
    function = GRAPHS[graph]
    x = torch.randn(ROWS, COLS, generator=torch.Generator().manual_seed(7)) * 4
    x.requires_grad_()
    eager = results(lambda x: function(mine, x), x)
    wanted = results(lambda x: function(THEIRS, x), x)
    compiled = torch.compile(lambda x: function(mine, x), fullgraph=True, dynamic=dynamic)
    found = results(compiled, x)
    assert len(found) == len(eager) == len(wanted)
    for ours, same, theirs in zip(found, eager, wanted, strict=True):
        torch.testing.assert_close(ours, same)
        torch.testing.assert_close(ours, theirs)


def test_a_view_is_read_where_it_is() -> None:
    from torch._inductor.utils import run_and_get_code

    x = torch.randn(4, 3).T
    y, code = run_and_get_code(torch.compile(lambda x: mine.softmax(x, 0), fullgraph=True), x)
    assert "empty_strided" not in code[0].partition("def call(")[2].partition("return")[0]
    torch.testing.assert_close(y, torch.softmax(x, 0))
