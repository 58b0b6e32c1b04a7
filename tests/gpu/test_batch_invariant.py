"""batch_invariant=True: a row has the same bits in any batch and anywhere in memory."""

from __future__ import annotations

from typing import Any

import pytest

import softgen
from softgen.devices.gpu.device import arch_of
from softgen.problems.dtypes import DType
from softgen.problems.functions.base import Function
from softgen.problems.problem import Problem
from softgen.tuning import tune as tuner
from softgen.tuning.policy import choose_invariant
from tests.helpers.device_reference import device_normal, error_over_bound

pytestmark = pytest.mark.gpu

FUNCTIONS = {"softmax": softgen.softmax, "log_softmax": softgen.log_softmax}
WIDTHS = [1, 7, 77, 1000, 1001, 1026, 4096, 4097, 12671, 32768, 50257, 50258, 131072, 1000001]


def as_bits(array: Any) -> Any:
    return array.view({2: "uint16", 4: "uint32", 8: "uint64"}[array.dtype.itemsize])


def shifted(x: Any, by: int) -> Any:
    """Return the same values in memory that starts `by` elements behind a boundary."""
    import cupy

    flat = cupy.empty(x.size + by, x.dtype)
    flat[by:] = x.reshape(-1)
    return flat[by:].reshape(x.shape)


@pytest.mark.parametrize("function", list(FUNCTIONS))
@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.short)
@pytest.mark.parametrize("cols", WIDTHS)
def test_the_same_bits_anywhere(cols: int, dtype: DType, function: str) -> None:
    rows = 9
    call = FUNCTIONS[function]
    x = device_normal(rows, cols, dtype)
    whole = call(x, batch_invariant=True)
    assert error_over_bound(whole, x, Function.of(function), dtype) <= 1
    bits = as_bits(whole)
    for part in (slice(0, 1), slice(0, 4), slice(4, 5), slice(3, 9), slice(8, 9)):
        for array in (x[part], x[part].copy()):
            assert (as_bits(call(array, batch_invariant=True)) == bits[part]).all(), part
    for by in (1, 2, 3):
        assert (as_bits(call(shifted(x, by), batch_invariant=True)) == bits).all(), by
    out = shifted(x, 1)
    assert call(out, out=out, batch_invariant=True) is out
    assert (as_bits(out) == bits).all()


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16], ids=lambda dtype: dtype.short)
@pytest.mark.parametrize("cols", [4097, 12671, 50257])
def test_equal_rows_are_equal(cols: int, dtype: DType) -> None:
    """Nine identical rows: the usual kernel gives row 4 other bits than the same row alone."""
    import cupy

    x = cupy.ascontiguousarray(cupy.broadcast_to(device_normal(1, cols, dtype), (9, cols)))
    bits = as_bits(softgen.softmax(x, batch_invariant=True))
    assert (bits == bits[:1]).all()
    alone = as_bits(softgen.softmax(x[4:5].copy(), batch_invariant=True))
    assert (alone == bits[4:5]).all()


@pytest.mark.parametrize("out", [DType.FLOAT32, DType.FLOAT64], ids=lambda dtype: dtype.short)
def test_wider_results_too(out: DType) -> None:
    x = device_normal(9, 50257, DType.BFLOAT16)
    whole = as_bits(softgen.softmax(x, dtype=out.value, batch_invariant=True))
    for row in range(9):
        alone = softgen.softmax(x[row : row + 1], dtype=out.value, batch_invariant=True)
        assert (as_bits(alone) == whole[row : row + 1]).all()


def test_tensors_too() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(64, 50257, device="cuda", dtype=torch.bfloat16)
    whole = softgen.softmax(x, batch_invariant=True)
    for part in (slice(0, 1), slice(13, 14), slice(40, 64)):
        assert torch.equal(softgen.softmax(x[part], batch_invariant=True), whole[part])
    base = torch.empty(64 * 4096 + 1, device="cuda")
    moved = base[1:].view(64, 4096).normal_()
    assert torch.equal(
        softgen.softmax(moved, batch_invariant=True),
        softgen.softmax(moved.clone(), batch_invariant=True),
    )


def test_the_environment_variable_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x = device_normal(9, 4097, DType.FLOAT32)
    whole = softgen.softmax(x, batch_invariant=True)
    monkeypatch.setenv("SOFTGEN_BATCH_INVARIANT", "1")
    assert (softgen.softmax(x[4:5]) == whole[4:5]).all()


def test_a_tuning_moves_nothing(own_cache: object) -> None:
    """What it finds may differ from one GPU of a model to the next."""
    problem = Problem.of("softmax", "float32", 640)
    before = choose_invariant(problem, 0).variant
    x = device_normal(512, 640, DType.FLOAT32)
    bits = as_bits(softgen.softmax(x, batch_invariant=True, tune="force"))
    assert not list(own_cache.glob("tuned/*"))  # type: ignore[attr-defined]
    tuner.tune(problem, 4096, budget=0.5)
    assert choose_invariant(problem, 0).variant == before
    assert (as_bits(softgen.softmax(x[:3], batch_invariant=True)) == bits[:3]).all()


def test_a_plan_too() -> None:
    kernel = softgen.plan("softmax", "bfloat16", 50257, batch_invariant=True)
    assert kernel.variant.problem.fixed_order
    kernel.variant.check(arch_of(0))
    x = device_normal(9, 50257, DType.BFLOAT16)
    whole = as_bits(kernel(x))
    assert (as_bits(kernel(x[5:6])) == whole[5:6]).all()
