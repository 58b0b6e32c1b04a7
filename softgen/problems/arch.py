"""What a kernel runs on: the few numbers of a GPU that legality and heuristics need."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.names import unknown

# Each number below is from NVIDIA's CUDA C++ programming guide
# (compute capabilities) or the data sheet of the device named beside it.
KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

WARP_SIZE = 32
MAX_GRID = 2**31 - 1
MOST_REGISTERS = 255  # of a thread
LINE_BYTES = 128  # of a line of L1 and of L2

# Bytes of shared memory that a block gets without asking, static and dynamic together, and the
# blocks of a cluster: every device of compute capability 9.0 and above can schedule 8, and those
# with full GPCs 16.
FREE_SHARED = 48 * 1024
PORTABLE_CLUSTER = 8

MOST_MULTIPROCESSORS = 1024  # far above any GPU; a larger number is a mistake


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
        registers_per_multiprocessor: 32-bit registers that its threads share.
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

    @property
    def label(self) -> str:
        """The name, with the SMs where they are not those of the known device of that name."""
        return f"{self.name} with {self.multiprocessors} SMs" if self._is_resized else self.name

    @property
    def command_options(self) -> str:
        """The options of the command line that choose it, for example --arch sm_90 --sms 78."""
        sms = f" --sms {self.multiprocessors}" if self._is_resized else ""
        return f"--arch {self.name}{sms}"

    @property
    def _is_resized(self) -> bool:
        known = KNOWN.get(self.name)
        return known is not None and known.multiprocessors != self.multiprocessors

    def with_multiprocessors(self, count: int) -> Arch:
        """Return this architecture with `count` SMs: another device of it, or a part of one.

        Raises InvalidValueError unless `count` is from 1 to 1024.
        """
        if not 1 <= count <= MOST_MULTIPROCESSORS:
            raise InvalidValueError(
                f"the number of SMs must be from 1 to {MOST_MULTIPROCESSORS}, got {count}"
            )
        if count == self.multiprocessors:
            return self
        device = f"{self.name} with {count} SMs"
        return dataclasses.replace(self, multiprocessors=count, device=device)


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
OLDEST = (7, 5)


# sm_90 as people write it: 90, 9.0, sm90, SM_90.
_SPELLINGS = r"(?ai:(?:sm_?)?(\d{1,2})\.?(\d))"


def arch_named(name: str, multiprocessors: int | None = None) -> Arch:
    """Return the known architecture called `name`, with its device's SMs or `multiprocessors`.

    90, 9.0 and sm90 are sm_90 too. Raises InvalidTypeError for what is no name, InvalidValueError
    for an unknown one, with the known ones, or a number that no GPU has.
    """
    if not isinstance(name, str):
        raise InvalidTypeError(
            f"an architecture is given by its name, for example 'sm_90', or as an Arch, not by "
            f"{name!r}"
        )
    match = re.fullmatch(_SPELLINGS, name)
    known = KNOWN.get(f"sm_{match[1]}{match[2]}" if match else name)
    if match and (int(match[1]), int(match[2])) < OLDEST:
        raise InvalidValueError(
            f"softgen needs {capability_name(OLDEST)} or later, and {name} is older; it knows: "
            f"{', '.join(KNOWN)}"
        )
    if known is None:
        raise InvalidValueError(unknown("architecture", name, KNOWN))
    return known if multiprocessors is None else known.with_multiprocessors(multiprocessors)
