"""What softmax refuses, and what it says, before anything is launched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import softgen
from softgen.errors import NotSupportedError

pytestmark = pytest.mark.gpu


def zeros(*shape: int, dtype: str = "float32") -> Any:
    import cupy

    return cupy.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((2, 3), np.float32), r"numpy.ndarray.*cupy.asarray"),
        ([[1.0, 2.0]], r"builtins.list.*CuPy array"),
        (3.0, r"builtins.float"),
    ],
)
def test_other_kinds_of_input(x: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        softgen.softmax(x)


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64", "uint8"])
def test_other_dtypes(dtype: str) -> None:
    with pytest.raises(TypeError, match=f"{dtype}.*float16, bfloat16, float32, float64"):
        softgen.softmax(zeros(2, 3, dtype=dtype))


@pytest.mark.parametrize("axis", [2, -3, 7])
def test_axis_out_of_range(axis: int) -> None:
    with pytest.raises(np.exceptions.AxisError):
        softgen.softmax(zeros(2, 3), axis=axis)


@pytest.mark.parametrize("axis", [1.0, True, (0, 1.0), "1"])
def test_axis_of_another_type(axis: Any) -> None:
    with pytest.raises(TypeError, match="axis must be an int"):
        softgen.softmax(zeros(2, 3), axis=axis)


def test_out_that_does_not_fit() -> None:
    import cupy

    x = zeros(4, 8)
    store = cupy.zeros(64, "float32")
    with pytest.raises(ValueError, match=r"shape \(4, 8\), got \(8, 4\)"):
        softgen.softmax(x, out=zeros(8, 4))
    with pytest.raises(ValueError, match="must be float32, got float16"):
        softgen.softmax(x, out=zeros(4, 8, dtype="float16"))
    with pytest.raises(TypeError, match=r"numpy\.ndarray"):
        softgen.softmax(x, out=np.zeros((4, 8), np.float32))
    with pytest.raises(ValueError, match="stride is 0"):
        softgen.softmax(x, out=cupy.broadcast_to(zeros(1, 8), (4, 8)))
    with pytest.raises(ValueError, match="overlaps"):
        softgen.softmax(store[:32].reshape(4, 8), out=store[8:40].reshape(4, 8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tune": "maybe"}, "on, cached, off, force"),
        ({"variant": "warpp"}, "warp"),
        ({"dtype": "float8"}, "float16"),
        ({"variant": "softmax_f32_999_safe_b256"}, "999"),
    ],
)
def test_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(softgen.SoftgenError, match=message):
        softgen.softmax(zeros(2, 1000), **options)


def test_strided_arrays_match_their_copies() -> None:
    import cupy

    x = cupy.arange(24 * 10, dtype="float32").reshape(24, 10) % 7
    for view in (x[:, ::2], x[::-1], x.T, x[:, 3:8], x.reshape(4, 6, 10).swapaxes(0, 1)):
        assert abs(softgen.softmax(view) - softgen.softmax(view.copy())).max() < 1e-6
    out = cupy.full((24, 20), 5, "float32")
    given = out[:, ::2]
    assert softgen.softmax(x, out=given) is given
    assert (given == softgen.softmax(x)).all()
    assert (out[:, 1::2] == 5).all()


def test_objects_with_protocols_come_back_as_cupy() -> None:
    import cupy

    x = cupy.arange(30, dtype="float32").reshape(3, 10)

    class Interface:
        __cuda_array_interface__ = x.__cuda_array_interface__

    class Dlpack:
        def __dlpack__(self, **options: Any) -> Any:
            return x.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return x.__dlpack_device__()

    for given in (Interface(), Dlpack()):
        y = softgen.softmax(given)
        assert isinstance(y, cupy.ndarray)
        assert (y == softgen.softmax(x)).all()


def test_torch_tensors_it_refuses() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"on cpu.*x\.cuda\(\)"):
        softgen.softmax(torch.zeros(2, 3))
    x = torch.zeros(2, 3, device="cuda", requires_grad=True)
    with pytest.raises(NotSupportedError, match="no_grad"):
        softgen.softmax(x)
    with torch.no_grad():
        assert torch.equal(softgen.softmax(x), torch.full((2, 3), 1 / 3, device="cuda"))


def test_plan_checks_what_it_is_given() -> None:
    import cupy

    kernel = softgen.plan("softmax", "float32", 1000, rows=64, tune="off")
    x = cupy.random.default_rng(0).standard_normal((64, 1000), dtype="float32")
    y = cupy.empty_like(x)
    assert kernel(x, y) is y
    np.testing.assert_allclose(y.sum(axis=1).get(), 1, rtol=1e-5)
    assert (kernel(x) == y).all()
    with pytest.raises(TypeError, match="plan is for float32, got float64"):
        kernel(x.astype("float64"))
    with pytest.raises(ValueError, match="last axis of 1000"):
        kernel(x[:, :999].copy())
    with pytest.raises(ValueError, match="C-contiguous"):
        kernel(cupy.empty((64, 2000), "float32")[:, ::2])
    odd = cupy.empty(64 * 1000 + 1, "float32")[1:].reshape(64, 1000)
    with pytest.raises(ValueError, match="alignment=1"):
        kernel(odd)
