"""entropy and the gradients that are made of lse, on the GPU: every regime, float64, PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

import softgen
from softgen.errors import NotSupportedError
from softgen.problems.dtypes import DType
from softgen.problems.numerics import check, numpy_dtype, other_inputs
from softgen.problems.problem import Problem
from tests.helpers.device_reference import hard_rows, on_host

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.short)
@pytest.mark.parametrize("cols", [1, 33, 1000, 4097, 32000, 151936])
def test_every_regime(cols: int, dtype: DType) -> None:
    import cupy

    x = hard_rows(cols, dtype)
    given = cupy.asarray(x.view(numpy_dtype(dtype)))
    results = softgen.entropy(given, return_lse=True, tune="off")
    assert check(on_host(*results), (x,), Problem.of("entropy_lse", dtype, cols)).message == ""
    assert (
        on_host(softgen.entropy(given, tune="off"))[0].tobytes() == on_host(results[0])[0].tobytes()
    )
    for name in ("logsumexp_backward", "entropy_backward"):
        problem = Problem.of(name, dtype, cols)
        others = other_inputs(x, problem)
        arrays = [cupy.asarray(each) for each in others]
        dx = getattr(softgen, name)(given.copy(), *arrays, tune="off")
        assert check(on_host(dx), (x, *others), problem).message == ""
        mine = given.copy()
        assert getattr(softgen, name)(mine, *arrays, tune="off", out=mine) is mine
        assert on_host(mine)[0].tobytes() == on_host(dx)[0].tobytes()


@pytest.mark.parametrize("dim", [-1, 0, (0, 2)])
def test_the_gradient_is_pytorchs(dim: Any) -> None:
    torch = pytest.importorskip("torch")
    import softgen.torch

    x = torch.randn(3, 5, 7, device="cuda", dtype=torch.float64, requires_grad=True)
    log_p = x - torch.logsumexp(x, dim, keepdim=True)
    wanted = -(log_p.exp() * log_p).sum(dim)
    torch.testing.assert_close(softgen.torch.entropy(x, dim), wanted)
    assert torch.autograd.gradcheck(lambda a: softgen.torch.entropy(a, dim), (x,))
    run = torch.compile(
        lambda a: softgen.torch.entropy(a, dim), fullgraph=True, backend="aot_eager"
    )
    (found,) = torch.autograd.grad(run(x).sum(), x)
    torch.testing.assert_close(found, *torch.autograd.grad(wanted.sum(), x))
    (once,) = torch.autograd.grad(softgen.torch.entropy(x, dim).sum(), x, create_graph=True)
    with pytest.raises(NotSupportedError, match="not differentiable again"):
        once.sum().backward()
