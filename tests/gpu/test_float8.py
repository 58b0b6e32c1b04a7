"""Results of 8 bits on a GPU: the instruction rounds as NumPy, and libraries get what they have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import softgen
from softgen.errors import InvalidValueError
from softgen.problems.dtypes import Float8
from softgen.problems.numerics import check, decode, encode
from softgen.problems.problem import Problem

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")


@pytest.fixture(autouse=True)
def capable() -> None:
    if int(cupy.cuda.Device().compute_capability) < 89:
        pytest.skip("types of 8 bits need compute capability 8.9")


@pytest.mark.parametrize("dtype", list(Float8))
def test_the_instruction_rounds_as_numpy(dtype: Float8) -> None:
    """The softmax of one column is 1, and times a number of the row it is that number."""
    numbers = decode(np.arange(dtype.largest_bits + 1, dtype=np.uint8), dtype)
    middle = ((numbers[:-1] + numbers[1:]) / 2).astype(np.float32)
    near = (np.nextafter(middle, np.float32(9e9)), np.nextafter(middle, np.float32(0)))
    special = np.array([1e30, np.inf, 1e-30], np.float32)
    every = np.concatenate([numbers, middle, *near, special]).astype(np.float32)
    every = np.concatenate([every, -every])
    x = cupy.zeros((len(every), 1), "float32")
    y = softgen.softmax(x, dtype=dtype, out_scale=cupy.asarray(every), tune="off")
    assert y.dtype == np.uint8
    assert np.array_equal(cupy.asnumpy(y)[:, 0], encode(every, dtype))


@pytest.mark.parametrize("function", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", list(Float8))
@pytest.mark.parametrize(("rows", "cols"), [(64, 1000), (7, 1001), (4, 50257), (16, 32768)])
def test_calls_are_right(function: str, dtype: Float8, rows: int, cols: int) -> None:
    x = cupy.random.default_rng(0).standard_normal((rows, cols), dtype="float32") * 4
    call: Any = getattr(softgen, function)
    y = call(x, dtype=dtype)
    problem = Problem.of(function, "float32", cols, out_dtype=dtype)
    accuracy = check((cupy.asnumpy(y),), (cupy.asnumpy(x),), problem)
    assert accuracy.ok, accuracy.message
    out = cupy.empty((rows, cols), "uint8")
    assert call(x, dtype=dtype, out=out) is out
    assert call(x, dtype=dtype, out=out) is out  # warm
    assert (out == y).all()
    with pytest.raises(InvalidValueError, match=r"out must be float8_e\dm\d.* got float32"):
        call(x, dtype=dtype, out=cupy.empty_like(x))


def test_other_axes_and_views() -> None:
    x = cupy.random.default_rng(0).standard_normal((8, 300, 24), dtype="float32")
    y = softgen.softmax(x, 1, dtype="float8_e4m3fn", out_scale=448.0)
    rows = np.moveaxis(cupy.asnumpy(x), 1, -1).reshape(-1, 300)
    found = np.moveaxis(cupy.asnumpy(y), 1, -1).reshape(-1, 300)
    problem = Problem.of("softmax", "float32", 300, out_dtype="float8_e4m3fn", hooks=["outscale"])
    assert check((found,), (rows, np.asarray(448.0)), problem).ok
    view = x.reshape(-1, 24)[:, :20]
    of_view = softgen.softmax(view, dtype="float8_e5m2")
    assert (of_view == softgen.softmax(cupy.ascontiguousarray(view), dtype="float8_e5m2")).all()


def test_tensors_have_the_type() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(64, 1000, device="cuda", dtype=torch.bfloat16)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        y = softgen.softmax(x, dtype=dtype, out_scale=448.0)
        assert y.dtype is dtype
        wanted = (torch.softmax(x.double(), -1) * 448).to(torch.float32).to(dtype)
        off = (y.view(torch.uint8).int() - wanted.view(torch.uint8).int()).abs()
        assert int(off.max()) <= 1
        out = torch.empty_like(x, dtype=dtype)
        assert softgen.softmax(x, dtype=dtype, out_scale=448.0, out=out) is out
        assert torch.equal(out.view(torch.uint8), y.view(torch.uint8))
    from softgen.torch import softmax

    x.requires_grad_()
    with pytest.raises(NotImplementedError, match="has no gradient"):
        softmax(x, -1, dtype=torch.float8_e5m2)
