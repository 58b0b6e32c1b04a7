"""Registers that a thread takes beside the elements that it holds, so that ptxas spills none.

A setting that spills is not legal (docs/lab/spills.md), and it has to be known what a thread takes
before anything is compiled. So each number here comes from kernels that NVRTC compiled. Its comment
names one that spilled with fewer registers. "Fitted" stands where nobody wrote that down, with the
commit that brought the number.
"""

from __future__ import annotations

from typing import NamedTuple

from softgen.problems.arch import MOST_REGISTERS, Arch
from softgen.problems.dtypes import DType
from softgen.problems.problem import Problem
from softgen.strategies.base import MOST_UNROLL, Strategy

ByType = dict[DType, int]  # by the type of the arithmetic

# Slices of a row: block, cluster, split, and the first line also cooperative and tiles.

# Addresses, packs in flight, the pair. float64's exp takes many for itself. Fitted (f80f30b1).
OTHER: ByType = {DType.FLOAT32: 28, DType.FLOAT64: 64}
# Beside elements that stay packed: 16 do not spill, but took 1 to 2% more at bfloat16 64 and
# 256 x 128256 on an H200.
PACKED = 24
# The cut packs of rows that start anywhere. Fitted (aab857b8).
CUT: ByType = {DType.FLOAT32: 4, DType.FLOAT64: 12}
# The exchange of elements between lanes. Fitted (46e0d399).
REALIGNED: ByType = {DType.FLOAT32: 8, DType.FLOAT64: 16}
# The addresses of one more input, in packs and in single elements: with 8 there as well the
# gradient of softmax spilled 8 to 64 bytes at bfloat16 40001 in `cluster` and `split`.
INPUT = 8
SINGLE_INPUT = 24
# Where packs are skipped: float32 4096 causal spilled 16 bytes in threads of 32 elements without.
SKIPPING = 8
# Where a lane has more than one of what is chosen: 64 of bfloat16 1000 spilled 32 bytes without.
PLACES = 24
CHOICE = 32  # where a block chooses, in float32; fitted (da33eb33)
TASK = 4  # of split: which chunk it is, and whether to write it; fitted (551556df)

# Clusters, whose packed and 16-bit elements leave room for more blocks on an SM.

# What is known of a row finds room beside packed elements. A smoothed gradient of bfloat16 32000
# spilled 8 bytes without 2 more, and of float16 50257, whose packs are cut, 16 bytes with 8 more.
PACKED_MORE, PACKED_MORE_CUT = 2, 12
# Beside packed elements of rows that start on packs and are summed, which takes no maximum and no
# exponential. Cut packs spilled 28 bytes with as few at bfloat16 50257, in threads of 2 x 32.
PACKED_SUM = 16
# Beside packed elements of which some are chosen, on sm_90. Without 8 more ranked_log_probs
# spilled 8 bytes at 128256 columns on sm_100, and sample_k64 32 in blocks of 128 threads.
PACKED_CHOICE, CHOICE_ON_SM_100, CHOICE_OF_SMALL_BLOCKS = 32, 8, 8
# Elements that are packed while they are loaded. Cut packs in threads of 64 elements spilled 8
# bytes on sm_90 with 16, and took 1% more; in those of 56 192 on sm_120, and nothing on sm_90;
# bfloat16 to float16 144 on sm_100.
HALVES, HALVES_CUT = 16, 24
STRIDES = 4  # float16 16384 took two more in threads of 32 elements
HALVES_OF_SHARD = 8  # shards of bfloat16 50257 spilled 40 bytes without
CUT_WORDS = 4  # float32 4096 x 20001 spilled 8 bytes in threads of 40 elements without
# float32 to bfloat16 131072 spilled 20 bytes in threads of 64 elements without.
NARROWED = 8
# Shards of float32 64128 spilled 40 bytes in threads of 64, of 75969 84 in those of 76.
LONG_SHARD, LONGEST_SHARD = 16, 40

# cooperative: its ring and its exchange, beside OTHER. Fitted (67093fd7). On sm_120 float16 to
# float64 spilled 8 bytes at 2097152 columns without 8 more.
RING, DOUBLE_RING_ON_SM_120 = 16, 8

# block on sm_75: float32 8192 spilled 8 bytes in threads of 32 elements without.
FLOAT32_ON_SM_75 = 8

# Columns.


class OfColumns(NamedTuple):
    """What a thread takes that has a pack of adjacent rows, beside their elements.

    Attributes:
        thread: addresses and the like, whatever the pack.
        row: for each row of the pack: its pair, and what makes results.
    """

    thread: ByType
    row: ByType

    def of(self, problem: Problem, rows: int) -> int:
        """Return the registers of a thread with so many adjacent rows."""
        compute = problem.compute_dtype
        inputs = INPUT * (len(problem.element_inputs) - 1)
        return self.thread[compute] + self.row[compute] * rows + inputs + of_hooks(problem, rows)


