"""How the host launches a kernel: grid, block, shared memory, cluster, workspace.

And how many of its blocks an SM holds, from registers, threads and shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from softgen.errors import InvalidValueError
from softgen.problems.arch import FREE_SHARED, KIB, MAX_GRID, PORTABLE_CLUSTER, WARP_SIZE, Arch
from softgen.problems.problem import MAX_ROWS

# Blocks of an SM, from the CUDA C++ programming guide, "Technical specifications per compute
# capability"; 16 where it is not known here.
_MAX_BLOCKS = {(7, 5): 16, (8, 0): 32, (8, 6): 16, (8, 9): 24, (9, 0): 32, (10, 0): 32, (12, 0): 24}
FEWEST_BLOCKS = 16
REGISTER_UNIT = 256  # registers are handed out to whole warps in units of this many
REGISTERS_OF_THREAD = 8  # and ptxas counts those of a thread in units of this many
PARTITIONS = 4  # of an SM; a warp's registers lie in one of them
SHARED_UNIT = 128  # bytes
RESERVED = KIB  # bytes that CUDA keeps for itself of every block's shared memory, from sm_80 on

DYNAMIC_STARTS = 16  # what the address of a block's dynamic shared memory is a multiple of


def before_dynamic(static_bytes: int) -> int:
    """Return how much static shared memory a block has where dynamic is behind it."""
    return -(-static_bytes // DYNAMIC_STARTS) * DYNAMIC_STARTS


@dataclass(frozen=True)
class Launch:
    """How the host launches a kernel, which takes its operands, rows, and a workspace if any.

    Attributes:
        block_size: threads in a block.
        rows_per_block: rows that a block finishes in one step of its loop.
        static_shared_bytes: static shared memory of one block in bytes.
        dynamic_shared_bytes: dynamic shared memory of one block in bytes; the host has to opt in
            where it is above 48 KB together with the static.
        cluster_size: blocks of a thread block cluster, which then share one row.
        blocks_per_row: blocks that each step takes, where that is more than one.
        most_blocks: where blocks stride over the rows, the largest grid.
        cooperative: whether all blocks of the grid have to be resident together.
        workspace_bytes_per_row: global memory that the kernel needs for each row beside its arrays.
            It is zero before the first launch, and every launch leaves it zero.
        strides: whether a smaller grid than grid(rows) computes all rows too.
        multiprocessors: the SMs that the largest grid is sized for; 0 where it is for any number.
            A cooperative kernel has to have them all.
        dependent: whether it may be launched before the launch before it has ended, for which the
            kernel waits (programmatic dependent launch).
        most_rows: the most rows that the kernel takes; fewer than others where it divides their
            numbers in 32 bits.
    """

    block_size: int
    rows_per_block: int
    static_shared_bytes: int
    dynamic_shared_bytes: int = 0
    cluster_size: int = 1
    blocks_per_row: int = 1
    most_blocks: int = MAX_GRID
    cooperative: bool = False
    workspace_bytes_per_row: int = 0
    strides: bool = True
    multiprocessors: int = 0
    dependent: bool = False
    most_rows: int = MAX_ROWS

    @property
    def numbers_rows(self) -> bool:
        """Whether the kernel takes fewer rows than there may be."""
        return self.most_rows < MAX_ROWS

    @property
    def asks_for_shared(self) -> bool:
        """Whether the host must allow the kernel that much dynamic shared memory."""
        return self.dynamic_shared_bytes > 0 and self.shared_bytes > FREE_SHARED

    @property
    def asks_for_cluster(self) -> bool:
        """Whether the host must allow the kernel clusters of that size."""
        return self.cluster_size > PORTABLE_CLUSTER

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one block in bytes, static and dynamic."""
        return self.static_shared_bytes + self.dynamic_shared_bytes

    def workspace_bytes(self, rows: int) -> int:
        """Return the size of the workspace for `rows` rows; 0 if the kernel takes none."""
        return self.workspace_bytes_per_row * rows

    @property
    def grid_rule(self) -> str:
        """The size of the grid in words, for people who launch an emitted file."""
        steps = "rows" if self.rows_per_block == 1 else f"ceil(rows / {self.rows_per_block})"
        blocks = self.cluster_size * self.blocks_per_row
        size = f"{steps} * {blocks} blocks" if blocks > 1 else f"{steps} blocks"
        if self.cooperative:
            return f"a multiple of {blocks} blocks, at most {steps} * {blocks}, all resident"
        if self.most_blocks < MAX_GRID:
            whole = f", a multiple of {blocks}" if blocks > 1 else ""
            return f"{size}, at most {self.most_blocks}{whole}: blocks stride over the rows"
        return f"{size}, or fewer: blocks stride over the rows" if self.strides else size

    @property
    def multiprocessor_rule(self) -> str:
        """How many SMs the GPU should have, in words."""
        if not self.multiprocessors:
            return "any"
        if self.cooperative:
            return f"at least {self.multiprocessors} at once"
        return f"any, sized for {self.multiprocessors}"

    def reaches(self, rows: int) -> bool:
        """Whether a grid computes that many rows: not if blocks take one step and are too few."""
        if self.strides or self.most_blocks < MAX_GRID:
            return True
        steps = -(-rows // self.rows_per_block)
        return steps * self.cluster_size * self.blocks_per_row <= MAX_GRID

    def grid(self, rows: int) -> int:
        """Return the number of blocks for `rows` rows: one step each, within the grid's limit.

        Raises InvalidValueError where that is not enough, because blocks do not stride, and where
        the rows are more than the kernel takes. Whatever launches a kernel asks for its grid.
        """
        if rows > self.most_rows:
            raise InvalidValueError(
                f"this kernel takes at most {self.most_rows} rows (2**31 - 1), whose numbers it "
                f"divides in 32 bits, got {rows}; call for a part of them"
            )
        steps = -(-rows // self.rows_per_block)
        blocks = self.cluster_size * self.blocks_per_row
        if not self.reaches(rows):
            raise InvalidValueError(
                f"{rows} rows need {steps * blocks} blocks, and a grid has at most {MAX_GRID}; "
                "pass fewer rows at a time, or choose variant='online'"
            )
        return max(1, min(steps, self.most_blocks // blocks)) * blocks


def blocks_per_multiprocessor(launch: Launch, registers: int, shared_bytes: int, arch: Arch) -> int:
    """Return the resident blocks of one SM.

    Args:
        launch: the kernel's launch shape.
        registers: 32-bit registers of a thread, as the compiler reports them.
        shared_bytes: shared memory of a block.
        arch: the architecture.
    """
    warps = -(-launch.block_size // WARP_SIZE)
    of_warp = _round_up(max(registers, 1) * WARP_SIZE, REGISTER_UNIT)
    resident_warps = PARTITIONS * (arch.registers_per_multiprocessor // PARTITIONS // of_warp)
    return min(
        arch.threads_per_multiprocessor // launch.block_size,
        resident_warps // warps,
        blocks_in_shared(shared_bytes, arch),
    )


def blocks_in_shared(shared_bytes: int, arch: Arch) -> int:
    """Return how many blocks of so much shared memory each an SM holds."""
    most = _MAX_BLOCKS.get(arch.compute_capability, FEWEST_BLOCKS)
    reserved = RESERVED if arch.compute_capability >= (8, 0) else 0
    of_block = _round_up(shared_bytes + reserved, SHARED_UNIT)
    return min(most, (arch.shared_per_block + reserved) // of_block) if of_block else most


def blocks_in_registers(registers: int, block_size: int, arch: Arch) -> int:
    """Return how many blocks of threads with `registers` registers an SM holds, at least 1."""
    of_thread = _round_up(registers, REGISTERS_OF_THREAD)
    blocks = arch.registers_per_multiprocessor // (block_size * of_thread)
    # sm_75 and sm_86 hold 16 blocks an SM; ptxas warns of more, and no kernel here gains by it.
    return max(1, min(blocks, arch.threads_per_multiprocessor // block_size, FEWEST_BLOCKS))


def resident_blocks(shared_bytes: int, block_size: int, arch: Arch) -> int:
    """Return how many blocks an SM holds, by shared memory and threads, at least 1."""
    by_shared = (arch.shared_per_block + RESERVED) // (shared_bytes + RESERVED)
    return max(1, min(by_shared, arch.threads_per_multiprocessor // block_size))


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
