"""Compiled code while PyTorch's functions are patched: conversions are taken along, no more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

import torch.nn.functional as F  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._inductor import config  # noqa: E402
from torch._inductor.custom_graph_pass import CustomGraphPass  # noqa: E402
from torch._inductor.decomposition import select_decomp_table  # noqa: E402

import softgen.torch as mine  # noqa: E402
from softgen.torch import compiled  # noqa: E402
from tests.helpers.torch_calls import World  # noqa: E402

# Of PyTorch's own code.
pytestmark = pytest.mark.filterwarnings("ignore")

B, T, WORDS, WIDTH = 2, 3, 8, 4
LABELS = torch.tensor([[1, 2, 3], [4, -100, 7]])
HEAD = torch.linspace(-1.0, 2.0, WORDS * WIDTH).view(WORDS, WIDTH)


@pytest.fixture(autouse=True)
def patched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Patched, tensors are large enough, and nothing was compiled before, also not on disk."""
    monkeypatch.setattr(compiled, "FEWEST_ELEMENTS", 0)
    before = config.pre_grad_custom_pass
    torch._dynamo.reset()
    mine.patch()
    with config.patch(force_disable_caches=True):
        yield
    mine.unpatch()
    torch._dynamo.reset()
    assert config.pre_grad_custom_pass is before


def huggingface(logits: Any, labels: Any, count: Any = None, **how: Any) -> Any:
    """The loss of a language model as Hugging Face writes it."""
    logits = logits.float()
    labels = F.pad(labels, (0, 1), value=-100)
    labels = labels[..., 1:].contiguous()
    logits, labels = logits.view(-1, WORDS), labels.view(-1).to(logits.device)
    reduction = "mean" if count is None else "sum"
    loss = F.cross_entropy(logits, labels, ignore_index=-100, reduction=reduction, **how)
    return loss if count is None else loss / count


def head(x: Any) -> Any:
    return F.linear(x, HEAD.to(x.dtype))


def with_gradient(run: Callable[[Any], Any], x: Any) -> tuple[Any, Any]:
    x = x.detach().requires_grad_()
    y = run(x)
    return y.detach(), torch.autograd.grad(y.float().square().sum(), x)[0]


def inputs(dtype: Any = torch.bfloat16) -> Any:
    drawn = torch.randn(B, T, WIDTH, generator=torch.Generator().manual_seed(3))
    return drawn.to(dtype)


def by_hand(graph: Any, inputs: Any) -> Any:
    """A backend with softgen's pass in front, and PyTorch's decompositions, but no code of its own.

    Where it is not softgen's operator, a softmax is made of exponentials.
    """
    compiled.Pass(None)(graph.graph)
    graph.recompile()
    forward = aot_autograd(
        fw_compiler=lambda graph, _: graph.forward,
        decompositions=select_decomp_table(),
    )
    return forward(graph, inputs)


def compile(run: Callable[..., Any], **options: Any) -> Any:
    return torch.compile(run, fullgraph=True, backend=by_hand, **options)


ROWS = ["cross_entropy", "cross_entropy_backward"]
SUM = ["cross_entropy", "reduce_rows", "cross_entropy_backward"]
MEAN = ["cross_entropy", "reduce_rows", "share", "cross_entropy_backward"]
SOFTMAX = ["softmax", "softmax_backward"]

TAKEN: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "a mean": (lambda x: huggingface(head(x), LABELS), MEAN),
    "a sum, divided by a number": (lambda x: huggingface(head(x), LABELS, 5), SUM),
    "a sum, divided by a tensor": (
        lambda x: huggingface(head(x), LABELS, torch.tensor(5)),
        SUM,
    ),
    "a smooth one": (lambda x: huggingface(head(x), LABELS, label_smoothing=0.1), MEAN),
    "converted behind the view": (
        lambda x: F.cross_entropy(head(x).view(-1, WORDS).to(torch.float32), LABELS.view(-1)),
        MEAN,
    ),
    "converted twice": (lambda x: huggingface(head(x).float(), LABELS), MEAN),
    "rows alone": (
        lambda x: F.cross_entropy(head(x[0]).float(), LABELS[0], reduction="none"),
        ROWS,
    ),
    "softmax with a dtype": (lambda x: F.softmax(head(x), -1, dtype=torch.float32), SOFTMAX),
    "softmax of what was converted": (lambda x: F.softmax(head(x).float(), dim=1), SOFTMAX),
    "log_softmax": (
        lambda x: F.log_softmax(head(x).float().view(-1, WORDS), -1),
        ["log_softmax", "log_softmax_backward"],
    ),
    "nn.Softmax": (lambda x: torch.nn.Softmax(-1)((x @ HEAD.T.to(x.dtype)).float()), SOFTMAX),
}


