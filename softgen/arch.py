"""What a kernel runs on: the few numbers of a GPU that legality and heuristics need."""

from __future__ import annotations

from dataclasses import dataclass

from softgen.errors import InvalidValueError

# Each number below is from NVIDIA's CUDA C++ programming guide
# (compute capabilities) or the data sheet of the device named beside it.
KIB = 1024
MIB = 1024 * KIB


def capability_name(capability: tuple[int, int]) -> str:
    """Return the compiler's name of a compute capability, for example sm_90."""
    major, minor = capability
    return f"sm_{major}{minor}"


@dataclass(frozen=True)
class Arch:
    """A GPU architecture, with the size of one device of it.

    Attributes:
        compute_capability: (major, minor).
        multiprocessors: number of streaming multiprocessors.
        threads_per_multiprocessor: resident threads at most.
        shared_per_block: shared memory in bytes that one block may opt in to.
        l2_bytes: size of the last-level cache.
        device: the device these sizes belong to.
    """

    compute_capability: tuple[int, int]
    multiprocessors: int
    threads_per_multiprocessor: int
    shared_per_block: int
    l2_bytes: int
    device: str
    registers_per_multiprocessor: int = 65536

    @property
    def name(self) -> str:
        """The compiler's name, for example sm_90."""
        return capability_name(self.compute_capability)


KNOWN: dict[str, Arch] = {
    arch.name: arch
    for arch in (
        Arch((7, 5), 40, 1024, 64 * KIB, 4 * MIB, "NVIDIA T4"),
        Arch((8, 0), 108, 2048, 163 * KIB, 40 * MIB, "NVIDIA A100"),
        Arch((8, 6), 82, 1536, 99 * KIB, 6 * MIB, "NVIDIA GeForce RTX 3090"),
        Arch((8, 9), 128, 1536, 99 * KIB, 72 * MIB, "NVIDIA GeForce RTX 4090"),
        Arch((9, 0), 132, 2048, 227 * KIB, 60 * MIB, "NVIDIA H200"),
        Arch((10, 0), 148, 2048, 227 * KIB, 126 * MIB, "NVIDIA B200"),
        Arch((12, 0), 170, 1536, 99 * KIB, 96 * MIB, "NVIDIA GeForce RTX 5090"),
    )
}

DEFAULT_ARCH = "sm_90"


def arch_named(name: str) -> Arch:
    """Return the known architecture called `name`; InvalidValueError lists the known ones."""
    try:
        return KNOWN[name]
    except KeyError:
        raise InvalidValueError(
            f"unknown architecture {name!r}; softgen knows: {', '.join(KNOWN)}"
        ) from None
