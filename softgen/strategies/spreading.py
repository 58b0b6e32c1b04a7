"""Groups of resident blocks that share rows of columns: what threads hold, and what is legal.

The blocks of a group have some adjacent rows together, and each has every so many of their columns.
Its threads hold theirs in registers and in shared memory as they were loaded, and load what does
not fit a second time, from the L2 cache where it can be. Pairs (max, sum) go through global memory.

Where no pack of 16 bytes divides inner, packs cross its end, as in `bands`: a group then has all
rows of an outer index, and what is a column to it is a band of columns. Either is a line: packs of
memory that lie side by side, one of each thread across.
"""

from __future__ import annotations

from dataclasses import dataclass

from softgen.problems.arch import WARP_SIZE, Arch
from softgen.problems.dtypes import MAX_PACK_BYTES, DType
from softgen.problems.problem import Problem
from softgen.strategies import registers
from softgen.strategies.bands import band_packs
from softgen.strategies.base import MOST_UNROLL, knob
from softgen.strategies.columnar import MOST_SHARED, Columnar, inputs_of
from softgen.strategies.launch import Launch, before_dynamic, resident_blocks

ELEMENTS_AT_ONCE, MOST_COLUMNS_AT_ONCE = 16, 4  # that a thread widens
WAITS = 4  # of a thread for what it has in shared memory
MOST_READ = 600  # parts of a group that each of its blocks reads
COUNTER_BYTES = 4  # of a row in the workspace: blocks that have read what it has in all
MOST_PLAIN_TERMS = 512  # of a thread: sums of more lose to rounding what counts
KEPT_BYTES = 24 * 1024 * 1024  # that stay in L2 while results pass through it

# Registers of addresses of tiles that begin within an outer index, and of packs that cross its end.
DIVIDED_REGISTERS = 8
MOST_OF_FLOAT64 = 40  # registers of elements
WALK_REGISTERS = 8


