"""OneFlow's choice of a softmax kernel, so that it can be asked for by name and timed against.

Source: oneflow/core/cuda/softmax.cuh of Oneflow-Inc/oneflow at commit
25c8978c1c8b1371ef6aa4187dae4495bd233c35 (DispatchSoftmax, DispatchLogSoftmax and what they call).
"""

from __future__ import annotations

from softgen.errors import IllegalVariantError
from softgen.problems.arch import Arch
from softgen.problems.dtypes import DType
from softgen.problems.operands import Measure
from softgen.problems.problem import Problem
from softgen.strategies.base import Strategy
from softgen.strategies.lessons.oneflowblock import OneflowBlock, computes
from softgen.strategies.lessons.oneflowwarp import OneflowWarp

# The widest row that OneFlow gives to a warp. It asks `cols < 1024` where results are values, and
# `cols <= 1024` where they are logarithms.
MOST_WARP_COLS = {Measure.VALUE: 1023, Measure.LOGARITHM: 1024}


def oneflow_dispatch(problem: Problem, rows: int, arch: Arch) -> Strategy:
    """Return the setting that OneFlow would launch for `rows` rows of `problem` on `arch`.

    Narrow rows go to its warp kernel. Wider ones are staged in shared memory as float32, if 48 KB
    hold them, else read three times. float64 is always read three times.

    Raises IllegalVariantError for a function that OneFlow's header does not have.
    """
    if not computes(problem):
        raise IllegalVariantError(
            f"oneflow: OneFlow's kernels compute softmax and log_softmax, not {problem.computed}; "
            "choose another variant"
        )
    single = problem.compute_dtype is DType.FLOAT32
    if single and problem.cols <= MOST_WARP_COLS[problem.results[0].measure]:
        return OneflowWarp.chosen(problem, rows, arch)
    return OneflowBlock.chosen(problem, arch)
