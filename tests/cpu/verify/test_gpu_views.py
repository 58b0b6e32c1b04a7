"""Views as `softgen verify --device cuda` runs them, with NumPy in the place of CuPy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from softgen.errors import VerificationError
from softgen.problems.arch import DEFAULT_ARCH, arch_named
from softgen.problems.numerics import check, encode, other_inputs
from softgen.problems.problem import Problem
from softgen.strategies.variants import Variant, best_guess
from softgen.verify import gpu
from softgen.verify.gpu import run_on_storage
from softgen.verify.placements import placement_of, rows_for
from tests.helpers.driver import FakeKernel

ARCH = arch_named(DEFAULT_ARCH)


class Memory(np.ndarray):
    """Bytes that tell their address as CuPy's do."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.__array_interface__["data"][0])


def full(size: int, value: int, dtype: str) -> Any:
    """Return memory on 512 bytes, as CuPy's is, with as many before and behind it."""
    memory = np.full(size + 1536, value, dtype).view(Memory)
    start = 512 + -memory.data.ptr % 512
    return memory[start : start + size]


@pytest.fixture(autouse=True)
def cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(ptr=5)
    fake = SimpleNamespace(
        full=full,
        asarray=np.asarray,
        asnumpy=lambda memory: np.array(memory),
        cuda=SimpleNamespace(get_current_stream=lambda: stream),
    )
    monkeypatch.setattr(gpu, "require_device", lambda: fake)


def variant_of(function: str, outer: int, **options: Any) -> Variant:
    problem = Problem.of(function, "float32", 20, layout=f"strided{outer}", **options)
    return best_guess(problem, 9, ARCH, "safe")


@pytest.mark.parametrize("function", ["softmax", "softmax_lse", "finish", "softmax_backward"])
@pytest.mark.parametrize("outer", [1, 2, 3])
@pytest.mark.parametrize("alignment", [None, 1])
def test_every_row_is_found(function: str, outer: int, alignment: int | None) -> None:
    variant = variant_of(function, outer, alignment=alignment)
    rows = rows_for(variant.problem, 40)
    assert rows == {1: 39, 2: 39, 3: 27}[outer]
    x = encode(np.random.default_rng(0).standard_normal((rows, 20)), variant.problem.dtype)
    inputs = (x, *other_inputs(x, variant.problem))
    kernel: Any = FakeKernel(variant.problem, variant=variant)
    offsets = (1, 3) if alignment else (0, 0)
    accuracy = check(run_on_storage(kernel, inputs, *offsets), inputs, variant.problem)
    assert accuracy.ok, accuracy.message
    placement = placement_of(variant.problem, rows)
    assert placement is not None
    assert len(set(placement.strides)) == len(placement.strides)
    for array, strides in enumerate(placement.strides):
        assert min(abs(step) for step in strides) > 20
        indices = placement.indices(array, 20)
        assert np.unique(indices).size == indices.size
        assert np.gcd.reduce([*strides]) % (alignment or 4) == 0


def test_a_kernel_that_writes_between_rows_is_refused() -> None:
    variant = variant_of("softmax", 1, alignment=1)
    x = encode(np.zeros((9, 20)), variant.problem.dtype)

    class Stray(FakeKernel):
        def launch(self, arguments: Any, rows: int, stream: int) -> None:
            super().launch(arguments, rows, stream)
            super().launch([arguments[0], arguments[1] - 4, *arguments[2:]], rows, stream)

    kernel: Any = Stray(variant.problem, variant=variant)
    with pytest.raises(VerificationError, match="the kernel wrote between the rows of y"):
        run_on_storage(kernel, (x,))