@dataclass(frozen=True)
class Spreading(Columnar):
    """Base of Spread: groups of `group_size` resident blocks that share adjacent rows."""

    alone = False

    cols_per_thread: int = knob("c", "elements of a row held by one thread", unnamed=0)
    group_size: int = knob("k", "blocks that share a row")
    groups: int = knob("n", "groups that work at once, at most", constant=False)
    min_blocks: int = knob("m", "blocks that an SM must hold; caps the registers")
    unroll: int = knob("u", "columns that a thread loads again before it uses the first", default=1)
    cols_shared: int = knob(
        "s", "elements of a row that a thread holds in shared memory", default=0
    )

    def flat(self, problem: Problem) -> bool:
        """Whether packs cross the end of inner."""
        return problem.layout.step % self.pack_size != 0

    def rows_shared(self, problem: Problem) -> int:
        """Return the rows that the blocks of a group share."""
        return problem.layout.step if self.flat(problem) else self.rows_of_a_block

    def lines(self, problem: Problem) -> int:
        """Return the columns of a row, or the bands of an outer index; the last may be cut."""
        if not self.flat(problem):
            return problem.cols
        return -(-problem.cols * problem.layout.step // self.rows_of_a_block)

    @property
    def folds(self) -> bool:
        """Whether lanes of a warp have the same rows, and combine what they found."""
        return self.threads_across < WARP_SIZE and WARP_SIZE % self.threads_across == 0

    def covers(self, problem: Problem) -> bool:
        """Whether all that a thread may hold is there."""
        whole = problem.cols
        if self.flat(problem):
            whole = problem.cols * problem.layout.step // self.rows_of_a_block
        return self.held_lines * self.stride <= whole

    @property
    def held_lines(self) -> int:
        """The columns, or bands, that a thread holds."""
        return self.cols_per_thread + self.cols_shared

    @property
    def at_once(self) -> int:
        """The columns that a thread widens at once."""
        return max(1, min(MOST_COLUMNS_AT_ONCE, ELEMENTS_AT_ONCE // self.pack_size))

    @property
    def group(self) -> int:
        """The columns in shared memory that a thread waits for at once: a quarter of them."""
        return -(-self.cols_shared // (WAITS * self.at_once)) * self.at_once

    def relays(self, problem: Problem) -> bool:
        """Whether one block combines the parts of a row for all: they are many to read for each."""
        return self.group_size * self.rows_shared(problem) > MOST_READ

    def sums_many(self, problem: Problem) -> bool:
        """Whether a thread adds up so many terms that it has to keep what rounding loses."""
        return self.lines(problem) > MOST_PLAIN_TERMS * self.stride

    def kept(self, problem: Problem) -> int:
        """Return the columns at the end of the axis that L2 is told to keep for the second pass."""
        line = self.rows_of_a_block * problem.dtype.itemsize * inputs_of(problem) * self.groups
        return max(1, KEPT_BYTES // line)

    @property
    def stride(self) -> int:
        """The threads of all blocks along the axis, and how far apart a thread's columns are."""
        return self.group_size * self.threads_along

    @property
    def warp_parts(self) -> int:
        """The parts of a row in a block, once lanes are combined."""
        return self.block_size // WARP_SIZE if self.folds else self.threads_along

    @property
    def needs(self) -> tuple[int, int]:
        """The first compute capability that has the instructions of this setting."""
        return (8, 0) if self.cols_shared else (7, 5)

    def walks(self, problem: Problem) -> bool:
        """Whether threads do not hold all columns, so that some are loaded again."""
        return self.lines(problem) > self.held_lines * self.stride

    def ways(self, problem: Problem) -> tuple[bool, ...]:
        """Return who combines parts, where columns are held, and whether packs cross inner."""
        held = (self.walks(problem), self.cols_shared > 0)
        return (self.relays(problem), *held, self.flat(problem))

    def describe(self, problem: Problem) -> str:
        """Return what the file of `problem` does, for its header."""
        places = {"registers": self.cols_per_thread, "shared memory": self.cols_shared}
        where = " and ".join(place for place, held in places.items() if held)
        held = f"held in {where}" if where else "read twice"
        part = "partly " if where and self.walks(problem) else ""
        return f"{self.group_size} blocks share {self.rows_shared(problem)} rows, {part}{held}"

    def slot_bytes(self, problem: Problem) -> int:
        """Return the static shared memory of a block: parts of its threads, and of whole rows."""
        rows = self.rows_shared(problem)
        parts = self.warp_parts * (self.rows_of_a_block // rows)
        return ((parts | 1) + 1) * rows * problem.part_bytes

    def staged_bytes(self, problem: Problem) -> int:
        """Return the dynamic shared memory of a block: the packs that its threads hold there."""
        packs = inputs_of(problem) * self.cols_shared * self.block_size
        return packs * self.pack_size * problem.dtype.itemsize

    def check(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless the blocks are resident and hold what they should."""
        require = self.require
        self.require_block(self.block_size)
        inner, across = problem.layout.step, self.threads_across
        if self.flat(problem):
            self._require_bands(problem)
        else:
            self.require_pack_of_rows(problem)
            require(
                across >= 1
                and (across & (across - 1) == 0 or self.rows_of_a_block == inner)
                and self.rows_of_a_block <= self.block_size,
                "threads_across must be a power of two, or have all rows of an outer index, and "
                f"there must be a thread a row: {across} have {self.rows_of_a_block} of {inner} "
                "rows",
            )
        most = arch.multiprocessors * self.min_blocks
        require(self.group_size > 0 and self.groups > 0, "group_size and groups must be positive")
        require(
            self.group_size * self.groups <= most, f"{arch.device} holds {most} such blocks at once"
        )
        lines = self.lines(problem)
        require(
            self.stride <= lines,
            f"{self.stride} threads along an axis of {lines}, where each must have a column",
        )
        wanted = -(-lines // self.stride)
        least, spare = (0, self.at_once - 1) if self.cols_shared else (1, 0)
        most = wanted - self.cols_shared
        require(
            self.cols_shared >= 0 and least <= self.cols_per_thread <= most + spare,
            f"cols_per_thread must be from {least} to {most}, what {self.stride} threads have of "
            f"{lines} columns",
        )
        require(
            self.cols_shared % self.at_once == 0,
            f"cols_shared must be a multiple of {self.at_once}, what a thread widens at once",
        )
        require(1 <= self.unroll <= MOST_UNROLL, f"unroll must be from 1 to {MOST_UNROLL}")
        require(
            self.unroll <= self.at_once or self.unroll % (2 * self.at_once) == 0,
            f"unroll must be a multiple of {2 * self.at_once}, or at most {self.at_once}, what a "
            "thread widens at once",
        )
        require(
            self.unroll == 1 or self.walks(problem), "unroll must be 1, as nothing is loaded again"
        )
        shared = self.slot_bytes(problem)
        require(
            shared <= MOST_SHARED,
            f"the parts of a block take {shared} bytes of shared memory, of {MOST_SHARED}",
        )
        if self.cols_shared:
            self._require_staged(problem, arch)
        held = self.held(problem)
        require(
            problem.compute_dtype is DType.FLOAT32 or held <= MOST_OF_FLOAT64,
            f"a thread would hold {held} registers; at most {MOST_OF_FLOAT64} do not spill where "
            "arithmetic is in float64",
        )
        self.require_registers(held, self.others(problem), self.min_blocks, self.block_size, arch)

    def _require_bands(self, problem: Problem) -> None:
        """Raise IllegalVariantError unless an outer index is whole packs, and threads a band."""
        inner = problem.layout.step
        self.require_pack(self.pack_size, problem)
        band = band_packs(problem, self.pack_size)
        self.require(
            problem.cols * inner % self.pack_size == 0,
            f"{problem.cols * inner} elements of an outer index are no whole packs of "
            f"{self.pack_size}",
        )
        # Lanes of a warp would combine theirs, and not what a pack has of a row.
        self.require(
            self.pack_size % inner != 0,
            f"a pack of {self.pack_size} would have several columns of each of {inner} rows",
        )
        self.require(
            self.threads_across == band <= self.block_size and inner <= self.block_size,
            f"threads_across must be {band}, the packs of a band, where packs cross the end of "
            f"inner, and there must be a thread a row of {inner}",
        )

    def _require_staged(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless packs can go to shared memory and fit there."""
        self.require(
            self.pack_size * problem.dtype.itemsize == MAX_PACK_BYTES
            and arch.compute_capability >= self.needs,
            f"packs of {MAX_PACK_BYTES} bytes alone go to shared memory, from sm_80 on",
        )
        need = self.launch(problem).shared_bytes
        self.require(
            need <= arch.shared_per_block
            and self.min_blocks <= resident_blocks(need, self.block_size, arch),
            f"{self.min_blocks} blocks with {need} bytes of shared memory each do not fit an SM of "
            f"{arch.name}",
        )

    def held(self, problem: Problem) -> int:
        """Return the 32-bit registers of a thread that hold elements, as they were loaded."""
        words = max(1, self.pack_size * problem.dtype.itemsize // 4)
        return inputs_of(problem) * self.cols_per_thread * words

    def others(self, problem: Problem) -> int:
        """Return the registers of a thread beside them, with which ptxas does not spill."""
        compute = problem.compute_dtype
        word = inputs_of(problem) * self.pack_size * problem.dtype.itemsize // 4
        loading = self.unroll * word + WALK_REGISTERS if self.walks(problem) else 0
        if problem.dtype is not compute:
            widened = inputs_of(problem) * self.at_once * self.pack_size * compute.itemsize // 4
            loading = max(loading, widened)
        parts = -(-self.group_size // WARP_SIZE) * problem.part_bytes // 2  # on their way
        divided = DIVIDED_REGISTERS * (self.rows_of_a_block != problem.layout.step)
        rows = registers.SPREAD.of(problem, self.pack_size)
        return rows + divided + max(loading, parts)

    def part(self, problem: Problem) -> int:
        """Return the columns that all blocks of a group have in one round."""
        return self.stride * (self.rows_of_a_block // self.rows_shared(problem))

    def launch(self, problem: Problem) -> Launch:
        """Return the launch shape: groups of resident blocks, and a workspace for their parts."""
        blocks = self.group_size * self.groups
        slots = self.group_size + self.relays(problem)
        static, dynamic = self.slot_bytes(problem), self.staged_bytes(problem)
        return Launch(
            self.block_size,
            rows_per_block=self.rows_shared(problem),
            static_shared_bytes=before_dynamic(static) if dynamic else static,
            dynamic_shared_bytes=dynamic,
            blocks_per_row=self.group_size,
            most_blocks=blocks,
            cooperative=True,
            workspace_bytes_per_row=slots * problem.part_bytes + COUNTER_BYTES,
            strides=False,
            multiprocessors=-(-blocks // self.min_blocks),
        )
