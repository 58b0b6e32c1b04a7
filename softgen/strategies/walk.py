"""The rule that strategies share whose template walks a row in packs (lib/row/row_walk.cuh.j2)."""

from __future__ import annotations

from softgen.spec.arch import MOST_REGISTERS, Arch
from softgen.spec.dtypes import DType
from softgen.spec.problem import Problem
from softgen.strategies.base import Strategy

# What one more input takes beside its elements: without, the gradient of softmax spilled 12 to 44
# bytes in float32 with 1024 threads and two packs at once.
INPUT_REGISTERS = 16

# What hooks may take before elements have to make room: with 22 more a scale of rows, a mask,
# causal and dropout together spilled 32 bytes in 1024 threads.
HOOK_REGISTERS = 24

SMALL_BLOCK = 256  # threads, which have as many registers each as there may be

MOST_UNROLL = 8  # as far as FastSoftmax's search goes


def require_walk(
    strategy: Strategy, pack_size: int, unroll: int, block_size: int, problem: Problem, arch: Arch
) -> None:
    """Raise IllegalVariantError unless packs and unrolled loads fit a thread."""
    strategy.require_pack(pack_size, problem)
    strategy.require_alike(pack_size, problem)
    strategy.require(1 <= unroll <= MOST_UNROLL, f"unroll must be from 1 to {MOST_UNROLL}")
    strategy.require_block(block_size)
    inputs = len(problem.element_inputs)
    held = inputs * pack_size * unroll * problem.compute_dtype.itemsize // 4
    limit = _most_element_registers(problem, arch, block_size)
    limit -= INPUT_REGISTERS * (inputs - 1)
    # What a function itself knows of a row finds room in the 255 registers of small blocks.
    known = problem.modifiers if block_size > SMALL_BLOCK else problem.hooks
    hooks = sum(hook.registers(problem.compute_dtype) for hook in known)
    limit -= max(0, hooks - HOOK_REGISTERS)
    strategy.require(
        held <= limit,
        f"a thread would hold {held} registers of elements; at most {limit} do not spill",
    )


def _most_element_registers(problem: Problem, arch: Arch, block_size: int) -> int:
    """Return the registers of elements with which ptxas does not spill (1,476 settings tried).

    8,900 more were tried with 3 and 5 to 8 packs at once, on sm_75, sm_90 and sm_120. float64's exp
    wants many registers for itself; so does the compensation in softmax.
    """
    if problem.compute_dtype is DType.FLOAT64:
        # In the 64 registers of each of 1024 threads packs of 2 spilled 8 to 40 bytes on sm_100
        # and sm_120.
        if block_size > 512 and arch.compute_capability >= (10, 0):
            return 2
        return min(32, 8192 // block_size)
    others = 32 if problem.out_dtype.itemsize <= 2 else 40
    if others == 40 and problem.alignment < problem.dtype.max_pack:
        others = 48  # the ends of a row: 20 elements and 1024 threads spilled 8 bytes
    return min(arch.registers_per_multiprocessor // block_size, MOST_REGISTERS) - others
