"""Rows behind 2^31 elements, for every strategy."""

from __future__ import annotations

from typing import Any

import pytest

from softgen.devices.gpu.compile import compile_source
from softgen.devices.gpu.device import arch_of
from softgen.problems.dtypes import DType
from softgen.problems.functions.softmax import SOFTMAX
from softgen.problems.layouts import Columns
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.registry import all_strategies
from softgen.strategies.variants import candidates
from softgen.verify.ways import exchanges, layouts
from tests.helpers.device_reference import device_normal, error_over_bound

pytestmark = pytest.mark.gpu

LAST = 64  # rows that are looked at, half of them behind 2^31 elements
COLS = (100, 1001, 5000, 5001, 32768)
# Columns, and what is behind each.
BEHIND = [(100, 64), (21, 3), (400, 33), (5000, 1024), (1000000, 16)]


@pytest.fixture(scope="module")
def memory() -> Any:
    """x and y of 2^31 elements and some rows, of which all kernels take what they need."""
    import cupy

    size = 2**31 + max(LAST * max(COLS), 5000 * 1024, 1000000 * 16)
    if cupy.cuda.runtime.memGetInfo()[0] < 2.5 * 2 * size:
        pytest.skip("needs 11 GB of free memory")
    return cupy.zeros(size, "float16"), cupy.zeros(size, "float16")


@pytest.mark.parametrize("cols", COLS)
def test_every_strategy(cols: int, memory: Any) -> None:
    import cupy

    problem = Problem.of("softmax", "float16", cols)
    rows = 2**31 // cols + LAST // 2
    x, y = (array[: rows * cols].reshape(rows, cols) for array in memory)
    x[-LAST:] = device_normal(LAST, cols, DType.FLOAT16)
    stream = cupy.cuda.get_current_stream().ptr
    arch = arch_of(cupy.cuda.Device().id)
    for kind in all_strategies():
        for variant in layouts(list(candidates(problem, rows, arch, kind.name))):
            y[-LAST:] = cupy.nan
            compile_source(render(variant)).launch((x.data.ptr, y.data.ptr), rows, stream)
            error = error_over_bound(y[-LAST:], x[-LAST:], SOFTMAX, DType.FLOAT16)
            assert error <= 1, variant.name


@pytest.mark.parametrize(("cols", "inner"), BEHIND)
def test_columns(cols: int, inner: int, memory: Any) -> None:
    import cupy

    problem = Problem.of("softmax", "float16", cols, layout=Columns(inner))
    outer = 2**31 // (cols * inner) + 1
    rows, last = outer * inner, cols * inner
    x, y = (array[: rows * cols] for array in memory)
    x[-last:] = device_normal(1, last, DType.FLOAT16)[0]
    stream = cupy.cuda.get_current_stream().ptr
    arch = arch_of(cupy.cuda.Device().id)
    for kind in all_strategies():
        for variant in exchanges(list(candidates(problem, rows, arch, kind.name))):
            y[-last:] = cupy.nan
            compile_source(render(variant)).launch((x.data.ptr, y.data.ptr), rows, stream)
            found, given = (each[-last:].reshape(cols, inner).T for each in (y, x))
            error = error_over_bound(found, given, SOFTMAX, DType.FLOAT16)
            assert error <= 1, variant.name


def test_every_strategy_is_among_them() -> None:
    import cupy

    arch = arch_of(cupy.cuda.Device().id)
    problems = [Problem.of("softmax", "float16", cols) for cols in COLS]
    problems += [
        Problem.of("softmax", "float16", cols, layout=Columns(inner)) for cols, inner in BEHIND
    ]
    for kind in all_strategies():
        found = (
            candidates(problem, 2**31 // problem.cols, arch, kind.name) for problem in problems
        )
        assert any(True for variants in found for _ in variants), kind.name
