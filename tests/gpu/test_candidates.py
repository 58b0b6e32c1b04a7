"""Every candidate, not only the winners, against float64 over the widths that people use."""

from __future__ import annotations

from typing import Any

import pytest

from softgen.devices.gpu.compile import compile_many
from softgen.devices.gpu.device import arch_of
from softgen.errors import CompileError
from softgen.problems.dtypes import DType
from softgen.problems.functions.base import Function
from softgen.problems.functions.log_softmax import LOG_SOFTMAX
from softgen.problems.functions.softmax import SOFTMAX
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.variants import candidates
from tests.helpers.device_reference import SMALLEST_NORMAL, device_normal, in_float64

pytestmark = pytest.mark.gpu

COLS = (
    *(64, 1000, 4096, 5000, 8192, 12671, 16384, 32000, 32728, 50257),
    *(65536, 128256, 151937, 262144, 1048576, 2097152, 4194304),
)
ROWS = (1, 8, 128, 4096)
MOST_ELEMENTS = 2**31  # of x; with its float64 reference and a result that is 32 GB

checked: dict[str, int] = {}


def bounds(problem: Problem) -> tuple[float, float]:
    """Return the relative bound of a result and the least absolute one, as documented."""
    out = problem.out_dtype
    if out is DType.BFLOAT16:
        return 1.5 * 2.0**-7, 1.5 * 2.0 ** (SMALLEST_NORMAL[out] - 7)
    relative = 2e-6 if out is DType.FLOAT32 else 1e-14
    return relative, 1e-30 if problem.function == SOFTMAX else relative


def reference(x: Any, algorithm: Function) -> Any:
    """Return the float64 results, some rows at a time: temporaries of all would fill the memory."""
    import cupy

    wanted = cupy.empty(x.shape, cupy.float64)
    step = max(1, 2**26 // x.shape[1])
    for first in range(0, x.shape[0], step):
        wanted[first : first + step] = in_float64(x[first : first + step], algorithm)
    return wanted


def wrong_results(y: Any, wanted: Any, problem: Problem) -> int:
    """One pass over both, where array expressions take twelve and a reduction uses one block."""
    import cupy

    count = cupy.zeros(1, cupy.uint64)
    compare = cupy.ElementwiseKernel(
        "T g, float64 w, float64 relative, float64 least",
        "raw uint64 wrong",
        "if (is_wrong((double)g, w, relative, least)) atomicAdd(&wrong[0], 1ull)",
        f"count_wrong_{problem.out_dtype.short}",
        preamble=(
            "__device__ bool is_wrong(double g, double w, double relative, double least) {"
            "  if ((isnan(g) && isnan(w)) || g == w) return false;"
            "  return !(fabs(g - w) <= fmax(relative * fabs(w), least));"
            "}"
        ),
    )
    relative, least = bounds(problem)
    compare(y, wanted, relative, least, count)
    return int(count[0])


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize(
    ("dtype", "algorithm"),
    [
        (DType.FLOAT32, SOFTMAX),
        (DType.BFLOAT16, LOG_SOFTMAX),
    ],
    ids=["float32", "bfloat16"],
)
def test_every_candidate(dtype: DType, algorithm: Function, cols: int, rows: int) -> None:
    import cupy

    rows = min(rows, MOST_ELEMENTS // cols)
    problem = Problem.of(algorithm, dtype, cols)
    x = device_normal(rows, cols, dtype)
    wanted = reference(x, algorithm)
    y = cupy.empty_like(x)
    stream = cupy.cuda.get_current_stream().ptr
    found = list(candidates(problem, rows, arch_of(cupy.cuda.Device().id)))
    for variant, kernel in zip(found, compile_many(map(render, found)), strict=True):
        assert not isinstance(kernel, CompileError), kernel
        cupy.cuda.runtime.memset(y.data.ptr, 0xFF, y.nbytes)  # NaN
        kernel.launch((x.data.ptr, y.data.ptr), rows, stream)
        assert wrong_results(y, wanted, problem) == 0, variant.name
        checked[variant.strategy.name] = checked.get(variant.strategy.name, 0) + 1
    del x, y, wanted
    cupy.get_default_memory_pool().free_all_blocks()
    print(f"{sum(checked.values())} candidates checked so far: {checked}")
