"""Columns of memory where inner is odd: whole packs all the same, which go across the end of inner.

Elements of an outer index follow each other in memory. With P elements a pack and g = P / gcd(P,
inner), a band of g neighbouring columns is inner / gcd(P, inner) whole packs. A thread whose packs
are whole bands apart has elements of the same P rows in all of them, so it finds the parts of those
as if its packs lay along inner. Parts lie side by side in shared memory as elements do in a band.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from softgen.problems.arch import PORTABLE_CLUSTER, WARP_SIZE, Arch
from softgen.problems.dtypes import MAX_PACK_BYTES, DType
from softgen.problems.layouts import Columns
from softgen.problems.problem import Problem
from softgen.strategies import registers
from softgen.strategies.base import Feature, Strategy, knob
from softgen.strategies.columnar import (
    CLUSTERS,
    MOST_SHARED,
    inputs_of,
    sums_in_place,
)
from softgen.strategies.launch import Launch, blocks_in_registers

THREADS = (64, 128, 192, 256, 320, 384, 512, 768, 1024)  # of a candidate at most
MOST_OF_SMALL_CLUSTERS = 160 * 1024  # elements of an outer index: 20K a block of eight
LEAST_PACKS = 64  # of an outer index: where they are fewer several of them should share a block
MOST_HELD = 96  # elements of an input in a thread of a candidate

SPARE_REGISTERS = 8  # of a candidate: without them several spilled


@dataclass(frozen=True)
class Bands(Strategy):
    """An outer index per block or cluster, in packs of the elements as they follow each other."""

    name = "bands"
    summary = "whole packs across the end of inner, in registers: axes before a small or odd inner"
    layouts = (Columns,)
    takes = frozenset({Feature.MORE_INPUTS, Feature.SUMS, Feature.HOOKS, Feature.FLOAT8})
    triggers = True

    pack_size: int = knob("p", "elements moved by one load or store")
    threads_across: int = knob("w", "threads that hold packs: of whole bands")
    block_size: int = knob("b", "threads in a block")
    cols_per_thread: int = knob("c", "packs of a thread: as many elements of each of its rows")
    min_blocks: int = knob("m", "blocks that an SM must hold; caps the registers")
    cluster_size: int = knob("k", "blocks that share an outer index", default=1)

    def ways(self, problem: Problem) -> tuple[bool, ...]:
        """Return whether blocks share an outer index, and whether its last pack is cut."""
        cut = problem.cols * problem.layout.step % self.pack_size > 0
        return (self.cluster_size > 1, cut)

    def describe(self, problem: Problem) -> str:
        """Return who holds an outer index, for the header of a file."""
        blocks = f"a cluster of {self.cluster_size} blocks" if self.cluster_size > 1 else "a block"
        return f"all rows of an outer index in the registers of {blocks}"

    @classmethod
    def computes(cls, problem: Problem) -> bool:
        """Whether the template has what the problem asks for."""
        return sums_in_place(problem) and super().computes(problem)

    @property
    def needs(self) -> tuple[int, int]:
        """The first compute capability that has the instructions of this setting."""
        return (9, 0) if self.cluster_size > 1 else (7, 5)

    @property
    def stride(self) -> int:
        """How many packs a thread's packs are apart: as many as threads of all blocks hold one."""
        return self.threads_across * self.cluster_size

    def row_parts(self, problem: Problem) -> int:
        """Return the parts of a row in a block: of so many columns."""
        return self.threads_across * self.pack_size // problem.layout.step

    def sharers(self, problem: Problem) -> int:
        """Return the adjacent lanes that combine the parts of a row, a power of two."""
        most = min(WARP_SIZE, self.block_size // problem.layout.step)
        of_parts = math.gcd(self.row_parts(problem), WARP_SIZE)
        of_blocks = math.gcd(self.cluster_size, WARP_SIZE) if self.cluster_size > 1 else WARP_SIZE
        return min(1 << (most.bit_length() - 1), of_parts, of_blocks)

    def check(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless the threads hold whole bands, and an outer index."""
        require, inner = self.require, problem.layout.step
        self.require_cluster(self.cluster_size, arch)
        require(
            1 <= self.cluster_size <= max(CLUSTERS),
            f"cluster_size must be from 1 to {max(CLUSTERS)}",
        )
        self.require_pack(self.pack_size, problem)
        self.require_block(self.block_size)
        band = band_packs(problem, self.pack_size)
        require(
            0 < self.threads_across <= self.block_size and self.threads_across % band == 0,
            f"threads_across must be a multiple of {band}, the packs of a band, and at most "
            f"{self.block_size}",
        )
        require(
            inner <= self.block_size,
            f"a thread for each of {inner} rows: block_size must be at least that",
        )
        packs = -(-problem.cols * inner // self.pack_size)
        wanted = -(-packs // self.stride)
        require(
            self.cols_per_thread == wanted,
            f"cols_per_thread must be {wanted}, what {self.stride} threads hold of {packs} packs",
        )
        shared = self.slot_bytes(problem)
        require(
            shared <= MOST_SHARED,
            f"the parts of a block take {shared} bytes of shared memory, of {MOST_SHARED}",
        )
        held, others = self.element_registers(problem), self.others(problem)
        self.require_registers(held, others, self.min_blocks, self.block_size, arch)

    def element_registers(self, problem: Problem) -> int:
        """Return the 32-bit registers of a thread that hold elements."""
        of_input = self.pack_size * self.cols_per_thread * problem.compute_dtype.itemsize // 4
        return inputs_of(problem) * of_input

    def others(self, problem: Problem) -> int:
        """Return the registers of a thread beside them, with which ptxas does not spill."""
        return registers.BANDS.of(problem, self.pack_size)

    def slot_bytes(self, problem: Problem) -> int:
        """Return the static shared memory of a block: parts of its threads, of its cluster's."""
        parts = self.threads_across * self.pack_size
        clusters = self.cluster_size > 1
        parts += self.cluster_size * problem.layout.step if clusters else 0
        return parts * problem.part_bytes + 8 * clusters

    def part(self, problem: Problem) -> int:
        """Return the columns that all blocks of a cluster have in one round, else 0."""
        columns = self.stride * self.pack_size // problem.layout.step
        return columns if self.cluster_size > 1 else 0

    def launch(self, problem: Problem) -> Launch:
        """Return the launch shape: an outer index a block or cluster, and its parts."""
        return Launch(
            self.block_size,
            rows_per_block=problem.layout.step,
            static_shared_bytes=self.slot_bytes(problem),
            cluster_size=self.cluster_size,
            strides=False,
        )

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield blocks of whole bands where packs along inner would be less than 16 bytes."""
        inner, size = problem.layout.step, problem.dtype.itemsize
        if problem.alignment * size >= MAX_PACK_BYTES or inner > max(THREADS):
            return
        found = [
            setting
            for pack in (problem.dtype.max_pack, problem.dtype.max_pack // 2)
            if pack > problem.alignment
            # Else all outer indices but the first start within a pack, and move by elements.
            and (problem.cols * inner % pack == 0 or rows <= inner)
            and problem.cols * inner >= LEAST_PACKS * pack
            for threads in cls._threads(problem, pack)
            for cluster in CLUSTERS
            for setting in cls._filled(problem, arch, pack, threads, cluster)
        ]
        yield from sorted(found, key=lambda s: s.rank(problem, rows, arch))

    @staticmethod
    def _threads(problem: Problem, pack: int) -> list[int]:
        """Return the most threads of whole bands within each of THREADS, at least one of rows."""
        band = band_packs(problem, pack)
        found = {most // band * band for most in THREADS if most >= band}
        return sorted(found)

    @classmethod
    def _filled(
        cls, problem: Problem, arch: Arch, pack: int, threads: int, cluster: int
    ) -> Iterator[Bands]:
        """Yield such a block with one or most blocks on an SM, if it is worth a try."""
        packs = -(-problem.cols * problem.layout.step // pack)
        if cluster > 1 and packs < 2 * threads * cluster:
            return
        block = -(-max(threads, problem.layout.step) // WARP_SIZE) * WARP_SIZE
        one = cls(pack, threads, block, -(-packs // (threads * cluster)), 1, cluster)
        if pack * one.cols_per_thread > MOST_HELD or not one.keeps_rules(problem, arch):
            return
        needed = one.element_registers(problem) + one.others(problem) + SPARE_REGISTERS
        full = _most_blocks(needed, block, arch)
        for blocks in sorted({1, full} - {0}):
            setting = one.with_knobs(min_blocks=blocks)
            if full and setting.keeps_rules(problem, arch):
                yield setting

    def rank(self, problem: Problem, rows: int, arch: Arch) -> float:
        """Order candidates: 64 registers of elements, three blocks on an SM, two blocks for each.

        On an H200 float32 axis 1 of (400, 1000, 77) takes 65 us by 154 threads, three blocks of
        which an SM holds, 76 by 231 and two, 82 by 308 and one. Of (1000, 64, 33) 33 threads of 16
        packs take 5.8, 99 of 6 take 6.4. Not all clusters of 16 with an SM a block run at once: at
        (8, 4096, 77) they took two waves. Of (32, 512, 49) clusters of 8 take 4.3 us, of 4 4.7; in
        bfloat16 packs of 4 take 3.2, of 8 3.4.
        """
        inner = problem.layout.step
        packs = problem.cols * inner / self.pack_size
        blocks = max(1, rows // inner) * self.cluster_size
        score = 1.0 * (self.cols_per_thread * self.stride / packs - 1)
        score += 0.5 * (1 - self.threads_across / self.block_size)
        score += 0.3 * abs(math.log2(self.element_registers(problem) / 64))
        score += 0.3 * math.log2(max(1.0, 3 / self.min_blocks))
        score += 0.2 * abs(math.log2(self.block_size / 128)) + 0.1 * math.log2(self.cluster_size)
        score += 0.8 * max(0.0, math.log2(arch.multiprocessors * 0.9 / blocks))
        score += 0.5 * max(0.0, math.log2(arch.multiprocessors * 1.8 / blocks))
        if self.cluster_size > PORTABLE_CLUSTER and self.min_blocks == 1:
            score += 0.5
        best = min(4, problem.dtype.max_pack)
        return score + 0.3 * abs(math.log2(best / self.pack_size))

    @classmethod
    def estimate(cls, problem: Problem, rows: int, arch: Arch) -> float:
        """Little above the copy's time, where others move elements one by one; not in float64.

        Nor where only clusters of 16 hold an outer index: axis 1 of (8, 4096, 77) took 11.2 us in
        float32 on an H200 and 31 in float64, by `columns` 10.5 and 23. In bfloat16 7.3 and 8.1.
        """
        elements = problem.cols * problem.layout.step
        if problem.compute_dtype is DType.FLOAT64:
            return 1.25
        if elements > MOST_OF_SMALL_CLUSTERS:
            return 1.15 if problem.dtype.itemsize == 2 else 1.25
        short = problem.cols * problem.layout.step * problem.dtype.itemsize <= 16 * 1024
        return 1.1 if short else 1.04


def band_packs(problem: Problem, pack_size: int) -> int:
    """Return the packs of a band: of as many columns as are whole packs."""
    return problem.layout.step // math.gcd(pack_size, problem.layout.step)


def _most_blocks(needed: int, block_size: int, arch: Arch) -> int:
    """Return how many blocks of such threads an SM holds, 0 if none: warps go to its quarters."""
    for blocks in range(blocks_in_registers(needed, block_size, arch), 0, -1):
        warps = -(-blocks * block_size // (4 * WARP_SIZE))  # of a quarter
        if needed <= arch.registers_per_multiprocessor // (4 * WARP_SIZE * warps) // 8 * 8:
            return blocks
    return 0
