"""What strategies share that hold slices of a row in registers (lib/row/slice.cuh.j2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from softgen.problems.arch import KIB, LINE_BYTES, WARP_SIZE, Arch
from softgen.problems.dtypes import DType
from softgen.problems.problem import Problem
from softgen.problems.shards import MOST_SHARDS
from softgen.strategies import registers
from softgen.strategies.base import Feature, Strategy, features_of, knob

# Where rows start anywhere, the packs of a row of this size or more are counted from the cache line
# in which it starts, so that a warp's accesses are whole lines: float32 4096 x 4099 took 1% less on
# an H200. In shorter rows the lanes before the row cost as much.
LONG_ROW = 8 * KIB

PACKED_NEEDS = (8, 0)  # the maximum of two packed elements at once is an instruction of sm_80

# Threads that hold fewer elements have registers enough without packing them, and in larger blocks
# it gained nothing: what won on an H200 was 32 or 64 elements in blocks of 128 or 256 threads.
LEAST_PACKED = 32
LARGEST_PACKED_BLOCK = 256

# Elements that a thread sorts in registers where the largest of a row are chosen.
MOST_SORTED = {DType.FLOAT32: 32, DType.FLOAT64: 8}

# The same where many are chosen, by keys of 64 bits: with 16, float32 1000 spilled 128 bytes.
MOST_SORTED_OF_MANY = 8

# Elements of a thread whose block chooses. 64 in blocks of 512 threads spilled 1160 bytes, as the
# places of all are known at once, and 80 of float32 1372.
MOST_CHOSEN_OF = 40


def halves_in_float32(problem: Problem) -> bool:
    """Return whether elements have 16 bits where they are loaded, and 32 where they are used."""
    return problem.dtype.itemsize == 2 and problem.compute_dtype is DType.FLOAT32


def require_packable(
    strategy: Strategy, pack_size: int, problem: Problem, arch: Arch, *, sums: bool = False
) -> None:
    """Raise IllegalVariantError unless elements of `problem` can stay packed.

    With `sums` the template has sums of packed elements too, of any number of inputs, and, without
    hooks, parts with a sum of logarithms.
    """
    strategy.require(
        halves_in_float32(problem) and pack_size >= 2,
        "only 16-bit elements in packs of two or more, computed in float32, can stay packed, "
        f"not packs of {pack_size} {problem.dtype.value} in {problem.compute_dtype.value}",
    )
    # Hooks on the way out get widened elements. A hook on the way in has to keep the larger of two
    # elements the larger, and -inf where there is no column.
    own = set() if problem.enters and problem.placed else {Feature.HOOKS}
    function = problem.function
    if function.part.chooses and function.sums and not function.chooses_scores:
        own |= {Feature.TOPS} if problem.enters else {Feature.TOPS, Feature.RANKS}
    if not problem.hooks and not problem.enters:
        own.add(Feature.PICKS)
        if sums and not problem.fixed_order and function.part.packs:
            own.add(Feature.PARTS)
    if sums and not function.part.has_maximum:
        own = {Feature.SUMS, Feature.MORE_INPUTS}
    strategy.require(
        features_of(problem) <= own,
        "elements of two inputs whose parts are no sums, or with a hook on their way in that is no "
        "scale above 0, cannot stay packed",
    )
    strategy.require(
        arch.compute_capability >= PACKED_NEEDS,
        f"the maximum of two 16-bit elements at once needs sm_80, {arch.name} has none",
    )


def packed_knob() -> Any:
    """Declare the knob of strategies that can keep elements packed (see `Sliced.packed`)."""
    meaning = "whether 16-bit elements stay packed until they are stored"
    return knob("pk", meaning, constant=False, default=False)


@dataclass(frozen=True)
class Sliced(Strategy):
    """Base of strategies whose threads hold packs of one slice of a row each."""

    takes = frozenset(Feature) - {
        *(Feature.GIVEN_PAIRS, Feature.FILTERS, Feature.SLOPES, Feature.PLACES)
    }
    # Whether the compiler can tell that all threads of a block have the same row.
    one_row_a_block: ClassVar[bool] = False
    # Whether blocks may write a slice in place while others still read the one beside it.
    writes_early: ClassVar[bool] = False

    pack_size: int = knob("p", "elements moved by one load or store")
    cols_per_thread: int = knob("c", "elements of a row held by one thread")

    @classmethod
    def widest_pack(cls, problem: Problem) -> int:
        """Return the elements of the widest access that is worth its while.

        Two float64 are not worth an exchange between lanes: 4096 x 4097 took 79 us without, and 87.
        """
        if problem.fixed_order and problem.dtype is DType.FLOAT64:
            return problem.alignment
        if problem.function.part.chooses:
            return min(problem.alignment, problem.dtype.max_pack)
        return cls.common_pack(problem)

    def aligned(self, problem: Problem) -> bool:
        """Return whether every row starts on a pack."""
        return problem.alignment >= self.pack_size

    def realigns(self, problem: Problem) -> bool:
        """Return whether lanes exchange elements so that threads hold the same columns of all rows.

        Packs are then counted from a row's first column, wherever it lies, and accesses are aligned
        all the same (lib/row/realigned_slice.cuh.j2).
        """
        return problem.fixed_order and not self.aligned(problem)

    def cuts(self, problem: Problem) -> bool:
        """Return whether packs are counted from a boundary before the row, and cut at its ends."""
        return not problem.fixed_order and not self.aligned(problem)

    def line_packs(self, problem: Problem) -> int:
        """Return the packs of a cache line, in whose multiples long rows are cut; 1 for others.

        Rows that start on packs are counted from their first column, so for them it helps only
        where they start on cache lines too.
        """
        row = problem.cols * problem.dtype.itemsize
        in_lines = row >= LONG_ROW and (self.cuts(problem) or row % LINE_BYTES == 0)
        return LINE_BYTES // (self.pack_size * problem.dtype.itemsize) if in_lines else 1

    def overhang(self, problem: Problem) -> int:
        """Return by how many elements a row may start behind its first pack."""
        if not self.cuts(problem):
            return 0
        return self.line_packs(problem) * self.pack_size - problem.alignment

    def row_packs(self, problem: Problem) -> int:
        """Return the packs that cover a row wherever it starts."""
        return -(-(problem.cols + self.overhang(problem)) // self.pack_size)

    def slices(self, problem: Problem) -> int:
        """Return into how many slices a row is cut."""
        return 1

    def slice_packs(self, problem: Problem) -> int:
        """Return the packs of a slice."""
        return self.packs * self.slice_threads

    @property
    def slice_threads(self) -> int:
        """The threads to which the packs of a slice are dealt in turn."""
        raise NotImplementedError

    @property
    def packs(self) -> int:
        """The packs of a thread."""
        return self.cols_per_thread // self.pack_size

    def whole_packs(self, problem: Problem) -> list[int]:
        """Return which packs are inside of the row for every thread, slice and row."""
        threads, size = self.slice_threads, self.slice_packs(problem)
        last = (self.slices(problem) - 1) * size  # where the last slice starts
        return [
            p
            for p in range(self.packs)
            if p * threads * self.pack_size >= self.overhang(problem)
            and (p + 1) * threads <= size
            and (last + (p + 1) * threads) * self.pack_size <= problem.cols
        ]

    def cut_packs(self, problem: Problem) -> list[int]:
        """Return which packs may hold an end of the row, in some thread, slice and row.

        The compiler drops the checks of the others: they were a quarter of the instructions at
        bfloat16 50257 columns.
        """
        threads, size, overhang = (
            self.slice_threads,
            self.slice_packs(problem),
            self.overhang(problem),
        )
        first = problem.cols // self.pack_size % size // threads
        last = (problem.cols + overhang - 1) // self.pack_size % size // threads
        return [
            p
            for p in range(self.packs)
            if (first <= p <= last if first <= last else p >= first or p <= last)
            or p * threads * self.pack_size < overhang
        ]

    def end_packs(self, problem: Problem) -> list[int]:
        """Return which packs may hold the end of the row or of a slice, where lanes exchange.

        The row's last pack of memory is its last pack of columns or the next, by where it starts.
        """
        lanes = min(self.slice_threads, WARP_SIZE)
        size = self.slice_packs(problem)
        last = (problem.cols - 1) // self.pack_size % size
        ends = (last, last + 1, size) if self.slices(problem) > 1 else (last, last + 1)
        return sorted({end // lanes % self.packs for end in ends})

    @property
    def skipping(self) -> bool:
        """Whether the template can leave out packs that are hidden."""
        return False

    @property
    def packed(self) -> bool:
        """Whether 16-bit elements stay as they were loaded, two to a register.

        They are then widened and exponentiated twice, for the sum and for the results, and leave
        room for more blocks on an SM: bfloat16 256 x 128256 takes 33.5 us on an H200, not 34.5.
        """
        return False

    def sums_packed(self, problem: Problem) -> bool:
        """Return whether terms are summed from packed elements, two to a register.

        That takes 4 instructions an element, and 6 if elements are widened first. bfloat16 2048 x
        32000, where the target is waited for before the row, took 31.6 us on an H200, not 36.0.
        """
        reads = self.packed and not problem.writes_elements
        return reads and not problem.enters and not self.realigns(problem)

    def fused(self, problem: Problem) -> bool:
        """Return whether one FMA, and not two instructions, makes the exponent of an element."""
        halves = problem.out_dtype.itemsize <= 2
        pays = problem.logs_sum or (self.realigns(problem) and not problem.modifiers)
        return self.packed and halves and pays

    @property
    def needs(self) -> tuple[int, int]:
        """The first compute capability that has the instructions of this setting."""
        return PACKED_NEEDS if self.packed else super().needs

    def skips(self, problem: Problem) -> bool:
        """Return whether packs behind the run-time end of a row take no arithmetic."""
        mine = self.skipping and self.aligned(problem) and not self.packed
        return mine and problem.shortens and problem.function.part.is_pair

    def require_choice(self, problem: Problem) -> None:
        """Raise IllegalVariantError if elements are chosen, and the template cannot."""
        if not problem.function.part.chooses:
            return
        self.require(
            self.aligned(problem),
            "which column an element has is known of rows that start on packs: packs of "
            f"{problem.alignment} are such",
        )
        if not self.sorts:
            function = problem.function
            of_sum = function.chooses_scores and function.sums
            one_exchange = not of_sum and not function.groups
            self.require(
                one_exchange, "groups, and scores that need a row's sum, take one exchange more"
            )
            self.require(
                self.packed or self.cols_per_thread <= MOST_CHOSEN_OF,
                f"a thread holds at most {MOST_CHOSEN_OF} elements that a block chooses from, not "
                f"{self.cols_per_thread}",
            )
            return
        most, keys = MOST_SORTED[problem.compute_dtype], self.sorted_keys(problem)
        if problem.function.chosen > WARP_SIZE and not problem.column_bits:
            most = min(most, MOST_SORTED_OF_MANY)
        if keys > most:
            self.refuse(f"a thread sorts at most {most} elements, not {keys}")
        if problem.function.groups > self.slice_threads:
            self.refuse("a lane ranks one group each")
        covered = self.cols_per_thread * self.slice_threads
        if problem.column_bits and covered > 2**problem.column_bits:
            self.refuse(f"{problem.column_bits} bits of a key count no {covered} columns")

    def sorted_keys(self, problem: Problem) -> int:
        """Return the most keys that a thread sorts at once where the largest are chosen."""
        return self.cols_per_thread

    def require_packable(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError if elements are to stay packed and cannot."""
        if self.packed:
            require_packable(self, self.pack_size, problem, arch, sums=True)

    def may_pack(self, problem: Problem) -> tuple[bool, ...]:
        """Return the values of `packed` worth timing: elements that are written have 16 bits."""
        of_block = problem.function.part.chooses and not self.sorts
        if of_block and problem.dtype is DType.FLOAT16:
            return (False,)  # it is widened early: 300 to 400 bytes spilled in threads of 64
        worth = (
            problem.dtype.itemsize == 2
            and (problem.out_dtype.itemsize <= 2 or not problem.writes_elements)
            and self.cols_per_thread >= LEAST_PACKED
            and self.launch(problem).block_size <= LARGEST_PACKED_BLOCK
        )
        return (False, True) if worth else (False,)

    def element_registers(self, problem: Problem) -> int:
        """Return the 32-bit registers of a thread that hold elements."""
        if problem.function.part.chooses and self.sorts:  # keys, and elements until they are summed
            keys = self.sorted_keys(problem) * problem.key_bytes // 4
            kept = problem.dtype if self.packed else problem.compute_dtype
            return keys + self.cols_per_thread * kept.itemsize * problem.function.sums // 4
        held = problem.dtype if self.packed else problem.compute_dtype
        return len(problem.element_inputs) * self.cols_per_thread * held.itemsize // 4

    def input_registers(self, problem: Problem) -> int:
        """Return what a thread needs for inputs beside the first, without their elements.

        0 where elements stay packed: the terms of a sum take fewer registers than pairs.
        """
        if self.packed:
            return 0
        each = registers.SINGLE_INPUT if self.pack_size == 1 else registers.INPUT
        return each * (len(problem.element_inputs) - 1)

    def exchange_bytes(self, problem: Problem) -> int:
        """Return the shared memory of a row's parts from all shards."""
        return MOST_SHARDS * problem.mail_bytes if problem.sharded else 0

    def hook_registers(self, problem: Problem) -> int:
        """Return what a thread needs for hooks."""
        hooks = sum(hook.registers(problem.compute_dtype) for hook in problem.modifiers)
        return hooks + registers.SKIPPING * self.skips(problem)

    def other_registers(self, problem: Problem) -> int:
        """Return the registers of a thread beside those, with which ptxas does not spill."""
        if problem.function.part.chooses and not self.sorts:
            choice = registers.CHOICE * problem.compute_dtype.itemsize // 4
            return choice + self.hook_registers(problem)
        compute = problem.compute_dtype
        other = registers.PACKED if self.packed else registers.OTHER[compute]
        other += self.input_registers(problem) + self.hook_registers(problem)
        other += problem.function.part.slice_registers
        if problem.function.chosen > WARP_SIZE:
            other += registers.PLACES
        if self.realigns(problem):
            return other + registers.REALIGNED[compute]
        return other + registers.CUT[compute] * self.cuts(problem)
