"""Resident blocks, against numbers worked out by hand from NVIDIA's tables."""

from __future__ import annotations

import dataclasses

import pytest

from softgen.errors import IllegalVariantError
from softgen.problems.arch import arch_named
from softgen.problems.problem import Problem
from softgen.strategies.block import Block
from softgen.strategies.cluster import Cluster
from softgen.strategies.launch import (
    Launch,
    blocks_in_registers,
    blocks_per_multiprocessor,
    resident_blocks,
)


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
        ("sm_80", 128, 32, 32 * 1024, 4),  # 164 KiB / (32 + 1)
        ("sm_90", 256, 16, 0, 8),  # 2048 threads, though registers are for 16 blocks
    ],
)
def test_blocks(arch: str, threads: int, registers: int, shared: int, blocks: int) -> None:
    launch = Launch(threads, 1, shared)
    assert blocks_per_multiprocessor(launch, registers, shared, arch_named(arch)) == blocks


@pytest.mark.parametrize(
    ("arch", "registers", "threads", "blocks"),
    [
        ("sm_90", 16, 256, 8),  # 2048 threads, though registers are for 16 blocks
        ("sm_75", 32, 256, 4),  # 1024 threads
        ("sm_90", 33, 256, 6),  # 65536 / (40 * 256)
        ("sm_90", 16, 64, 16),  # the fewest that any SM holds
        ("sm_90", 255, 1024, 1),  # does not fit
    ],
)
def test_blocks_by_registers(arch: str, registers: int, threads: int, blocks: int) -> None:
    assert blocks_in_registers(registers, threads, arch_named(arch)) == blocks


@pytest.mark.parametrize(
    ("arch", "shared", "threads", "blocks"),
    [
        ("sm_90", 0, 256, 8),  # 2048 threads
        ("sm_86", 0, 256, 6),  # 1536 threads
        ("sm_90", 75 * 1024, 256, 3),  # 228 KiB / (75 + 1)
        ("sm_90", 76 * 1024, 256, 2),
        ("sm_80", 40 * 1024, 256, 4),  # 164 KiB / (40 + 1)
        ("sm_90", 228 * 1024, 256, 1),  # does not fit
    ],
)
def test_blocks_by_shared_memory(arch: str, shared: int, threads: int, blocks: int) -> None:
    assert resident_blocks(shared, threads, arch_named(arch)) == blocks


@pytest.mark.parametrize(("arch", "most"), [("sm_90", 16), ("sm_75", 8)])
def test_blocks_that_an_sm_must_hold_have_no_more_threads_than_it_has(arch: str, most: int) -> None:
    """2048 threads, and 1024: of these few registers it would hold more."""
    problem, known = Problem.of("softmax", "float32", 512), arch_named(arch)
    Block(4, 4, 128, 128, most).check(problem, known)
    with pytest.raises(IllegalVariantError, match=f"from 1 to {most}, got {most + 1}: an SM"):
        Block(4, 4, 128, 128, most + 1).check(problem, known)


def test_a_large_cluster_is_for_devices_with_whole_gpcs() -> None:
    """More than 8 blocks: devices with few SMs have no GPC of 16."""
    problem, h100 = Problem.of("softmax", "float32", 4096), arch_named("sm_90")
    wide = Cluster(4, 4, 64, 16, 1, False)
    wide.check(problem, h100.with_multiprocessors(100))
    few = h100.with_multiprocessors(99)
    with pytest.raises(IllegalVariantError, match="a cluster of 16 does not fit a GPC"):
        wide.check(problem, few)
    dataclasses.replace(wide, cluster_size=8, cols_per_thread=8).check(problem, few)
