"""Functions beside softmax on the GPU: log-sum-exp, pairs of rows, and what they give together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import softgen
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.dtypes import DType
from softgen.problems.numerics import check, decode, encode, numpy_dtype, other_inputs
from softgen.problems.problem import Problem
from tests.helpers.device_reference import hard_rows, on_host

pytestmark = pytest.mark.gpu

COLS = (1, 33, 1000, 4097, 32000, 131072)
BOTH = ("softmax", "log_softmax")


def on_device(x: Any, dtype: DType) -> Any:
    import cupy

    return cupy.asarray(x.view(numpy_dtype(dtype)))


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.short)
@pytest.mark.parametrize("cols", COLS)
def test_every_regime(cols: int, dtype: DType) -> None:
    x = hard_rows(cols, dtype)
    given = on_device(x, dtype)
    lse = softgen.logsumexp(given, tune="off")
    assert lse.shape == x.shape[:1]
    assert check(on_host(lse), (x,), Problem.of("logsumexp", dtype, cols)).message == ""
    for name in BOTH:
        results = getattr(softgen, name)(given, return_lse=True, tune="off")
        problem = Problem.of(f"{name}_lse", dtype, cols)
        assert check(on_host(*results), (x,), problem).message == ""
        plain = getattr(softgen, name)(given, tune="off")
        assert on_host(plain)[0].tobytes() == on_host(results[0])[0].tobytes()
    m, d = softgen.partial(given, tune="off")
    assert check(on_host(m, d), (x,), Problem.of("partial", dtype, cols)).message == ""
    problem = Problem.of("finish", dtype, cols)
    pairs = other_inputs(x, problem)
    import cupy

    y = softgen.finish(given, *map(cupy.asarray, pairs), tune="off")
    assert check(on_host(y), (x, *pairs), problem).message == ""


def test_pieces_of_rows_are_put_together() -> None:
    import cupy

    x = cupy.random.default_rng(0).standard_normal((77, 5000), dtype="float32") * 5
    pieces = x[:, :1234], x[:, 1234:3000], x[:, 3000:]
    pairs = [softgen.partial(cupy.ascontiguousarray(piece), tune="off") for piece in pieces]
    m = cupy.maximum(cupy.maximum(pairs[0][0], pairs[1][0]), pairs[2][0])
    d = sum(sums * cupy.exp(maxima - m) for maxima, sums in pairs)
    y = cupy.concatenate([softgen.finish(piece, m, d, tune="off") for piece in pieces], axis=1)
    cupy.testing.assert_allclose(y, softgen.softmax(x, tune="off"), rtol=4e-6, atol=1e-30)


def test_results_on_pytorch() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(3, 50, 1000, device="cuda", dtype=torch.bfloat16)
    exact = torch.logsumexp(x.double(), -1)
    lse = softgen.logsumexp(x)
    assert (lse.dtype, lse.shape) == (torch.bfloat16, (3, 50))
    assert ((lse.double() - exact).abs() <= 2.0**-7 * exact.abs()).all()
    kept = softgen.logsumexp(x, dim=2, dtype=torch.float32, keepdim=True)
    assert (kept.dtype, kept.shape) == (torch.float32, (3, 50, 1))
    assert ((kept[..., 0].double() - exact).abs() <= 2e-6 * (1 + exact.abs())).all()
    y, second = softgen.softmax(x, return_lse=True)
    share = torch.softmax(x.double(), -1)  # softmax alone may have another winner: other bits
    assert ((y.double() - share).abs() <= 2.0**-8 * share).all()
    assert second.dtype == torch.float32
    assert ((second.double() - exact).abs() <= 2e-6 * (1 + exact.abs())).all()


def test_torchs_infinities() -> None:
    torch = pytest.importorskip("torch")
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[-inf, -inf], [inf, 1], [nan, 1], [-inf, 2], [nan, inf]], device="cuda")
    found = softgen.logsumexp(x, tune="off")
    torch.testing.assert_close(found, torch.logsumexp(x, -1), equal_nan=True)
    empty = torch.empty(3, 0, device="cuda")
    assert softgen.logsumexp(empty).tolist() == torch.logsumexp(empty, -1).tolist()
    assert softgen.logsumexp(torch.empty(0, 5, device="cuda")).shape == (0,)


def test_out_and_warm_calls() -> None:
    import cupy

    x = cupy.random.default_rng(1).standard_normal((64, 4096), dtype="float32")
    wanted = softgen.logsumexp(x)
    out = cupy.empty(64, "float32")
    for _ in range(3):
        assert softgen.logsumexp(x, out=out) is out
        assert (out == wanted).all()
        assert (softgen.logsumexp(x) == wanted).all()
    with pytest.raises(InvalidValueError, match="shape"):
        softgen.logsumexp(x, out=cupy.empty((64, 4096), "float32"))
    rows = x[:1]
    assert softgen.logsumexp(rows).shape == (1,)


def test_pairs_that_do_not_fit_are_refused() -> None:
    import cupy

    x = cupy.zeros((4, 8), "float32")
    m, d = softgen.partial(x, tune="off")
    with pytest.raises(InvalidValueError, match="maxima must have the shape of x's rows"):
        softgen.finish(x, m[:3], d)
    with pytest.raises(InvalidTypeError, match="sums must be float32, got float64"):
        softgen.finish(x, m, d.astype("float64"))


@pytest.mark.parametrize("function", ["logsumexp", "softmax_lse", "partial", "finish"])
@pytest.mark.parametrize("cols", [1024, 50257])
def test_the_tuner_takes_every_function(function: str, cols: int) -> None:
    from softgen.tuning.tune import tune

    entry = tune(Problem.of(function, "bfloat16", cols), 512, budget=1.0)
    assert entry.timings
    assert [reason for _, reason in entry.failures if "differ" in reason] == []


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
@pytest.mark.parametrize("variant", ["warp", "block", "online", "safe", None])
def test_a_subnormal_maximum_is_kept(dtype: DType, variant: str | None) -> None:
    """By kernels and by CuPy's operations, which both are compiled with -ftz=true."""
    values = np.random.default_rng(3).uniform(-1e-38, 1e-38, (50, 1000))
    values[::2, :500] = -1
    x = on_device(encode(values, dtype), dtype)
    pieces = [softgen.partial(each, variant=variant) for each in (x[:, :496], x[:, 496:])]
    m, _ = softgen.merge(*pieces)
    wanted = decode(encode(values, dtype), dtype).max(axis=1).astype(np.float32)
    assert m.get().tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("pieces", [1, 7, 64, 1000])
def test_merge_as_a_kernel(pieces: int, dtype: str) -> None:
    """Its second input has an element a column too, and where that starts counts as x's does."""
    import cupy

    x = cupy.random.default_rng(2).standard_normal((50, pieces, 20)).astype(dtype) * 5
    whole = [each.get() for each in softgen.partial(x.reshape(50, -1))]
    ms, ds = softgen.partial(x)
    for alignment in (None, 1):
        kernel = softgen.plan("merge", dtype, pieces, rows=50, alignment=alignment)
        shifted = cupy.empty(ds.size + 1, dtype)[1:].reshape(ds.shape)
        shifted[...] = ds
        for _ in range(3):
            for given in (ds, shifted) if alignment == 1 or pieces % 2 else (ds,):
                m, d = kernel(ms, given)
                assert (m.get() == whole[0]).all()
                assert abs(d.get() / whole[1] - 1).max() <= (4e-6 if dtype == "float32" else 4e-14)
    if pieces == 64:
        with pytest.raises(InvalidValueError, match="start on"):
            softgen.plan("merge", dtype, pieces, rows=50)(ms, shifted)
    with pytest.raises(InvalidValueError, match="ds must have the shape of ms"):
        kernel(ms, ds[:, :0])
