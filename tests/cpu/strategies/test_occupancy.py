"""Resident blocks, against numbers worked out by hand from NVIDIA's tables."""

from __future__ import annotations

import pytest

from softgen.spec.arch import arch_named
from softgen.strategies.launch import Launch, blocks_per_multiprocessor


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks"),
    [
        ("sm_90", 256, 32, 0, 8),  # 2048 threads
        ("sm_90", 32, 16, 0, 32),  # 32 blocks at most
        ("sm_86", 32, 16, 0, 16),  # 16 blocks at most
        ("sm_75", 256, 32, 0, 4),  # 1024 threads
        ("sm_90", 256, 64, 0, 4),  # 65536 / (64 * 256)
        ("sm_90", 256, 65, 0, 3),  # 65 * 32 = 2080 is rounded up to 2304: 7 warps a quarter
        ("sm_90", 1024, 64, 0, 1),
        ("sm_90", 1024, 65, 0, 0),  # does not fit
        ("sm_90", 128, 32, 113 * 1024, 2),  # 228 KiB / (113 + 1)
        ("sm_90", 128, 32, 114 * 1024, 1),
        ("sm_90", 128, 32, 227 * 1024, 1),
        ("sm_75", 128, 32, 32 * 1024, 2),  # nothing is reserved before sm_80
    ],
)
def test_blocks(arch: str, threads: int, registers: int, shared: int, blocks: int) -> None:
    launch = Launch(threads, 1, shared)
    assert blocks_per_multiprocessor(launch, registers, shared, arch_named(arch)) == blocks
