"""The registered operators: what PyTorch checks of them, and one graph with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

import softgen.torch as mine  # noqa: E402
from softgen.torch.dtensor import RULES  # noqa: E402
from softgen.torch.dtypes import FLOATS, wide  # noqa: E402
from softgen.torch.registry import OVERLOAD, TABLE  # noqa: E402
from tests.helpers.torch_calls import World  # noqa: E402

# Of PyTorch's own code.
pytestmark = pytest.mark.filterwarnings("ignore")

IDS = torch.tensor([2, 0, 1])
ROWS = torch.tensor([0.5, -1.0, 2.0])


def normalised(x: Any) -> Any:
    return torch.softmax(x.detach().to(wide(x)), -1)


def lse_of(x: Any) -> Any:
    return torch.logsumexp(x.detach().to(wide(x)), -1)


def rows_of(x: Any) -> Any:
    return ROWS.to(wide(x))


def columns_of(x: Any) -> Any:
    """Return the weight of a last layer of three columns."""
    return torch.linspace(-1.0, 1.0, 3 * x.shape[-1]).view(3, -1).to(x.dtype)


# The arguments of each operator for an x of three rows.
ARGUMENTS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "softmax": lambda x: (x, -1, torch.float32, None),
    "log_softmax": lambda x: (x, 0, x.dtype, True),
    "softmax_backward": lambda x: (x, normalised(x).to(x.dtype), -1, x.dtype, None),
    "log_softmax_backward": lambda x: (x, normalised(x).log().to(x.dtype), -1, x.dtype, None),
    "logsumexp": lambda x: (x, [0], None),
    "logsumexp_backward": lambda x: (x, lse_of(x), rows_of(x), [1], None),
    "entropy": lambda x: (x, [0, 1], None),
    "entropy_backward": lambda x: (x, lse_of(x), lse_of(x) / 2, rows_of(x), [1], False),
    "token_log_probs": lambda x: (x, IDS, None, 0.7, True, None),
    "token_log_probs_backward": lambda x: (
        *(x, IDS, lse_of(x), rows_of(x), None, None),
        *(rows_of(x).abs(), None, None),
    ),
    "cross_entropy": lambda x: (x, IDS, None, -100, "mean", 0.0, 0.25, x.dtype, False, None),
    "cross_entropy_backward": lambda x: (
        *(x, IDS, lse_of(x), rows_of(x)[0].to(x.dtype), rows_of(x)[2], None),
        *(-100, 0.1, 0.0, None),
    ),
    "probability_losses": lambda x: (x, normalised(x).to(x.dtype), 0.1, 0.25, None),
    "probability_losses_backward": lambda x: (
        *(x, normalised(x).to(x.dtype), lse_of(x), rows_of(x).abs(), rows_of(x)),
        *(0.1, 0.25, None),
    ),
    "linear_cross_entropy": lambda x: (
        *(x, columns_of(x), IDS, None, None, rows_of(x)[2]),
        *(True, [1, 0, 0], False, -100, 0.1, 2.0, 0.25, "fast", 2, x.dtype),
    ),
    "linear_cross_entropy_backward": lambda x: (
        *(x, columns_of(x), IDS, rows_of(x).to(x.dtype), rows_of(x).abs(), lse_of(x)),
        *(rows_of(x), None, [1, 1, 1], -100, 0.0, None, 0.0, "lean", None, wide(x)),
    ),
    "linear_token_log_probs": lambda x: (
        *(x, columns_of(x), IDS, None, None, 0.7, True, False, "lean", None),
    ),
    "linear_token_log_probs_backward": lambda x: (
        *(x, columns_of(x), IDS, None, rows_of(x).abs(), lse_of(x), rows_of(x), None, None),
        *(None, [1, 1, 0], None, "fast", 2),
    ),
    "hooked": lambda x: (
        *(x, None, None, None, rows_of(x).to(x.dtype), None, None, None),
        *(0.5, 2.0, True, None, None, None, None, None, None),
        *("softmax", 0, 0.0, -1, x.dtype, True, None),
    ),
    "ranked_log_probs": lambda x: (x, IDS, None, 0.7, 2, None),
    "sample": lambda x: (
        *(x, rows_of(x).abs(), None, None, rows_of(x).abs(), None),
        *(1.0, 2, 0.5, 0.0, 3, 2**33, None),
    ),
    "topk_softmax": lambda x: (x, None, 2, "softmax", None, None, False, 2.5, None),
    "topk_softmax_backward": lambda x: (
        *(x, *mine.topk_softmax(x.detach(), 1, scores="sigmoid"), rows_of(x)[:, None]),
        *("sigmoid", True, 2.5, None),
    ),
    "hooked_terms": lambda x: (
        *(x, lse_of(x), rows_of(x), IDS, None, None, None, None, None, None, None, None),
        *(0.5, 2.0, None, None, None, None, None, None, None),
        *("token_log_probs", -1, None),
    ),
    "hooked_backward": lambda x: (
        *(x, normalised(x).to(x.dtype), x.detach(), *(None,) * 10),
        *(0.5, 2.0, None, None, None, None, None, None, None),
        *("softmax", 0, 0.0, -1, x.dtype, [True, False, False, False], None),
    ),
}
VIEWS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda x: x,
    "every other": lambda x: torch.stack((x, x), -1).flatten(1)[:, ::2],
    "transposed": lambda x: x.T.contiguous().T,
    "part of rows": lambda x: torch.cat((x, x), 1)[:, : x.shape[1]],
    "one row": lambda x: x[:1].expand(x.shape),
}


# Whose gradient says that it is not differentiable again, and what has none.
REFUSED = (
    "sample",
    *("entropy_backward", "token_log_probs_backward", "hooked_terms", "hooked_backward"),
    "topk_softmax_backward",
    "probability_losses_backward",
    *("linear_cross_entropy_backward", "linear_token_log_probs_backward"),
)
# Each operator with each type, and with each view, of which types take turns.
LAID_OUT = [
    (name, view, dtype)
    for i, name in enumerate(ARGUMENTS)
    for j, view in enumerate(VIEWS)
    for dtype in (
        FLOATS if view == "contiguous" else [(torch.float32, torch.bfloat16)[(i + j) % 2]]
    )
]


@pytest.mark.parametrize(("name", "view", "dtype"), LAID_OUT)
def test_operators_are_registered_as_they_should_be(name: str, view: str, dtype: Any) -> None:
    """All of them: schema, results for FakeTensors, gradients, dynamic shapes."""
    x = VIEWS[view](torch.randn(3, 4, generator=torch.Generator().manual_seed(7)).to(dtype))
    packet = getattr(torch.ops.softgen, name)
    tracked = name not in REFUSED
    given = ARGUMENTS[name](x.detach().requires_grad_(tracked))
    torch.library.opcheck(getattr(packet, OVERLOAD), given)
    kernel = getattr(torch.ops.softgen, f"{name}_kernel")
    found = getattr(kernel, OVERLOAD)(*ARGUMENTS[name](x.detach()))
    for each in found if isinstance(found, tuple) else (found,):
        assert each.is_contiguous()


def test_every_row_of_the_table_is_checked() -> None:
    assert set(TABLE) == set(ARGUMENTS)


def test_every_row_of_the_table_takes_dtensors_or_says_that_it_does_not() -> None:
    without = ("hooked", "linear", "topk", "ranked", "sample")
    refused = {name for name in TABLE if name.startswith(without)}
    assert set(TABLE) - set(RULES) == refused


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
    # By other names PyTorch finds what earlier versions of softgen left on disk: registry.py.
    backward = [{f"softgen::{name}_backward_kernel.v3"}] if tracked else []
    assert recorded == [{f"softgen::{name}_kernel.v3"}, *backward]


def test_a_compiled_mean_is_four_launches(world: World) -> None:
    compiled = torch.compile(FUNCTIONS["cross_entropy"][0], backend="aot_eager", fullgraph=True)
    compiled(torch.randn(3, 4, requires_grad=True)).backward()
    assert world.launches == ["cross_entropy", "reduce_rows", "share", "cross_entropy_backward"]


def test_an_operator_that_is_called_itself_has_its_gradient() -> None:
    a = torch.randn(3, 4, requires_grad=True)
    y = torch.ops.softgen.log_softmax(a, -1, torch.float32, None)
    (found,) = torch.autograd.grad(y[:, 0].sum(), a)
    wanted = torch.autograd.grad(torch.log_softmax(a, -1)[:, 0].sum(), a)[0]
    torch.testing.assert_close(found, wanted)
    assert not torch.ops.softgen.log_softmax(a.detach(), -1, torch.float32, None).requires_grad


@pytest.mark.parametrize("name", ["hooks", "entropy", *FUNCTIONS])
@pytest.mark.parametrize("tracked", [False, True])
def test_an_eager_call_goes_past_the_registry(name: str, tracked: bool) -> None:
    """Its dispatch takes 5 to 11 us a call. With its gradient, and with options that are None."""
    more: dict[str, Callable[[Any], Any]] = {
        "hooks": lambda x: mine.softmax(x, -1, softcap=2.0, dropout=0.5, seed=1),
        "entropy": mine.entropy,
    }
    f = more.get(name) or FUNCTIONS[name][0]
    with torch.autograd.profiler.profile() as recorded:
        y = f(torch.randn(3, 4, requires_grad=tracked))
        if tracked:
            y.square().sum().backward()
    names = {event.name for event in recorded.function_events}
    assert "aten::randn" in names
    assert not [each for each in names if "softgen::" in each]
