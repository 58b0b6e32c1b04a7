"""Which tensors a kernel may be launched on, and what is said of others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

from softgen.call.eager import is_eager, require_launchable  # noqa: E402
from softgen.errors import InvalidTypeError, NotSupportedError  # noqa: E402
from tests.helpers.torch_kinds import Mode, Sub  # noqa: E402

# Of PyTorch's own code.
pytestmark = pytest.mark.filterwarnings("ignore")

# Any where PyTorch is not installed, as where the linters run.
Function: Any = torch.autograd.Function


def test_plain_tensors_and_parameters_are() -> None:
    x = torch.randn(3)
    assert is_eager(x, torch.nn.Parameter(x))
    with torch.inference_mode(), torch.autocast("cpu"):
        assert is_eager(torch.randn(3))
    assert is_eager(x.requires_grad_())


def fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        return mode.from_tensor(torch.randn(3))


OTHERS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "fake": (fake, NotSupportedError, "FakeTensor, whose memory no kernel can see"),
    "negated": (lambda: torch.randn(3)._neg_view(), NotSupportedError, "resolve_neg"),
    "zeros": (lambda: torch._efficientzerotensor(3), NotSupportedError, "zeros without memory"),
    "sparse": (lambda: torch.eye(3).to_sparse(), InvalidTypeError, r"to_dense\(\)"),
    "meta": (lambda: torch.empty(3, device="meta"), InvalidTypeError, "on meta; .*x.cuda"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_tensors_are_not(name: str) -> None:
    made, error, words = OTHERS[name]
    x = made()
    assert not is_eager(x)
    with pytest.raises(error, match=words):
        require_launchable(x)


def test_tensors_on_the_cpu_say_how_to_move_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # of the stand-in, to which they are on a GPU
    with pytest.raises(InvalidTypeError, match=r"^got a tensor on cpu; .*Move it with x\.cuda\(\)"):
        require_launchable(torch.randn(3))


def test_a_subclass_with_memory_may_be_launched_on_and_is_not_eager() -> None:
    x = torch.randn(3).as_subclass(Sub)
    require_launchable(x)
    assert not is_eager(x)


def test_tensors_that_want_a_gradient_are_refused_where_one_would_be_recorded() -> None:
    x = torch.randn(3, requires_grad=True)
    with pytest.raises(NotSupportedError, match=r"no_grad\(\), or pass x\.detach\(\)"):
        require_launchable(x)
    with torch.no_grad():
        require_launchable(x)


@contextlib.contextmanager
def dual_level() -> Any:
    with torch.autograd.forward_ad.dual_level():
        yield


def asked(x: Any) -> list[bool]:
    found = []

    def ask(v: Any) -> Any:
        found.append(is_eager(x))
        return v.sum()

    for around in (dual_level, Mode, torch._subclasses.fake_tensor.FakeTensorMode):
        with around():
            found.append(is_eager(x))
    torch.func.vmap(ask)(x)
    torch.func.grad(ask)(x)
    torch.jit.trace(ask, x, check_trace=False)
    torch.fx.experimental.proxy_tensor.make_fx(ask)(x)
    return found


def test_nothing_is_while_it_is_recorded_or_transformed() -> None:
    x = torch.randn(3)
    assert asked(x) == [False] * 7
    assert is_eager(x)
    with Mode(), pytest.raises(NotSupportedError, match="torch has functions that"):
        require_launchable(x)


def test_a_function_of_autograd_computes_without_tangents() -> None:
    """Its forward is called with tensors that have some, while PyTorch makes none."""
    found = []

    class Twice(Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            found.append(is_eager(x))
            return x * 2

        @staticmethod
        def jvp(ctx: Any, t: Any) -> Any:
            return t * 2

    with torch.autograd.forward_ad.dual_level():
        Twice.apply(torch.autograd.forward_ad.make_dual(torch.randn(3), torch.ones(3)))
    assert found == [True]