def loss_of(wide: Any) -> Any:
    return F.cross_entropy(wide.view(-1, WORDS), LABELS.view(-1))


def converted_and_kept(x: Any) -> Any:
    logits = head(x).float()
    return loss_of(logits) + logits.sum()


def changed_between(x: Any) -> Any:
    logits = head(x)
    wide = logits.float()
    logits.mul_(2)
    return loss_of(wide) + logits.sum()


def changed_out_of_sight(x: Any) -> Any:
    logits = head(x)
    wide = logits.float()
    F.threshold(logits, 0.0, 5.0, True)
    return loss_of(wide) + logits.sum()


def converted_without_gradient(x: Any) -> Any:
    logits = head(x)
    with torch.no_grad():
        wide = logits.float()
    return loss_of(wide) + logits.sum()


LEFT: dict[str, Callable[[Any], Any]] = {
    "of float32": lambda x: huggingface(head(x.float()), LABELS),
    "no conversion": lambda x: F.cross_entropy(head(x).view(-1, WORDS), LABELS.view(-1)),
    "no conversion of a softmax": lambda x: F.softmax(head(x), -1),
    "weights": lambda x: huggingface(head(x), LABELS, weight=torch.ones(WORDS)),
    "probabilities": lambda x: F.cross_entropy(head(x[0]).float(), torch.full((T, WORDS), 0.1)),
    "shifted logits": lambda x: F.cross_entropy(
        head(x).float()[:, :-1].contiguous().view(-1, WORDS), LABELS[:, 1:].reshape(-1)
    ),
    "float32 that is needed": converted_and_kept,
    "a change between": changed_between,
    "a change that has no name": changed_out_of_sight,
    "no gradient of the conversion": converted_without_gradient,
    "something to fuse in front": lambda x: huggingface(30 * torch.tanh(head(x) / 30), LABELS),
    "something to fuse in front of a softmax": lambda x: F.softmax(
        head(x) * 2, -1, dtype=torch.float32
    ),
    "something to fuse behind": lambda x: F.softmax(head(x), -1, dtype=torch.float32).to(x.dtype),
    "torch.softmax": lambda x: torch.softmax(head(x).float(), -1),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", TAKEN)
def test_conversions_are_taken_along(world: World, name: str, dtype: Any) -> None:
    run, launches = TAKEN[name]
    found = with_gradient(compile(run), inputs(dtype))
    assert world.launches == launches
    mine.unpatch()
    wanted = with_gradient(run, inputs(dtype))
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", LEFT)
def test_what_stays_inductors(world: World, name: str) -> None:
    found = with_gradient(compile(LEFT[name]), inputs())
    assert world.launches == []
    mine.unpatch()
    wanted = with_gradient(LEFT[name], inputs())
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)


def test_logits_that_are_written_anyway(world: World) -> None:
    """What inductor would fuse in front is written where the caller gets the logits."""

    def run(x: Any) -> Any:
        logits = 30 * torch.tanh(head(x) / 30)
        return huggingface(logits, LABELS), logits

    loss, _ = compile(run)(inputs())
    assert world.launches == MEAN[:2]
    torch.testing.assert_close(loss, run(inputs())[0], rtol=2e-2, atol=2e-2)


def test_a_view_that_would_be_a_copy_stays_inductors(world: World) -> None:
    x = inputs().transpose(0, 1) @ HEAD.T.bfloat16()
    across = x.contiguous().transpose(0, 1)

    def run(x: Any) -> Any:
        return F.cross_entropy(x.float().reshape(-1, WORDS), LABELS.view(-1))

    found = compile(run)(across)
    assert world.launches == []
    mine.unpatch()
    torch.testing.assert_close(found, run(across), rtol=2e-2, atol=2e-2)


def test_small_tensors_stay_inductors(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "FEWEST_ELEMENTS", B * T * WORDS + 1)
    compile(TAKEN["a mean"][0])(inputs())
    assert world.launches == []


