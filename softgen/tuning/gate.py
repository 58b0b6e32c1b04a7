"""The tuner's correctness gate: a candidate is timed only if it agrees with the safe kernel.

The comparison runs on the device, in float64, on the very buffers that are timed; a mismatch count
is all that comes back to the host.
"""

from __future__ import annotations

import functools
from typing import Any

from softgen.devices.gpu import cupy_cache
from softgen.devices.gpu.compile import compile_source
from softgen.devices.gpu.device import arch_of, require_device
from softgen.devices.gpu.kernel import LoadedKernel
from softgen.problems.dtypes import DType, ElementType, Float8
from softgen.problems.operands import Measure, Operand
from softgen.problems.problem import Problem
from softgen.source.render import environment, render
from softgen.strategies.variants import best_guess
from softgen.tuning.measure import Buffers, memory

# Two correct kernels may each be at the edge of their bound, hence twice the bound of numerics.py
# (in float64 that of results above e^-45, which those of the tuner's normal values are); a 16-bit
# result may be a neighbour of the rounded value in either direction: two units apart. In 8 bits a
# unit is so large that nobody is that far off: results differ where one of two roundings is tied.
TOLERANCE: dict[ElementType, float] = {
    DType.FLOAT16: 2.0 * 2.0**-10,
    DType.BFLOAT16: 2.0 * 2.0**-7,
    DType.FLOAT32: 4e-6,
    DType.FLOAT64: 3e-14,
    Float8.E4M3: 2.0**-3,
    Float8.E5M2: 2.0**-2,
}

# The largest |x - max| among the tuner's normal values, for what a rounded exponent adds.
FARTHEST = 13

# Below these a result may be subnormal (or flushed), where relative errors mean nothing; in 8 bits
# it is what subnormal results are apart.
TINY: dict[ElementType, float] = {
    DType.FLOAT16: 2.0**-14,
    DType.BFLOAT16: 2.0**-126,
    DType.FLOAT32: 1e-30,
    DType.FLOAT64: 1e-300,
    Float8.E4M3: 2.0**-9,
    Float8.E5M2: 2.0**-16,
}


@functools.cache
def _compare_kernel(dtype: ElementType, device: int) -> Any:
    cupy = require_device()
    cupy_cache.warn_once()
    code = environment().get_template("tools/compare.cu.j2").render(dtype=dtype)
    return cupy.RawModule(code=code, backend="nvrtc").get_function("compare")


class Gate:
    """Compares candidates with the safe kernel on the first set of `buffers`."""

    def __init__(self, problem: Problem, buffers: Buffers) -> None:
        self.cupy = require_device()
        self.problem = problem
        self.buffers = buffers
        self.expected = [memory(self._size(operand)) for operand in problem.results]
        self.stream = self.cupy.cuda.get_current_stream().ptr
        arch = arch_of(self.cupy.cuda.runtime.getDevice())
        oracle = compile_source(render(best_guess(problem, buffers.rows, arch, "safe")))
        arguments = list(buffers.arguments[0])
        for which, array in zip(buffers.results, self.expected, strict=True):
            arguments[which] = array.data.ptr
        oracle.launch(arguments, buffers.rows, self.stream)

    def _size(self, operand: Operand) -> int:
        return self.buffers.rows * operand.bytes_per_row(self.problem.cols)

    def objection(self, kernel: LoadedKernel) -> str | None:
        """Return how the kernel's results are wrong, or None if they agree everywhere."""
        memset = self.cupy.cuda.runtime.memsetAsync
        arguments = self.buffers.arguments[0]
        for which, array in zip(self.buffers.results, self.expected, strict=True):
            memset(arguments[which], 0xFF, array.nbytes, self.stream)  # NaN
        kernel.launch(arguments, self.buffers.rows, self.stream)
        for which, array, operand in zip(
            self.buffers.results, self.expected, self.problem.results, strict=True
        ):
            size = array.nbytes // operand.dtype.itemsize
            wrong = differing(arguments[which], array.data.ptr, size, operand, kernel)
            # Scores that are all but equal may be chosen in either order.
            allowed = size // 1000 if self.problem.function.chooses_scores else 0
            if wrong > allowed:
                return f"{wrong} of {size} results differ from the safe kernel's"
        return None


def differing(found: int, expected: int, size: int, operand: Operand, kernel: LoadedKernel) -> int:
    """Return how many results of a kernel are too far from those of another one.

    Args:
        found: where they are on the kernel's device, the current one.
        expected: where the others are.
        size: how many there are.
        operand: what they are.
        kernel: whose they are.
    """
    dtype = operand.dtype
    tolerance = TOLERANCE.get(dtype, 0.0)  # integers are right or wrong
    if dtype is DType.FLOAT32 and operand.measure is Measure.VALUE:
        tolerance += FARTHEST * kernel.variant.strategy.exponent_error(kernel.variant.problem)
    absolute = TINY.get(dtype, 0.0) if operand.measure is Measure.VALUE else tolerance
    mismatches = require_device().zeros(1, "uint64")
    request = (found, expected, size, tolerance, absolute, mismatches)
    _compare_kernel(dtype, kernel.device)((4096,), (256,), request)
    return int(mismatches.get()[0])
