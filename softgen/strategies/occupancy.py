"""How many blocks of a kernel an SM can hold at once, from registers, threads and shared memory."""

from __future__ import annotations

from softgen.spec.arch import KIB, WARP_SIZE, Arch
from softgen.strategies.launch import Launch

# From the CUDA C++ programming guide, "Technical specifications per compute capability".
_MAX_BLOCKS = {(7, 5): 16, (8, 0): 32, (8, 6): 16, (8, 9): 24, (9, 0): 32, (10, 0): 32, (12, 0): 24}
REGISTER_UNIT = 256  # registers are handed out to whole warps in units of this many
PARTITIONS = 4  # of an SM; a warp's registers lie in one of them
SHARED_UNIT = 128  # bytes


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
    most = _MAX_BLOCKS.get(arch.compute_capability, 16)
    # From sm_80 on CUDA keeps 1 KiB of every block's shared memory for itself.
    reserved = KIB if arch.compute_capability >= (8, 0) else 0
    of_block = _round_up(shared_bytes + reserved, SHARED_UNIT)
    return min(most, (arch.shared_per_block + reserved) // of_block) if of_block else most


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
