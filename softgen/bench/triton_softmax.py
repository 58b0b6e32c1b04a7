"""The fused softmax of Triton's tutorial, rewritten: today's, and the one that it had before.

Today's program walks over rows, a row at a time; the earlier one had a program for each row.

Source of the algorithm and of its launch settings: "Fused Softmax" of the Triton tutorials,
https://triton-lang.org/main/getting-started/tutorials/02-fused-softmax.html. A row is one block of
the next power of two. Today's takes eight warps, and as many programs as are resident at once; the
earlier one (Triton 2) four warps, eight from blocks of 2048 on and sixteen from 4096. Ours compute
in float32 whatever the type, and count elements in 64 bits.

Import this only where triton is installed: its kernels have to be at module level.
"""

# No postponed annotations here: Triton reads those of a kernel's parameters.
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from softgen.problems.arch import Arch

WARPS = 8
WARPS_OF_ONE_ROW = ((4096, 16), (2048, 8), (1, 4))  # from which block size on, so many
SHARED_FOR_FOUR_STAGES = 200_000  # bytes a block; with less the tutorial pipelines two rows


@triton.jit
def softmax_rows(y, x, rows, cols, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Write the softmax of each row of `x` into `y`; both are contiguous, (rows, cols)."""
    col = tl.arange(0, BLOCK)
    inside = col < cols
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        start = row.to(tl.int64) * cols
        value = tl.load(x + start + col, mask=inside, other=float("-inf")).to(tl.float32)
        term = tl.exp(value - tl.max(value, axis=0))
        result = term / tl.sum(term, axis=0)
        tl.store(y + start + col, result.to(y.dtype.element_ty), mask=inside)


@triton.jit
def softmax_row(y, x, cols, BLOCK: tl.constexpr):
    """Write the softmax of the program's row of `x` into `y`; both are contiguous."""
    col = tl.arange(0, BLOCK)
    inside = col < cols
    at = tl.program_id(0).to(tl.int64) * cols + col
    value = tl.load(x + at, mask=inside, other=float("-inf")).to(tl.float32)
    term = tl.exp(value - tl.max(value, axis=0))
    tl.store(y + at, (term / tl.sum(term, axis=0)).to(y.dtype.element_ty), mask=inside)


def one_row(x: Any, out: Any) -> None:
    """Enqueue out = softmax(x) on PyTorch's current stream, a program a row."""
    rows, cols = x.shape
    block = triton.next_power_of_2(cols)
    warps = next(count for least, count in WARPS_OF_ONE_ROW if block >= least)
    softmax_row[(rows,)](out, x, cols, BLOCK=block, num_warps=warps)


@dataclass(frozen=True)
class Fitted:
    """The kernel with its settings for one shape.

    Attributes:
        programs: launched at a time; each takes every `programs`-th row.
        block: elements of a row, rounded up to a power of two.
        stages: rows in the pipeline of a program.
    """

    programs: int
    block: int
    stages: int

    def launch(self, x: Any, out: Any) -> None:
        """Enqueue out = softmax(x) on PyTorch's current stream."""
        rows, cols = x.shape
        softmax_rows[(self.programs,)](
            out, x, rows, cols, BLOCK=self.block, STAGES=self.stages, num_warps=WARPS
        )


def fit(x: Any, out: Any, arch: Arch) -> Fitted:
    """Compile for tensors like `x` and `out`, and return how many programs the GPU holds at once.

    Raises Triton's OutOfResources where the row does not fit.
    """
    rows, cols = x.shape
    block = triton.next_power_of_2(cols)
    stages = 4 if arch.shared_per_block > SHARED_FOR_FOUR_STAGES else 2
    compiled = softmax_rows.warmup(
        out, x, rows, cols, BLOCK=block, STAGES=stages, num_warps=WARPS, grid=(1,)
    )
    compiled._init_handles()  # loads the module, and so learns its registers
    resident = arch.registers_per_multiprocessor // (compiled.n_regs * 32 * WARPS)
    if compiled.metadata.shared:
        resident = min(resident, arch.shared_per_block // compiled.metadata.shared)
    return Fitted(min(rows, max(1, resident) * arch.multiprocessors), block, stages)
