"""softgen.torch.softmax with hooks along any dimension, against PyTorch's operations in float64."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

import softgen.torch as mine  # noqa: E402
from softgen.errors import (  # noqa: E402
    InvalidTypeError,
    InvalidValueError,
    NotSupportedError,
)

KEYS, CAP = 5, 4.0


def drawn(*shape: int) -> Any:
    return (torch.randn(shape, dtype=torch.float64) * 2).requires_grad_()


def theirs(x: Any, dim: int, scale: Any, bias: Any, sink: Any, mask: Any) -> Any:
    """Return softmax of x with a column more, by the definitions."""
    behind = x.dim() - 1 - dim % x.dim()
    sink = sink.expand(scale.shape)
    of_rows = [each.unsqueeze(each.dim() - behind) for each in (scale, sink)]
    z = CAP * torch.tanh(x * of_rows[0] / CAP) + bias
    z = torch.where(mask, z, -torch.inf)
    shape = list(x.shape)
    shape[dim] = 1
    y = torch.softmax(torch.cat((z, of_rows[1].expand(shape)), dim), dim)
    return y.narrow(dim, 0, x.shape[dim]) * 0.5


@pytest.mark.parametrize(("dim", "compiled"), [(0, False), (1, False), (-1, False), (0, True)])
def test_values_and_gradients_along_any_dimension(dim: int, compiled: bool) -> None:
    torch.manual_seed(dim)
    shape = [2, 3, 4]
    shape[dim] = KEYS
    rows = [n for i, n in enumerate(shape) if i != dim % 3]
    lines = [1, 1, 1]
    lines[dim] = KEYS
    given = (drawn(*rows), drawn(*lines), drawn(rows[1]))
    x, mask = drawn(*shape), torch.rand(shape) < 0.8
    dy = torch.randn(shape, dtype=torch.float64)

    def ours(x: Any, scale: Any, bias: Any, sink: Any) -> Any:
        hooks = {"scale": scale, "bias": bias, "sink": sink, "mask": mask}
        return mine.softmax(x, dim, **hooks, softcap=CAP, out_scale=0.5)

    run = torch.compile(ours, backend="aot_eager", fullgraph=True) if compiled else ours
    y, wanted = run(x, *given), theirs(x, dim, *given, mask)
    torch.testing.assert_close(y, wanted, rtol=1e-12, atol=1e-14)
    found = torch.autograd.grad(y, (x, *given), dy)
    for got, right in zip(found, torch.autograd.grad(wanted, (x, *given), dy), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("shape", [(4, 1), (1, 5), (1, 1), (1,), ()])
def test_a_bias_with_one_element_a_row(shape: tuple[int, ...], dim: int, compiled: bool) -> None:
    """Beside a sink it moves the result, and has a gradient: that of PyTorch's sum."""
    torch._dynamo.reset()  # one code compiles 8 times
    torch.manual_seed(3)
    x, bias, sink = drawn(4, 5), drawn(*shape), drawn()
    dy = torch.randn(4, 5, dtype=torch.float64)

    def ours(x: Any, bias: Any, sink: Any) -> Any:
        return mine.softmax(x, dim, bias=bias, sink=sink)

    run = torch.compile(ours, backend="aot_eager", fullgraph=True) if compiled else ours
    z = torch.cat((x + bias, sink.expand((1, 5) if dim == 0 else (4, 1))), dim)
    wanted = torch.softmax(z, dim).narrow(dim, 0, x.shape[dim])
    y = run(x, bias, sink)
    torch.testing.assert_close(y, wanted, rtol=1e-12, atol=1e-14)
    given = (x, bias, sink)
    found, right = (torch.autograd.grad(each, given, dy) for each in (y, wanted))
    for got, expected in zip(found, right, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("softcap", [None, CAP])
def test_a_scale_of_0_makes_all_alike_and_has_no_gradient(softcap: float | None) -> None:
    x = drawn(4, KEYS)
    y = mine.softmax(x, -1, scale=0.0, softcap=softcap)
    torch.testing.assert_close(y, torch.full_like(y, 1 / KEYS))
    (dx,) = torch.autograd.grad(y, x, torch.randn_like(y))
    assert not dx.any()


def test_causal_and_dropout_along_the_first_dimension() -> None:
    x = drawn(6, 4)
    y = mine.softmax(x, 0, causal=True, causal_offset=1, dropout=0.25, seed=3)
    shown = torch.arange(6)[:, None] <= torch.arange(4) + 1
    p = torch.softmax(torch.where(shown, x, -torch.inf), 0)
    kept = y != 0
    torch.testing.assert_close(y, torch.where(kept, p / 0.75, 0))
    assert 0 < int((~kept & shown).sum()) < int(shown.sum())
    dy = torch.randn(6, 4, dtype=torch.float64)
    (found,) = torch.autograd.grad(y, x, dy)
    (right,) = torch.autograd.grad(torch.where(kept, p / 0.75, 0), x, dy)
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_scale_of_each_row_on_the_way_out(compiled: bool) -> None:
    x, out = drawn(5, 3), torch.tensor([0.5, 2.0, -1.0], dtype=torch.float64)

    def ours(x: Any, out: Any) -> Any:
        return mine.softmax(x, 0, out_scale=out)

    y = (torch.compile(ours, backend="aot_eager", fullgraph=True) if compiled else ours)(x, out)
    torch.testing.assert_close(y, torch.softmax(x, 0) * out)
    (found,) = torch.autograd.grad(y, x, dy := torch.randn(5, 3, dtype=torch.float64))
    (right,) = torch.autograd.grad(torch.softmax(x, 0) * out, x, dy)
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_scale_on_the_way_out_is_wider_than_16_bits(dtype: Any) -> None:
    """Of rows, it made the gradient of the result one of float32, which was refused."""
    x, out = drawn(5, 3).to(dtype).detach().requires_grad_(), torch.tensor([0.5, 2.0, -1.0])
    wide = x.detach().double().requires_grad_()
    y, wanted = mine.softmax(x, 0, out_scale=out), torch.softmax(wide, 0) * out
    dy = torch.randn(5, 3, dtype=torch.float64).to(dtype)
    (found,) = torch.autograd.grad(y, x, dy)
    (right,) = torch.autograd.grad(wanted, wide, dy.double())
    assert found.dtype is dtype
    torch.testing.assert_close(found.double(), right, rtol=2e-2, atol=1e-2)


def test_arguments_that_are_no_hooks_or_no_tensors() -> None:
    x = drawn(3, 4)
    with pytest.raises(InvalidTypeError, match="unknown argument 'masks'"):
        mine.softmax(x, -1, masks=None)  # type: ignore[call-arg]
    with pytest.raises(InvalidTypeError, match="bias must be a tensor, got list"):
        mine.softmax(x, -1, bias=[1.0])
    with pytest.raises(InvalidValueError, match="softcap must be above 0"):
        mine.softmax(x, -1, softcap=-1.0)


@pytest.mark.parametrize("hook", ["plain", "sink", "dropout"])
def test_a_gradient_that_is_differentiated_again_is_refused(hook: str) -> None:
    """That of lse is none, so that a second derivative would be wrong in silence."""
    hooks: dict[str, dict[str, Any]] = {
        "plain": {"causal": True},
        "sink": {"sink": drawn(1)},
        "dropout": {"dropout": 0.5, "seed": 1},
    }
    x = drawn(3, 4)
    y = mine.softmax(x, -1, **hooks[hook])
    (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(NotSupportedError, match="with hooks is not differentiable again"):
        dx.sum().backward()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("asked", ["0", "1", "2", "3", "13", "023"])
def test_only_what_asks_for_a_gradient_gets_one(asked: str, compiled: bool) -> None:
    given = (drawn(5, 4), drawn(5), drawn(4), drawn(1))
    tensors = [t.detach().requires_grad_(str(i) in asked) for i, t in enumerate(given)]

    def ours(x: Any, scale: Any, bias: Any, sink: Any) -> Any:
        return mine.softmax(x, -1, scale=scale, bias=bias, sink=sink, softcap=CAP, out_scale=0.5)

    run = torch.compile(ours, backend="aot_eager", fullgraph=True) if compiled else ours
    mask = torch.ones(5, 4, dtype=torch.bool)
    run(*tensors).square().sum().backward()
    wanted = theirs(given[0], -1, *given[1:3], given[3], mask).square().sum()
    for i, (got, right) in enumerate(zip(tensors, torch.autograd.grad(wanted, given), strict=True)):
        if str(i) in asked:
            torch.testing.assert_close(got.grad, right, rtol=1e-10, atol=1e-12)
        else:
            assert got.grad is None


def test_dropout_multiplies_by_zero_what_is_no_number() -> None:
    """Of x forward, of dy backward: as PyTorch's dropout, which hides no NaN."""
    x, dy = drawn(6, 40), torch.randn(6, 40, dtype=torch.float64)
    kept = mine.softmax(x.detach(), -1, dropout=0.25, seed=3) != 0
    with torch.no_grad():
        x[1, 2] = torch.nan
    dy[3, int((~kept[3]).nonzero()[0])] = torch.nan
    dy[4, int(kept[4].nonzero()[0])] = torch.nan
    y = mine.softmax(x, -1, dropout=0.25, seed=3)
    wanted = torch.softmax(x, -1) * (kept / 0.75)
    torch.testing.assert_close(y, wanted, equal_nan=True)
    (found,) = torch.autograd.grad(y, x, dy)
    (right,) = torch.autograd.grad(wanted, x, dy)
    torch.testing.assert_close(found, right, equal_nan=True)
    assert found.isnan().all(dim=1).tolist() == [False, True, False, True, True, False]
