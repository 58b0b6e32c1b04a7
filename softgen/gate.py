"""The tuner's correctness gate: a candidate is timed only if it agrees with the safe kernel.

The comparison runs on the device, in float64, on the very buffers that are timed; a mismatch count
is all that comes back to the host.
"""

from __future__ import annotations

import functools
from typing import Any

from softgen.compile import compile_source
from softgen.device import arch_of, require_device
from softgen.kernel import Kernel
from softgen.measure import Buffers, memory
from softgen.problem import Algorithm, DType, Problem
from softgen.render import environment, render
from softgen.variants import best_guess

# Two correct kernels may each be at the edge of their bound, hence twice the bound of numerics.py
# (in float64 that of results above e^-45, which those of the tuner's normal values are); a 16-bit
# result may be a neighbour of the rounded value in either direction: two units apart.
TOLERANCE = {
    DType.FLOAT16: 2.0 * 2.0**-10,
    DType.BFLOAT16: 2.0 * 2.0**-7,
    DType.FLOAT32: 4e-6,
    DType.FLOAT64: 3e-14,
}

# Below these a result may be subnormal (or flushed), where relative errors mean nothing.
TINY = {
    DType.FLOAT16: 2.0**-14,
    DType.BFLOAT16: 2.0**-126,
    DType.FLOAT32: 1e-30,
    DType.FLOAT64: 1e-300,
}


@functools.cache
def _compare_kernel(dtype: DType, device: int) -> Any:
    cupy = require_device()
    code = environment().get_template("tools/compare.cu.j2").render(dtype=dtype)
    return cupy.RawModule(code=code, backend="nvrtc").get_function("compare")


class Gate:
    """Compares candidates with the safe kernel on the first pair of `buffers`."""

    def __init__(self, problem: Problem, buffers: Buffers) -> None:
        self.cupy = require_device()
        self.problem = problem
        self.buffers = buffers
        self.size = buffers.rows * problem.cols
        self.expected = memory(self.size * problem.out_dtype.itemsize)
        self.stream = self.cupy.cuda.get_current_stream().ptr
        arch = arch_of(self.cupy.cuda.runtime.getDevice())
        oracle = compile_source(render(best_guess(problem, buffers.rows, arch, "safe")))
        oracle.launch(buffers.inputs[0], self.expected.data.ptr, buffers.rows, self.stream)

    def objection(self, kernel: Kernel) -> str | None:
        """Return how the kernel's result is wrong, or None if it agrees everywhere."""
        cupy, out = self.cupy, self.problem.out_dtype
        y = self.buffers.outputs[0]
        cupy.cuda.runtime.memsetAsync(y, 0xFF, self.expected.nbytes, self.stream)  # NaN
        kernel.launch(self.buffers.inputs[0], y, self.buffers.rows, self.stream)
        mismatches = cupy.zeros(1, "uint64")
        log_form = self.problem.algorithm is Algorithm.LOG_SOFTMAX
        absolute = TOLERANCE[out] if log_form else TINY[out]
        _compare_kernel(out, kernel.device)(
            (4096,),
            (256,),
            (y, self.expected.data.ptr, self.size, TOLERANCE[out], absolute, mismatches),
        )
        wrong = int(mismatches.get()[0])
        return f"{wrong} of {self.size} results differ from the safe kernel's" if wrong else None
