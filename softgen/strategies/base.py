"""The interface of a strategy: how a row is laid over threads. Its fields are its knobs."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, NoReturn, TypeVar

from softgen.errors import IllegalVariantError
from softgen.problems.arch import MOST_REGISTERS, PORTABLE_CLUSTER, WARP_SIZE, Arch, capability_name
from softgen.problems.dtypes import Float8
from softgen.problems.hooks.base import Hook
from softgen.problems.layouts import Layout, Rows
from softgen.problems.problem import Problem
from softgen.strategies.launch import Launch

PACK_SIZES = (1, 2, 4, 8, 16)

MOST_UNROLL = 8  # packs that a thread loads at once: as far as FastSoftmax's search goes


def knob(
    short: str,
    meaning: str,
    *,
    constant: bool = True,
    unnamed: int | None = None,
    default: Any = dataclasses.MISSING,
) -> Any:
    """Declare a field of a Strategy: its letter in kernel names and its meaning in one line.

    It becomes a constant of the emitted file, unless it only decides which text there is, or has
    the value `unnamed`. Where it has its default, neither names nor files say it: a knob may be
    added and older names stay.
    """
    metadata = {"short": short, "meaning": meaning, "constant": constant, "unnamed": unnamed}
    return dataclasses.field(default=default, metadata=metadata)


# Values of the knob pdl: what a kernel does about the launches before and after it on its stream.
NO_PDL = 0  # nothing: it is launched when the one before has ended
WAITS = 1  # it may be launched before, and waits until the one before has ended
TRIGGERS = 2  # it also lets the next be launched, before its own stores
TRIGGERS_FIRST = 3  # it also lets the next be launched, as soon as it has waited

# The first compute capability with programmatic dependent launch.
PDL_NEEDS = (9, 0)

LEAST_TO_OVERRUN = 2**30  # columns: of fewer, no index runs past 2**31

S = TypeVar("S", bound="Strategy")


class Feature(Enum):
    """What a problem may ask of a strategy's template beyond the usual."""

    GIVEN_PAIRS = "the pair of a row is given, and not found"
    MORE_INPUTS = "several inputs have one element per column"
    SUMS = "parts are sums, without a maximum"
    PARTS = "parts have more than (max, sum)"
    FILTERS = "the choice is among the largest elements of a row, however many"
    SLOPES = "results are multiplied by the derivative of the hooks"
    HOOKS = "elements are modified on their way in or out"
    ENDS = "rows end where a number says, and the rest of them is not loaded"
    PLACES = "hooks ask for the row or the column of an element, along an axis that is not the last"
    FLOAT8 = "results have 8 bits"
    TOPS = "parts have the largest elements of a row, with their columns"
    RANKS = "for some columns of a row, the larger elements of the row are counted"
    PICKS = "an element is read by its column before any result is written"


@functools.lru_cache(maxsize=256)  # each setting of a strategy asks
def features_of(problem: Problem) -> frozenset[Feature]:
    """Return what `problem` asks for beyond the usual."""
    part = problem.function.part
    asked = (  # pairs, as a look-up in a dict takes longer than a question
        (Feature.GIVEN_PAIRS, not problem.function.reduces),
        (Feature.MORE_INPUTS, len(problem.element_inputs) > 1),
        (Feature.SUMS, not part.has_maximum),
        (Feature.PARTS, part.has_maximum and not part.is_pair and not part.chooses),
        (Feature.FILTERS, problem.function.filtered),
        (Feature.TOPS, part.chooses),
        (Feature.RANKS, problem.function.ranked > 0),
        (Feature.SLOPES, problem.slopes),
        (Feature.HOOKS, bool(problem.modifiers)),
        (Feature.ENDS, problem.shortens),
        (Feature.PLACES, problem.layout.step > 1 and any(map(asks_place, problem.hooks))),
        (Feature.FLOAT8, isinstance(problem.out_dtype, Float8)),
        # Strategies of columns have no text for what a function itself does to elements by its ids.
        (
            Feature.PICKS,
            any(hook.picks for hook in problem.modifiers)
            or (problem.layout.step > 1 and len(problem.modifiers) > len(problem.hooks)),
        ),
    )
    return frozenset(feature for feature, is_asked in asked if is_asked)


