"""What inductor writes: calls of the functions behind the operators, past the dispatcher."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

import softgen.torch as mine  # noqa: E402
from softgen.torch import inductor  # noqa: E402
from tests.helpers.torch_calls import World  # noqa: E402

# Of PyTorch's own code.
pytestmark = pytest.mark.filterwarnings("ignore")

IDS = torch.tensor([2, 0, 1])


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    """Nothing that was compiled before, also not on disk."""
    import torch._inductor.config as config

    torch._dynamo.reset()
    with config.patch(force_disable_caches=True):
        yield


def written(function: Any, x: Any) -> tuple[Any, str]:
    """Return the result of the compiled function, and the code of forward and backward."""
    from torch._inductor.utils import run_and_get_code

    def step() -> Any:
        y = torch.compile(function, fullgraph=True)(x)
        if x.requires_grad:
            y.backward(torch.arange(float(y.numel())).view(y.shape))
        return y.detach()

    y, code = run_and_get_code(step)
    return y, "\n".join(code)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_forward_and_backward_are_called_directly(name: str, world: World) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    y, code = written(lambda x: getattr(mine, name)(x, -1), x)
    layout = "torch.float32 cpu [3, 4] [4, 1]"
    for operator, tensors in ((f"{name}_kernel", 1), (f"{name}_backward", 2)):
        text = ", ".join((*[layout] * tensors, "-1", "torch.float32"))
        assert f"torch.ops.softgen.{operator}.default.fixed['{text}'](" in code
        assert f"torch.ops.softgen.{operator}.default(" not in code
    assert world.launches == [name, f"{name}_backward"]
    a = x.detach().clone().requires_grad_()
    wanted = getattr(torch, name)(a, -1)
    wanted.backward(torch.arange(12.0).view(3, 4))
    torch.testing.assert_close(y, wanted)
    torch.testing.assert_close(x.grad, a.grad)


def test_operators_of_several_results_too() -> None:
    x = torch.randn(3, 4)
    y, code = written(lambda x: mine.token_log_probs(x, IDS), x)
    assert "torch.ops.softgen.token_log_probs_kernel.default.direct(" in code
    torch.testing.assert_close(y, torch.log_softmax(x, -1)[torch.arange(3), IDS])


def test_what_is_open_is_asked_at_each_call(world: World) -> None:
    x = torch.randn(3, 4)
    torch._dynamo.mark_dynamic(x, 0)
    y, code = written(lambda x: mine.softmax(x, -1), x)
    assert "torch.ops.softgen.softmax_kernel.default.direct(" in code
    torch.testing.assert_close(y, torch.softmax(x, -1))


@pytest.mark.parametrize("tracked", [False, True])
def test_later_calls_are_launched_and_other_tensors_looked_at(tracked: bool, world: World) -> None:
    softmax = torch.ops.softgen.softmax_kernel.default.fixed
    backward = torch.ops.softgen.softmax_backward.default.fixed
    chosen = []
    for _ in range(3):
        chosen.append(len(world.chosen))
        for shape, dim in (((3, 4), 1), ((3, 4), 0), ((2, 3, 4), -1)):
            for start in (0, 1):  # which is not aligned to 16 bytes
                size, text = torch.Size(shape).numel(), f"{shape} {dim}"
                x = torch.randn(size + 1)[start : size + start].view(shape)
                dy = torch.randn(size + 1)[start : size + start].view(shape)
                with torch.no_grad():  # as compiled code runs
                    p = softmax[text](x.requires_grad_(tracked), dim, torch.float32)
                    dx = backward[text](dy, p, dim, torch.float32)
                torch.testing.assert_close(p, torch.softmax(x.detach(), dim))
                torch.testing.assert_close(dx, p * (dy - (dy * p).sum(dim, keepdim=True)))
    assert world.launches == ["softmax", "softmax_backward"] * 18
    assert chosen[1:] == [12, 12] == [len(world.chosen)] * 2


def test_the_environment_counts_in_compiled_code(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, x = torch.ops.softgen.softmax_kernel.default.fixed, torch.randn(3, 4)
    for _ in range(2):
        run["alone"](x, -1, torch.float32)
    monkeypatch.setenv("SOFTGEN_BATCH_INVARIANT", "1")
    run["alone"](x, -1, torch.float32)
    assert world.chosen == ["softmax"] * 2


def test_a_view_is_read_where_it_is(world: World) -> None:
    x = torch.randn(4, 3).T
    y, code = written(lambda x: mine.softmax(x, 0), x)
    assert "empty_strided" not in code.partition("def call(")[2].partition("return")[0]
    torch.testing.assert_close(y, torch.softmax(x, 0))


def test_an_inductor_of_another_kind_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._inductor.lowering", SimpleNamespace())
    monkeypatch.setattr(inductor, "_known", set())
    inductor.write_directly(torch.ops.softgen.softmax_kernel.default)
    assert not inductor._known
