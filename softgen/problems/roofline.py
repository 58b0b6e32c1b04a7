"""What a call cannot beat: its bytes at the memory's peak, its arithmetic at that of the SMs.

The roofline model (Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009).
"""

from __future__ import annotations

from dataclasses import dataclass

from softgen.problems.arch import KNOWN, Arch
from softgen.problems.dtypes import DType
from softgen.problems.problem import Problem

# Lanes of an SM for float32 and for float64, by compute capability: CUDA C++ programming guide,
# "Throughput of native arithmetic instructions".
_LANES = {
    **{(7, 5): (64, 2), (8, 0): (64, 32), (8, 6): (128, 2), (8, 9): (128, 2)},
    **{(9, 0): (128, 64), (10, 0): (128, 64), (12, 0): (128, 2)},
}
# From the same table: base-2 exponentials in float32, the same everywhere.
EXPONENTIALS_PER_CLOCK = 16

# GB/s of the memory and MHz of the SMs at boost, from the data sheets.
_DATA_SHEETS = {
    "NVIDIA T4": (320, 1590),
    "NVIDIA A100": (1555, 1410),
    "NVIDIA GeForce RTX 3090": (936, 1695),
    "NVIDIA GeForce RTX 4090": (1008, 2520),
    "NVIDIA H200": (4800, 1980),
    "NVIDIA B200": (8000, 1965),
    "NVIDIA GeForce RTX 5090": (1792, 2407),
}


@dataclass(frozen=True)
class Peaks:
    """The peaks of one device.

    Attributes:
        gigabytes_per_second: of its memory.
        megahertz: of its SMs.
    """

    gigabytes_per_second: float
    megahertz: float


def data_sheet_peaks(arch: Arch) -> Peaks | None:
    """Return the peaks of the known device of that architecture, whatever SMs `arch` has."""
    known = KNOWN.get(arch.name)
    return Peaks(*_DATA_SHEETS[known.device]) if known else None


@dataclass(frozen=True)
class Roofline:
    """The least times of a call in microseconds, and what they are of.

    Attributes:
        moved_bytes: each operand once.
        flops: floating-point operations, an exponential being one.
        memory: time of the bytes.
        teraflops: peak of the SMs in the type of the arithmetic, an FMA being two operations; None
            where the architecture is not known.
        arithmetic: time of the operations; None likewise.
        exponentials: time of one exponential an element; None in float64, which has no unit for it.
    """

    moved_bytes: int
    flops: int
    flops_per_element: int
    peaks: Peaks
    memory: float
    teraflops: float | None
    arithmetic: float | None
    exponentials: float | None


def roofline(problem: Problem, rows: int, arch: Arch, peaks: Peaks) -> Roofline:
    """Return the limits of `rows` rows on `arch`."""
    moved = rows * problem.bytes_per_row
    elements = rows * problem.cols
    each = flops_per_element(problem)
    lanes = _LANES.get(arch.compute_capability)
    of_type = lanes and lanes[problem.compute_dtype is DType.FLOAT64]
    clocks_per_us = arch.multiprocessors * peaks.megahertz
    rate = of_type and 2 * of_type * clocks_per_us  # operations in a microsecond
    return Roofline(
        moved_bytes=moved,
        flops=each * elements,
        flops_per_element=each,
        peaks=peaks,
        memory=moved / peaks.gigabytes_per_second / 1e3,
        teraflops=rate / 1e6 if rate else None,
        arithmetic=each * elements / rate if rate else None,
        exponentials=(
            elements / (EXPONENTIALS_PER_CLOCK * clocks_per_us)
            if problem.compute_dtype is DType.FLOAT32
            else None
        ),
    )


def flops_per_element(problem: Problem) -> int:
    """Return the operations that an element takes at least, counted as FastSoftmax's author does.

    softmax takes 5: maximum, difference, exponential, sum, product. What has no result for each
    element needs no last one, and what is given the pair of a row no maximum and no sum. A second
    input is a factor of the terms.
    """
    reduces, writes = problem.function.reduces, problem.writes_elements
    factors = len(problem.element_inputs) - 1
    return 2 + 2 * reduces + writes + factors