def asks_place(hook: Hook) -> bool:
    """Whether a hook asks for the row or the column of an element."""
    return hook.placed or hook.by_row or hook.leaves


@dataclass(frozen=True)
class Strategy(abc.ABC):
    """Base of the strategies. A subclass is a frozen dataclass whose fields are the knobs.

    A module in this package that defines one subclass, with `templates/strategies/<name>.cu.j2`
    beside it, is all that the generator, the tuner, the command line and the tests need to know it.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    tuned: ClassVar[bool] = True  # whether it is a candidate without being asked for by name
    takes: ClassVar[frozenset[Feature]] = frozenset()  # what its template has beyond the usual
    layouts: ClassVar[tuple[type[Layout], ...]] = (Rows,)  # that its template knows
    # Whether its template takes whole packs of rows that start anywhere from several inputs whose
    # parts are sums.
    cuts_sums: ClassVar[bool] = False
    loads_ignored: ClassVar[bool] = False  # whether it also loads rows that count for nothing
    loads_to_end: ClassVar[bool] = False  # whether its loads ask if a row counts for nothing
    patches: ClassVar[bool] = False  # whether the target's result is stored by itself, at last
    past_rows: ClassVar[bool] = False  # whether threads may have a row behind the last
    # Whether its blocks take rows that share lines of a bias or of a mask at the same time.
    turns: ClassVar[bool] = False
    sorts: ClassVar[bool] = False  # whether its threads sort the elements that they choose from
    triggers: ClassVar[bool] = False  # whether its template says from where pdl=2 lets the next go

    # The knob of all strategies: it is given by name, and comes last in the names of kernels.
    pdl: int = dataclasses.field(
        default=NO_PDL,
        kw_only=True,
        metadata={
            "short": "pdl",
            "meaning": (
                "dependent launch: 1 waits for the one before, 2 also lets the next start before "
                "its stores, 3 at once"
            ),
            "constant": False,
        },
    )

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

    def describe(self, problem: Problem) -> str:
        """Return what the file of `problem` does, for its header; by default the summary."""
        return self.summary

    def realigns(self, problem: Problem) -> bool:
        """Return whether packs are put together from two accesses where rows start within one."""
        return False

    def fused(self, problem: Problem) -> bool:
        """Return whether one FMA, and not two instructions, makes the exponent of an element."""
        return False

    def exponent_error(self, problem: Problem) -> float:
        """Return what |x - max| = 1 adds to the allowed relative error of a softmax result.

        It is 0 unless a float32 exponent is rounded, as other people's kernels may do
        (numerics.py).
        """
        return 0.0

    def part(self, problem: Problem) -> int:
        """Return the columns that a block reduces at once where several share a row, else 0."""
        return 0

    def ways(self, problem: Problem) -> tuple[bool, ...]:
        """Return which parts of its template a setting has: `softgen verify` takes all of them."""
        return ()

    @property
    def unnamed(self) -> tuple[str, ...]:
        """The knobs that no constant of the emitted file names: at their values it needs none."""
        found = ((field.name, field.metadata.get("unnamed")) for field in self.fields())
        return tuple(name for name, value in found if getattr(self, name) == value)

    @property
    def needs(self) -> tuple[int, int]:
        """The first compute capability that has the instructions of this setting."""
        return (7, 5)

    @property
    def oldest(self) -> tuple[int, int]:
        """The first compute capability that has them, and the launch that `pdl` asks for."""
        return max(self.needs, PDL_NEEDS) if self.pdl else self.needs

    @property
    def oldest_arch(self) -> str:
        """The compiler's name of what the setting needs, for example sm_90."""
        return capability_name(self.oldest)

    @classmethod
    @functools.cache
    def fields(cls) -> tuple[dataclasses.Field[Any], ...]:
        """The knobs in the order of names: those that all strategies have come last."""
        return tuple(sorted(dataclasses.fields(cls), key=lambda field: field.kw_only is True))

    @property
    def knobs(self) -> dict[str, int | bool]:
        """The parameters by name, in the order of names."""
        return {field.name: getattr(self, field.name) for field in self.fields()}

    @classmethod
    def legend(cls) -> str:
        """Return what the letters of a label mean, for example p pack_size, b block_size."""
        names = [(each.metadata["short"], each.name) for each in cls.fields()]
        return ", ".join(name if short == name else f"{short} {name}" for short, name in names)

    @property
    def label(self) -> str:
        """The strategy's part of a kernel name, for example warp_p4_c32_g32_r1_pad_b128."""
        parts = [self.name]
        for field in self.fields():
            value, short = getattr(self, field.name), field.metadata["short"]
            if isinstance(value, bool):
                parts += [short] if value else []
            elif value != field.default:
                parts.append(f"{short}{value}")
        return "_".join(parts)

    @classmethod
    def computes(cls, problem: Problem) -> bool:
        """Whether the template has what the problem asks for, whatever the knobs.

        The usual is one input with an element a column, of which (max, sum) pairs are found.
        """
        return features_of(problem) <= cls.takes and isinstance(problem.layout, cls.layouts)

    def with_knobs(self: S, **knobs: Any) -> S:
        """Return this setting with other values of some knobs.

        As dataclasses.replace(), in a third of its time, which was a fifth of that of `candidates`.
        """
        found = object.__new__(type(self))
        vars(found).update(vars(self), **knobs)
        assert len(vars(found)) == len(vars(self)), (self.name, knobs)
        return found

    def is_legal(self, problem: Problem, arch: Arch) -> bool:
        """Whether these knobs can compute `problem` on `arch`."""
        return self.computes(problem) and self.keeps_rules(problem, arch)

    def keeps_rules(self, problem: Problem, arch: Arch) -> bool:
        """Whether these knobs can compute `problem` on `arch`, where the strategy computes it."""
        try:
            self.require_launch(arch)
            self.require_types(problem, arch)
            self.check(problem, arch)
        except IllegalVariantError:
            return False
        return True

    def require_launch(self, arch: Arch) -> None:
        """Raise IllegalVariantError unless `arch` has the launch that `pdl` asks for."""
        known = (NO_PDL, WAITS, TRIGGERS, TRIGGERS_FIRST)
        self.require(self.pdl in known, "pdl must be 0, 1, 2 or 3")
        if self.pdl >= TRIGGERS and not self.triggers:
            self.refuse(
                f"{self.name} has no place from where the next launch may start; pdl must be 0 or 1"
            )
        if self.pdl and arch.compute_capability < PDL_NEEDS:
            self.refuse(f"pdl needs {capability_name(PDL_NEEDS)} or later, this is {arch.name}")

    def overrun(self, problem: Problem) -> int:
        """Return how many columns an index may run past the row, rounded up.

        By default as many as all threads that share a row load at once.
        """
        knobs = self.knobs
        blocks = knobs.get("cluster_size", 1) * knobs.get("group_size", 1)
        packs = knobs.get("pack_size", 1) * knobs.get("unroll", 1)
        return blocks * knobs.get("block_size", 1024) * max(packs, knobs.get("cols_per_thread", 1))

    def require_types(self, problem: Problem, arch: Arch) -> None:
        """Raise IllegalVariantError unless `arch` converts to the types of `problem`.

        And unless the type of column indices holds all that they may be.
        """
        if problem.cols >= LEAST_TO_OVERRUN and not problem.wide_index:
            most = 2**31 - self.overrun(problem)
            if problem.cols >= most:
                self.refuse(
                    f"a column index of 32 bits would run past 2**31 at {problem.cols} columns; "
                    f"these settings take fewer than {most}"
                )
        if arch.compute_capability < problem.needs:
            self.refuse(
                f"results of {problem.out_dtype.value} need {capability_name(problem.needs)} or "
                f"later, this is {arch.name}"
            )

    def require_cluster(self, blocks: int, arch: Arch) -> None:
        """Raise IllegalVariantError unless `arch` has clusters of so many blocks."""
        self.require(
            blocks == 1 or arch.compute_capability >= (9, 0),
            f"thread block clusters need sm_90, {arch.name} has none",
        )
        self.require(
            blocks <= PORTABLE_CLUSTER or arch.multiprocessors >= 100,
            f"a cluster of {blocks} does not fit a GPC of {arch.device}",
        )

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
        if pack_size > dtype.max_pack:
            self.refuse(f"a pack is at most 16 bytes: {dtype.max_pack} elements of {dtype.value}")
        if not self.realigns(problem):
            if problem.fixed_order and pack_size > problem.alignment:
                self.refuse(
                    f"packs of {pack_size} where rows start on {problem.alignment} elements: the "
                    "order of summation would depend on where a row lies"
                )
            return
        if problem.writes_elements and pack_size * problem.out_dtype.itemsize % 4:
            self.refuse(
                f"lanes exchange words, and packs of {pack_size} results of "
                f"{problem.out_dtype.value} are none"
            )
        if problem.placed:
            self.refuse(
                "where lanes exchange elements none knows its column, which "
                f"{', '.join(hook.name for hook in problem.modifiers if hook.placed)} asks for; "
                f"packs of {problem.alignment} need no exchange"
            )

    @classmethod
    def common_pack(cls, problem: Problem) -> int:
        """Return the elements of the widest access to all arrays: see `require_alike`."""
        widest = problem.dtype.max_pack
        return widest if cls._alike(problem) else min(problem.alignment, widest)

    def require_alike(self, pack_size: int, problem: Problem) -> None:
        """Raise IllegalVariantError if rows of several arrays may start differently in packs.

        They may where parts are sums and the template is ready for it. Those are gradients, whose
        arrays libraries allocate alike.
        """
        self.require(
            problem.alignment >= pack_size or self._alike(problem),
            "rows of two inputs, or of a view and its result, must start on packs here: they may "
            "lie differently",
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
        most = arch.threads_per_multiprocessor
        self.require(
            min_blocks >= 1 and threads <= most,
            f"min_blocks must be from 1 to {most // block_size}, got {min_blocks}: an SM of "
            f"{arch.name} holds {most} threads, and a block has {block_size}",
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

    @classmethod
    def _alike(cls, problem: Problem) -> bool:
        """Whether a row usually starts equally far behind a boundary of packs in all arrays.

        In an array where it does not a thread accesses single elements, a pack apart: bfloat16 rows
        of 1000 took 5.7 times as long with such a result.
        """
        if len(problem.element_inputs) > 1:
            sums = not problem.function.part.has_maximum
            cuts = cls.cuts_sums and sums and not problem.fixed_order
            return cuts and problem.layout.starts_alike
        return problem.layout.starts_alike or not problem.writes_elements

    def require(self, rule: bool, message: str) -> None:
        """Raise IllegalVariantError with `message` unless `rule` holds."""
        if not rule:
            self.refuse(message)

    def refuse(self, message: str) -> NoReturn:
        """Raise IllegalVariantError: for a message that `require` would make for nothing."""
        raise IllegalVariantError(f"{self.label}: {message}")


class Lesson(Strategy):
    """Base of strategies for teaching and comparison: nothing times or chooses them unasked."""

    tuned = False

    @classmethod
    def estimate(cls, problem: Problem, rows: int, arch: Arch) -> float:
        """Never the first choice."""
        return math.inf
