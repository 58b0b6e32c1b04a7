"""Gradients on the GPU: against float64, PyTorch's own, in place, and warm calls of two inputs."""

from __future__ import annotations

import numpy as np
import pytest

import softgen
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.dtypes import DType
from softgen.problems.numerics import check, encode, numpy_dtype, other_inputs
from softgen.problems.problem import Problem
from tests.helpers.device_reference import on_host

pytestmark = pytest.mark.gpu

NAMES = ("softmax", "log_softmax")


@pytest.mark.parametrize("cols", [1, 33, 1000, 4097, 32000, 131072])
@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.short)
@pytest.mark.parametrize("name", NAMES)
def test_against_float64(name: str, dtype: DType, cols: int) -> None:
    import cupy

    problem = Problem.of(f"{name}_backward", dtype, cols)
    dy = encode(np.random.default_rng(cols).standard_normal((7, cols)), dtype)
    inputs = (dy, *other_inputs(dy, problem))
    given = [cupy.asarray(each.view(numpy_dtype(dtype))) for each in inputs]
    call = getattr(softgen, problem.function.name)
    dx = on_host(call(*given, tune="off"))[0]
    accuracy = check((dx,), inputs, problem)
    assert accuracy.ok, accuracy.message
    assert call(*given, tune="off", out=given[0]) is given[0]
    assert on_host(given[0])[0].tobytes() == dx.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_it_is_what_pytorchs_autograd_gives(name: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(5, 33, 2048, device="cuda", requires_grad=True)
    dy = torch.randn_like(x)
    y = getattr(torch, name)(x, -1)
    y.backward(dy)
    dx = getattr(softgen, f"{name}_backward")(dy, y.detach(), tune="off")
    torch.testing.assert_close(dx, x.grad, rtol=2e-5, atol=2e-6)


def test_a_warm_call_looks_at_both_inputs() -> None:
    import cupy

    rng = np.random.default_rng(0)
    dy, y = (cupy.asarray(rng.random((64, 1000), np.float32)) for _ in range(2))
    wanted = cupy.asnumpy(y * dy - y * (y * dy).sum(axis=1, keepdims=True))
    memory = cupy.empty(64 * 1000 + 1, "float32")
    moved = memory[1:].reshape(64, 1000)  # 4 bytes off the boundary that the kernel counts on
    moved[...] = y
    for each in (y, y, moved, moved, y):
        dx = softgen.softmax_backward(dy, each, tune="off")
        np.testing.assert_allclose(cupy.asnumpy(dx), wanted, rtol=1e-4, atol=2e-4)
    with pytest.raises(InvalidValueError, match="out overlaps y"):
        softgen.softmax_backward(dy, y, out=y)
    with pytest.raises(InvalidValueError, match="y must have the shape of dy"):
        softgen.softmax_backward(dy, y[:3])
    with pytest.raises(InvalidTypeError, match="y must be float32"):
        softgen.softmax_backward(dy, y.astype("float16"))
