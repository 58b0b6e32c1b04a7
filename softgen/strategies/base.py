"""The interface of a strategy: how a row is laid over threads, its knobs being its fields."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from softgen.arch import Arch, capability_name
from softgen.errors import IllegalVariantError, InvalidValueError
from softgen.problem import DType, Problem

WARP_SIZE = 32
MAX_GRID = 2**31 - 1
PACK_SIZES = (1, 2, 4, 8, 16)

MOST_REGISTERS = 255  # of a thread
LINE_BYTES = 128  # of a line of L1 and of L2

# Bytes of dynamic shared memory that a block gets without asking, and the blocks of a cluster:
# every device of compute capability 9.0 and above can schedule 8, and those with full GPCs 16.
FREE_SHARED = 48 * 1024
PORTABLE_CLUSTER = 8

# Registers of a thread beside the elements that it holds: addresses, packs in flight, the pair.
# float64's exp wants many for itself.
OTHER_REGISTERS = {DType.FLOAT32: 28, DType.FLOAT64: 64}


def most_blocks(registers: int, block_size: int, arch: Arch) -> int:
    """Return how many blocks of threads with `registers` registers an SM holds, at least 1."""
    blocks = arch.registers_per_multiprocessor // (block_size * ((registers + 7) // 8 * 8))
    # sm_75 and sm_86 hold 16 blocks an SM; ptxas warns of more, and no kernel here gains by it.
    return max(1, min(blocks, arch.threads_per_multiprocessor // block_size, 16))


def knob(
    short: str, meaning: str, *, constant: bool = True, default: Any = dataclasses.MISSING
) -> Any:
    """Declare a field of a Strategy: its letter in kernel names and its meaning in one line.

    It becomes a constant of the emitted file, unless it only decides which text there is. Where it
    has its default, neither names nor files say it: a knob may be added and older names stay.
    """
    metadata = {"short": short, "meaning": meaning, "constant": constant}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Launch:
    """How the host launches a kernel; every kernel takes (x, y, rows), and a workspace if any.

    Attributes:
        block_size: threads in a block.
        rows_per_block: rows that a block finishes in one step of its loop.
        static_shared_bytes: static shared memory of one block in bytes.
        dynamic_shared_bytes: dynamic shared memory of one block in bytes; above 48 KB the host has
            to opt in.
        cluster_size: blocks of a thread block cluster, which then share one row.
        blocks_per_row: blocks that each step takes, where that is more than one.
        most_blocks: where blocks stride over the rows, the largest grid.
        cooperative: whether all blocks of the grid have to be resident together.
        workspace_bytes_per_row: global memory that the kernel needs beside x and y, for each row.
            It is zero before the first launch, and every launch leaves it zero.
        strides: whether a smaller grid than grid(rows) computes all rows too.
        multiprocessors: the SMs that the largest grid is sized for; 0 where it is for any number.
            A cooperative kernel has to have them all.
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

    @property
    def asks_for_shared(self) -> bool:
        """Whether the host must allow the kernel that much dynamic shared memory."""
        return self.dynamic_shared_bytes > FREE_SHARED

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

    @property
    def arguments(self) -> tuple[str, ...]:
        """The kernel's parameters in C++."""
        three = ("const X* x", "Y* y", "long long rows")
        return (*three, "unsigned char* workspace") if self.workspace_bytes_per_row else three

    def reaches(self, rows: int) -> bool:
        """Whether a grid computes that many rows: not if blocks take one step and are too few."""
        if self.strides or self.most_blocks < MAX_GRID:
            return True
        steps = -(-rows // self.rows_per_block)
        return steps * self.cluster_size * self.blocks_per_row <= MAX_GRID

    def grid(self, rows: int) -> int:
        """Return the number of blocks for `rows` rows: one step each, within the grid's limit.

        Raises InvalidValueError where that is not enough, because blocks do not stride.
        """
        steps = -(-rows // self.rows_per_block)
        blocks = self.cluster_size * self.blocks_per_row
        if not self.reaches(rows):
            raise InvalidValueError(
                f"{rows} rows need {steps * blocks} blocks, and a grid has at most {MAX_GRID}; "
                "pass fewer rows at a time, or choose variant='online'"
            )
        return max(1, min(steps, self.most_blocks // blocks)) * blocks


@dataclass(frozen=True)
class Strategy(abc.ABC):
    """Base of the strategies. A subclass is a frozen dataclass whose fields are the knobs.

    A module in this package that defines one subclass, with `templates/strategies/<name>.cu.j2`
    beside it, is all that the generator, the tuner, the command line and the tests need to know it.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    tuned: ClassVar[bool] = True  # whether it is a candidate without being asked for by name

    @abc.abstractmethod
    def check(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError if these knobs cannot compute `problem` on `arch`."""

    @abc.abstractmethod
    def launch(self, problem: Problem) -> Launch:
        """Return the launch shape for `problem`."""

    @classmethod
    @abc.abstractmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield the legal settings worth timing, best guess first; nothing if none is legal."""

    @classmethod
    @abc.abstractmethod
    def estimate(cls, problem: Problem, rows: int, arch: Arch) -> float:
        """Return the expected time of the best guess over the time of a copy; orders strategies."""

    def realigns(self, problem: Problem) -> bool:
        """Return whether packs are put together from two accesses where rows start within one."""
        return False

    def fused(self, problem: Problem) -> bool:
        """Return whether one FMA, and not two instructions, makes the exponent of an element."""
        return False

    def part(self, problem: Problem) -> int:
        """Return the columns that a block reduces at once where several share a row, else 0."""
        return 0

    @property
    def needs(self) -> tuple[int, int]:
        """The first compute capability that has the instructions of this setting."""
        return (7, 5)

    @property
    def oldest_arch(self) -> str:
        """The compiler's name of what the setting needs, for example sm_90."""
        return capability_name(self.needs)

    @property
    def knobs(self) -> dict[str, int | bool]:
        """The parameters by name, in declaration order."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def legend(cls) -> str:
        """Return what the letters of a label mean, for example p pack_size, b block_size."""
        return ", ".join(
            f"{each.metadata['short']} {each.name}" for each in dataclasses.fields(cls)
        )

    @property
    def label(self) -> str:
        """The strategy's part of a kernel name, for example warp_p4_c32_g32_r1_pad_b128."""
        parts = [self.name]
        for field in dataclasses.fields(self):
            value, short = getattr(self, field.name), field.metadata["short"]
            if isinstance(value, bool):
                parts += [short] if value else []
            elif value != field.default:
                parts.append(f"{short}{value}")
        return "_".join(parts)

    def is_legal(self, problem: Problem, arch: Arch) -> bool:
        """Whether `check` accepts these knobs."""
        try:
            self.check(problem, arch)
        except IllegalVariantError:
            return False
        return True

    def require_block(self, block_size: int) -> None:
        """Raise IllegalVariantError unless `block_size` is whole warps within a block's limit."""
        self.require(
            block_size % WARP_SIZE == 0 and WARP_SIZE <= block_size <= 1024,
            "block_size must be a multiple of 32 from 32 to 1024",
        )

    def require_pack(self, pack_size: int, problem: Problem) -> None:
        """Raise IllegalVariantError unless one access can move `pack_size` elements of x."""
        dtype = problem.dtype
        self.require(pack_size in PACK_SIZES, f"pack_size must be one of {PACK_SIZES}")
        self.require(
            pack_size <= dtype.max_pack,
            f"a pack is at most 16 bytes: {dtype.max_pack} elements of {dtype.value}",
        )
        self.require(
            not problem.fixed_order or pack_size <= problem.alignment or self.realigns(problem),
            f"packs of {pack_size} where rows start on {problem.alignment} elements: the order of "
            "summation would depend on where a row lies",
        )

    def require_cols_per_thread(self, cols_per_thread: int, pack_size: int) -> None:
        """Raise IllegalVariantError unless a thread holds whole packs, and at least one."""
        self.require(
            cols_per_thread > 0 and cols_per_thread % pack_size == 0,
            "cols_per_thread must be a positive multiple of pack_size",
        )

    def require_registers(
        self, held: int, others: int, min_blocks: int, block_size: int, arch: Arch
    ) -> None:
        """Raise IllegalVariantError unless `min_blocks` blocks fit an SM without a spill.

        A thread needs `held` registers for elements, and `others`.
        """
        threads = min_blocks * block_size
        self.require(
            min_blocks >= 1 and threads <= arch.threads_per_multiprocessor,
            f"min_blocks must be at least 1, and {min_blocks} x {block_size} threads fit an SM of "
            f"{arch.name}, which holds {arch.threads_per_multiprocessor}",
        )
        registers = min(
            arch.registers_per_multiprocessor // max(1, threads) // 8 * 8, MOST_REGISTERS
        )
        limit = registers - others
        self.require(
            held <= limit,
            f"a thread would hold {held} registers of elements; min_blocks={min_blocks} leaves it "
            f"{limit}",
        )

    def require(self, rule: bool, message: str) -> None:
        """Raise IllegalVariantError with `message` unless `rule` holds."""
        if not rule:
            raise IllegalVariantError(f"{self.label}: {message}")


@dataclass(frozen=True)
class Lesson(Strategy):
    """Base of strategies for teaching and comparison: nothing times or chooses them unasked."""

    tuned = False

    @classmethod
    def estimate(cls, problem: Problem, rows: int, arch: Arch) -> float:
        """Never the first choice."""
        return math.inf