# Fitted: columns and strips by 0d5c02c7, bands by bc78a90b, spread by 8be399c7.
COLUMNS = OfColumns({DType.FLOAT32: 30, DType.FLOAT64: 64}, {DType.FLOAT32: 4, DType.FLOAT64: 8})
STRIPS = OfColumns({DType.FLOAT32: 26, DType.FLOAT64: 64}, {DType.FLOAT32: 5, DType.FLOAT64: 16})
# strips, where pairs are given: without them entropy's gradient of float64 spilled 8 bytes in packs
# of two and 8 columns at once, logsumexp's 48 on sm_120.
GIVEN: ByType = {DType.FLOAT32: 0, DType.FLOAT64: 16}
BANDS = OfColumns({DType.FLOAT32: 16, DType.FLOAT64: 24}, {DType.FLOAT32: 1, DType.FLOAT64: 4})
SPREAD = OfColumns({DType.FLOAT32: 32, DType.FLOAT64: 48}, {DType.FLOAT32: 5, DType.FLOAT64: 16})
# Where some of the columns are in shared memory: with fewer 4 to 24 bytes were spilled.
STAGED = OfColumns({DType.FLOAT32: 14, DType.FLOAT64: 24}, {DType.FLOAT32: 7, DType.FLOAT64: 14})
TILES = OfColumns(OTHER, {DType.FLOAT32: 0, DType.FLOAT64: 0})  # a thread has one row
COLUMNS_A_REGISTER = 16  # registers of elements for which columns takes one more; fitted (0d5c02c7)


def of_hooks(problem: Problem, rows: int = 1) -> int:
    """Return the registers that hooks take of a thread with so many adjacent rows."""
    compute = problem.compute_dtype
    return sum(
        hook.registers(compute) * (rows if hook.by_row or hook.leaves else 1)
        for hook in problem.hooks
    )


# Walks: online and threepass, which load several packs before they use the first.

# One more input, beside its elements: without, the gradient of softmax spilled 12 to 44 bytes in
# float32 with 1024 threads and two packs at once.
WALK_INPUT = 16
# What hooks may take before elements have to make room: with 22 more a scale of rows, a mask,
# causal and dropout together spilled 32 bytes in 1024 threads.
WALK_HOOKS = 24
SMALL_BLOCK = 256  # threads, which have as many registers each as there may be
# Results of 16 bits or less, wider ones, and those where the ends of a row are cut: with 40 there
# 20 elements and 1024 threads spilled 8 bytes. 1,476 settings were compiled, and 8,900 more with 3
# and 5 to 8 packs at once, on sm_75, sm_90 and sm_120.
WALK, WALK_WIDE, WALK_WIDE_CUT = 32, 40, 48
# Elements in float64, whose exp takes many registers, as does the compensation in softmax: at most
# 32, or this over the threads. In 1024 threads packs of 2 spilled 8 to 40 bytes on sm_100 and
# sm_120.
MOST_WALKED_FLOAT64, FLOAT64_OF_BLOCK, FLOAT64_ON_SM_100 = 32, 8192, 2


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
    limit = _most_walked(problem, arch, block_size) - WALK_INPUT * (inputs - 1)
    # What a function itself knows of a row finds room in the 255 registers of small blocks.
    known = problem.modifiers if block_size > SMALL_BLOCK else problem.hooks
    hooks = sum(hook.registers(problem.compute_dtype) for hook in known)
    limit -= max(0, hooks - WALK_HOOKS)
    strategy.require(
        held <= limit,
        f"a thread would hold {held} registers of elements; at most {limit} do not spill",
    )


def _most_walked(problem: Problem, arch: Arch, block_size: int) -> int:
    """Return the registers of elements of one input with which ptxas does not spill."""
    if problem.compute_dtype is DType.FLOAT64:
        if block_size > 512 and arch.compute_capability >= (10, 0):
            return FLOAT64_ON_SM_100
        return min(MOST_WALKED_FLOAT64, FLOAT64_OF_BLOCK // block_size)
    others = WALK if problem.out_dtype.itemsize <= 2 else WALK_WIDE
    if others == WALK_WIDE and problem.alignment < problem.dtype.max_pack:
        others = WALK_WIDE_CUT
    return min(arch.registers_per_multiprocessor // block_size, MOST_REGISTERS) - others


# online beside packs that are only read. Without a cap it takes up to 12 more: bfloat16 4096 x
# 128256 took 242.7 us in 36 registers, and 232.8 in 32, with which an SM holds four blocks of 512
# threads.
READER = 24
# Of a row's target on sm_100 and later, where 8 to 24 bytes were spilled beside packs without.
READER_TARGET = 8
# Of a pack whose larger elements are counted, before sm_90: 8 to 48 bytes were spilled without.
READER_RANK = 2
# Before sm_80, which has no maximum of packed numbers, ptxas takes 4 for each of such packs: 24 of
# them took up to 128 for entropies, and 64 spilled 24 to 1750 bytes on sm_75.
OLD_PACKS = 4

# online beside packs on their way and the elements of one, where nothing is found of a row. Without
# a cap an H200 takes 512 us for the gradient of cross entropy at bfloat16 4096 x 128256, 824 at
# 16384 x 50257; with one 503 and 799.
WRITER = 16
# Where rows start anywhere, by the bytes of an element: 12 spilled 8 bytes in float32.
WRITER_ENDS = {2: 8, 4: 16}
WRITER_LOG = 8  # the log of a row's sum; fitted (c1b63e8e)
WRITER_ROOT = 5  # float32 terms with a target: in 32 registers 8 to 28 bytes were spilled
MOST_WRITER_HOOKS = 8  # with hooks that take more 4 to 52 bytes were spilled
