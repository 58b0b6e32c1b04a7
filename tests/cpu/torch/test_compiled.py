"""The registered operators: what PyTorch checks of them, and one graph with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

import softgen.torch as mine  # noqa: E402
from softgen.torch import losses, operators, token_operators  # noqa: E402

# Of PyTorch's own code.
pytestmark = pytest.mark.filterwarnings("ignore")

IDS = torch.tensor([2, 0, 1])
WHOLE = (IDS, -100, 0.0, 0.0)

OPERATORS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "softmax": (operators.softmax, (0, torch.float32)),
    "log_softmax": (operators.log_softmax, (-1, torch.float32)),
    "logsumexp": (operators.logsumexp_wide, ([0],)),
    "entropy": (operators.entropy_lse, ([1],)),
    "token_log_probs": (token_operators.token_log_probs, (IDS, None, None)),
    "token_log_probs_entropy": (token_operators.token_log_probs_entropy, (IDS, 0.7, None)),
    "cross_entropy": (losses.cross_entropy_rows, WHOLE),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_registered_as_they_should_be(name: str) -> None:
    operator, request = OPERATORS[name]
    x = torch.randn(3, 4, requires_grad=True)
    torch.library.opcheck(operator, (x, *request))


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "softmax": (lambda x: mine.softmax(x, 0), lambda x: torch.softmax(x, 0)),
    "log_softmax": (lambda x: mine.log_softmax(x, -1), lambda x: torch.log_softmax(x, -1)),
    "logsumexp": (lambda x: mine.logsumexp(x, 1), lambda x: torch.logsumexp(x, 1)),
    "token_log_probs": (
        lambda x: mine.token_log_probs(x, IDS),
        lambda x: torch.log_softmax(x, -1).gather(-1, IDS[:, None])[:, 0],
    ),
    "cross_entropy": (
        lambda x: mine.cross_entropy(x, IDS),
        lambda x: torch.nn.functional.cross_entropy(x, IDS),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled_without_a_graph_break(name: str) -> None:
    ours, theirs = FUNCTIONS[name]
    compiled = torch.compile(lambda x: ours(x * 2) + 1, fullgraph=True, backend="aot_eager")
    a = torch.randn(3, 4, requires_grad=True)
    b = a.detach().clone().requires_grad_()
    found, wanted = compiled(a), theirs(b * 2) + 1
    torch.testing.assert_close(found, wanted)
    dy = torch.randn_like(wanted)
    found.backward(dy)
    wanted.backward(dy)
    torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("tracked", [False, True])
def test_what_is_recorded_has_no_gradient_in_python(name: str, tracked: bool) -> None:
    """Such a gradient takes 11 us of each call, also where nobody differentiates it."""
    from torch._dynamo.backends.common import aot_autograd

    recorded = []

    def record(graph: Any, inputs: Any) -> Any:
        targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
        recorded.append({each.name() for each in targets if "softgen" in str(each)})
        return graph.forward

    compiled = torch.compile(FUNCTIONS[name][0], backend=aot_autograd(fw_compiler=record))
    found = compiled(torch.randn(3, 4, requires_grad=tracked))
    if tracked:
        found.sum().backward()
    # By other names PyTorch finds what earlier versions of softgen left on disk: registered.py.
    backward = [{f"softgen::{name}_backward.v2"}] if tracked else []
    assert recorded == [{f"softgen::{name}_kernel.v2"}, *backward]


def test_an_operator_that_is_called_itself_has_its_gradient() -> None:
    a = torch.randn(3, 4, requires_grad=True)
    y = torch.ops.softgen.log_softmax(a, -1, torch.float32)
    (found,) = torch.autograd.grad(y[:, 0].sum(), a)
    wanted = torch.autograd.grad(torch.log_softmax(a, -1)[:, 0].sum(), a)[0]
    torch.testing.assert_close(found, wanted)
    assert not torch.ops.softgen.log_softmax(a.detach(), -1, torch.float32).requires_grad