def test_dynamic_shapes(world: World) -> None:
    run = compile(lambda x, labels: huggingface(head(x), labels), dynamic=True)
    for rows in (T, T + 2):
        x = inputs()[:, :1].expand(B, rows, WIDTH).contiguous()
        labels = torch.arange(B * rows).view(B, rows) % WORDS
        found = run(x, labels)
        torch.testing.assert_close(found, huggingface(head(x), labels), rtol=2e-2, atol=2e-2)
    assert world.launches.count("cross_entropy") == 2 + 2  # and of what is compared


@pytest.mark.parametrize("taken", [True, False])
def test_inductor(world: World, taken: bool) -> None:
    """Its own kernels are what softgen does not take: none is launched for them."""
    run = TAKEN["a mean"][0] if taken else LEFT["no conversion"]
    found = with_gradient(torch.compile(run, fullgraph=True), inputs())
    assert world.launches == (MEAN if taken else [])
    mine.unpatch()
    wanted = with_gradient(run, inputs())
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)


def test_what_inductor_keeps_on_disk(world: World) -> None:
    """What was compiled patched is not found unpatched, nor the other way around."""
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_inductor_cache

    run, hits = TAKEN["rows alone"][0], []
    with config.patch(force_disable_caches=False), fresh_inductor_cache():
        for patched in (True, False, True, False):
            (mine.patch if patched else mine.unpatch)()
            torch._dynamo.reset()
            counters.clear()
            world.launches.clear()
            with_gradient(torch.compile(run, fullgraph=True), inputs())
            assert world.launches == (ROWS if patched else [])
            hits.append(counters["inductor"]["fxgraph_cache_hit"] > 0)
    assert hits == [False, False, True, True]


def test_what_dynamo_took_for_pytorchs_own(world: World) -> None:
    """It looks torch up once; patched before that, a wrapper stands in the graph as it is."""
    from torch._dynamo import trace_rules

    try:
        trace_rules.get_torch_obj_rule_map.cache_clear()
        seen = []

        def backend(graph: Any, inputs: Any) -> Any:
            seen.append(isinstance(config.pre_grad_custom_pass, compiled.Pass))
            return by_hand(graph, inputs)

        run = TAKEN["a mean"][0]
        for _ in range(2):
            mine.patch()
            found = with_gradient(torch.compile(run, fullgraph=True, backend=backend), inputs())
            mine.unpatch()
            torch._dynamo.reset()
            plain = with_gradient(torch.compile(run, fullgraph=True, backend=backend), inputs())
            torch.testing.assert_close(found, plain, rtol=2e-2, atol=2e-2)
        assert world.launches == MEAN * 2
        assert seen == [True, False] * 2
    finally:
        trace_rules.get_torch_obj_rule_map.cache_clear()


class Other(CustomGraphPass):  # type: ignore[misc]
    """A pass of another library."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, graph: Any) -> None:
        self.runs += 1

    def uuid(self) -> Any:
        return "other"


def test_other_passes_stay(world: World) -> None:
    other, later = Other(), Other()
    with config.patch(pre_grad_custom_pass=other):
        compiled.install()
        compiled.install()
        both = config.pre_grad_custom_pass
        both(torch.fx.Graph())
        assert other.runs == 1
        on = both.uuid()
        assert on[-1] == "other"
        mine.unpatch()
        assert config.pre_grad_custom_pass is other
        assert both.uuid() != on
        mine.patch()
        compiled.install()
        config.pre_grad_custom_pass = later
        mine.unpatch()
        assert config.pre_grad_custom_pass is later


def test_a_pass_that_is_left_does_nothing(world: World) -> None:
    """As where another library put one around it, or in a thread that does not unpatch."""
    for patched in (True, False):
        (mine.patch if patched else mine.unpatch)()
        torch._dynamo.reset()
        compile(TAKEN["a mean"][0])(inputs())
        assert world.launches == MEAN[:2]


def test_a_pass_that_cannot_be_kept_on_disk() -> None:
    assert compiled.Pass(lambda graph: None).uuid() is None
    assert compiled.Pass(None).uuid() == compiled.Pass(None).uuid()


def test_threads(world: World) -> None:
    """Settings of inductor are a thread's own: what it compiles there is patched too."""
    found = []

    def run() -> None:
        torch.compile(TAKEN["a mean"][0], backend=seen)(inputs())

    def seen(graph: Any, inputs: Any) -> Any:
        found.append(type(config.pre_grad_custom_pass))
        return by_hand(graph, inputs)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [compiled.Pass]
    assert world.launches == MEAN[:2]
