"""How kernels are chosen: batch_invariant as an argument, and PyTorch's deterministic mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

import softgen.torch as mine  # noqa: E402
from softgen.call.kernels import INVARIANT  # noqa: E402
from tests.helpers.torch_calls import World  # noqa: E402

# Of PyTorch's own code.
pytestmark = pytest.mark.filterwarnings("ignore")

IDS = torch.tensor([2, 0, 1])
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, **options: mine.softmax(x, -1, **options),
    "log_softmax": lambda x, **options: mine.log_softmax(x, -1, **options),
    "logsumexp": lambda x, **options: mine.logsumexp(x, -1, **options),
    "entropy": lambda x, **options: mine.entropy(x, -1, **options),
    "token_log_probs": lambda x, **options: mine.token_log_probs(x, IDS, **options),
    "both": lambda x, **options: mine.token_log_probs(x, IDS, return_entropy=True, **options)[1],
    "cross_entropy": lambda x, **options: mine.cross_entropy(x, IDS, **options),
    "smoothed": lambda x, **options: mine.cross_entropy(x, IDS, label_smoothing=0.1, **options),
    "hooks": lambda x, **options: mine.softmax(x, -1, softcap=2.0, dropout=0.5, seed=1, **options),
}
functions = pytest.mark.parametrize("name", FUNCTIONS)
ways = pytest.mark.parametrize("way", ["plain", "tracked", "compiled"])


def call(name: str, way: str, **options: Any) -> None:
    """Call a function, and its gradient where it is tracked."""
    x = torch.randn(3, 4, requires_grad=way != "plain")
    run: Callable[[Any], Any] = lambda x: FUNCTIONS[name](x, **options)  # noqa: E731
    if way == "compiled":
        torch._dynamo.reset()
        run = torch.compile(run, backend="aot_eager", fullgraph=True)
    y = run(x)
    if way != "plain":
        y.square().sum().backward()


@functions
@ways
def test_batch_invariant_is_of_the_call_and_its_gradient(
    name: str, way: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(name, way)
    assert set(world.modes) == {"on"}
    world.modes.clear()
    call(name, way, batch_invariant=True)
    assert set(world.modes) == {INVARIANT}
    assert len(world.modes) == len(world.chosen) / 2
    monkeypatch.setenv("SOFTGEN_BATCH_INVARIANT", "1")
    world.modes.clear()
    call(name, way)
    assert not set(world.modes) - {INVARIANT}
    world.modes.clear()
    call(name, way, batch_invariant=False)
    assert INVARIANT not in world.modes


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@functions
@ways
@pytest.mark.parametrize("tune", [None, "force"])
def test_no_timing_decides_where_pytorch_is_to_be_deterministic(
    *,
    name: str,
    way: str,
    tune: str | None,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    deterministic: None,
) -> None:
    if tune:
        monkeypatch.setenv("SOFTGEN_TUNE", tune)
    call(name, way)
    assert set(world.modes) == {"off"}
    torch.use_deterministic_algorithms(False)
    world.modes.clear()
    call(name, way)
    assert set(world.modes) == {tune or "on"}


def test_the_deterministic_mode_counts_where_compiled_code_runs(world: World) -> None:
    compiled = torch.compile(FUNCTIONS["softmax"], backend="aot_eager", fullgraph=True)
    x = torch.randn(3, 4)
    compiled(x)
    torch.use_deterministic_algorithms(True)
    try:
        compiled(x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert world.modes == ["on", "off"]
