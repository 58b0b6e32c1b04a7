"""What a project holds: problems, their kernels for architectures and rows, and groups of them.

A project is a folder that builds: the texts that `softgen emit` writes, and what launches them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from softgen.errors import IllegalVariantError, InvalidValueError
from softgen.problems.arch import Arch, arch_named
from softgen.problems.dtypes import compute_type
from softgen.problems.layouts import ROWS, AnyWidth
from softgen.problems.operands import Extent, Operand
from softgen.problems.problem import MAX_INT32_COLS, Problem
from softgen.source.render import Source, render
from softgen.strategies.select import untimed
from softgen.strategies.variants import Variant, candidates

ARCHS = ("sm_80", "sm_90")
BINDINGS = ("tvm-ffi", "torch")
NAME = "softgen_kernels"

# Up to how many rows a class of them goes, and for how many its kernel is chosen.
CLASSES = ((128, 32), (2048, 512), (2**63 - 1, 8192))

# Targets that CMake has itself, and headers and libraries that a program means by these names.
_TAKEN = re.compile(
    r"all|clean|edit_cache|help|install|list_install_components|package|package_source|"
    r"rebuild_cache|test|assert|complex|ctype|errno|fenv|float|inttypes|iso646|limits|"
    r"locale|math|setjmp|signal|stdalign|stdarg|stdatomic|stdbool|stddef|stdint|stdio|"
    r"stdlib|stdnoreturn|string|tgmath|threads|time|uchar|wchar|wctype|aio|dirent|dlfcn|"
    r"endian|fcntl|features|glob|grp|iconv|libgen|malloc|memory|net|netdb|poll|pthread|"
    r"pwd|regex|sched|search|semaphore|spawn|strings|syscall|sys|syslog|termios|ucontext|"
    r"unistd|values|wait|c|dl|m|rt|cuda|cudart|cudnn|cublas|cufft|curand|cusolver|"
    r"cusparse|nccl|nvrtc|python|torch|numpy|cuda_.*"
)
_IDENTIFIER = 63  # characters that every compiler keeps of a name
_BLOCK = 256  # threads of a kernel of any width: rows are as often short as long


@dataclass(frozen=True)
class Kernel:
    """A kernel of the project, and the architectures that it is compiled for."""

    source: Source
    archs: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """A problem of the project, and its kernels.

    Attributes:
        problem: what is computed.
        name: of the C++ function; empty for one of any width, which only a dispatcher calls.
        kernels: the variant for each architecture and class of rows; none for an architecture that
            lacks the instructions of the types.
        origins: where each is from, in words.
    """

    problem: Problem
    name: str
    kernels: tuple[tuple[Variant, ...], ...]
    origins: tuple[tuple[str, ...], ...]

    @property
    def any_width(self) -> bool:
        """Whether it takes any width."""
        return isinstance(self.problem.layout, AnyWidth)


@dataclass(frozen=True)
class Group:
    """What one dispatcher serves: a function with its hooks and a layout, of all types and widths.

    Attributes:
        name: of the C++ function.
        entries: those of a known width first.
    """

    name: str
    entries: tuple[Entry, ...]

    @property
    def problem(self) -> Problem:
        """One of its problems: they have the same operands, of other types."""
        return self.entries[0].problem

    @property
    def operands(self) -> tuple[Operand, ...]:
        """What a function takes before the rows; a width of any is no operand."""
        return self.problem.operands

    @property
    def arrays(self) -> tuple[Operand, ...]:
        """The operands that are arrays."""
        return tuple(o for o in self.operands if o.extent is not Extent.NUMBER)


@dataclass(frozen=True)
class Project:
    """What a folder is to hold: a name, the kernels, and what calls them."""

    name: str
    archs: tuple[Arch, ...]
    groups: tuple[Group, ...]
    kernels: dict[Variant, Kernel]
    bindings: tuple[str, ...]

    @property
    def entries(self) -> list[Entry]:
        """The problems of all groups."""
        return [entry for group in self.groups for entry in group.entries]


def plan(
    problems: Sequence[Problem | Variant],
    name: str = NAME,
    archs: Sequence[Arch | str] = ARCHS,
    bindings: Sequence[str] = (),
) -> Project:
    """Return the project of these arguments, which are `project`'s."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,23}", name):
        raise InvalidValueError(
            f"name must be lower-case letters, digits and _, at most 24, got {name!r}"
        )
    if _TAKEN.fullmatch(name):
        raise InvalidValueError(
            f"name {name!r} is that of a target of CMake, of a header or of a library already; "
            f"give another, as my_{name}"
        )
    for binding in bindings:
        if binding not in BINDINGS:
            raise InvalidValueError(f"bindings are {' and '.join(BINDINGS)}, got {binding!r}")
    if not problems or not archs:
        raise InvalidValueError("a project has at least one problem and one architecture")
    known = {arch if isinstance(arch, Arch) else arch_named(arch) for arch in archs}
    ordered = tuple(sorted(known, key=lambda arch: arch.compute_capability))
    chosen: dict[Problem, Variant] = {}
    wanted: list[Problem] = []
    for each in problems:
        problem = _of_its_types(each.problem if isinstance(each, Variant) else each)
        wanted.append(problem)
        if isinstance(each, Variant):
            chosen[problem] = dataclasses.replace(each, problem=problem)
    groups: dict[str, list[Entry]] = {}
    for problem in dict.fromkeys(wanted):
        _require_alone(problem)
        entry = _entry(problem, chosen.get(problem), name, ordered)
        groups.setdefault(_group_name(problem, name), []).append(entry)
    for entries in groups.values():
        types = {(entry.problem.dtype, entry.problem.out_dtype): entry for entry in entries}
        entries += filter(None, (_of_any_width(each.problem, ordered) for each in types.values()))
    kernels: dict[Variant, list[str]] = {}
    for entry in (each for some in groups.values() for each in some):
        for arch, row in zip(ordered, entry.kernels, strict=True):
            for variant in row:
                kernels.setdefault(variant, []).append(arch.name)
    return Project(
        name,
        ordered,
        tuple(Group(each, tuple(entries)) for each, entries in groups.items()),
        {
            v: Kernel(render(v), tuple(dict.fromkeys(of)))
            for v, of in sorted(kernels.items(), key=_by_name)
        },
        tuple(dict.fromkeys(bindings)),
    )


def _of_its_types(problem: Problem) -> Problem:
    """Return a problem whose type of results is x's where no result has it, nor the arithmetic.

    A dispatcher is then called with one type, and a width of another problem has one kernel.
    """
    of_results = any(operand.cuda == "Y" for operand in problem.operands)
    if of_results or problem.compute_dtype is not compute_type(problem.dtype):
        return problem
    return dataclasses.replace(problem, out_dtype=problem.dtype)


def _by_name(item: tuple[Variant, list[str]]) -> str:
    return item[0].name


def arch_number(arch: str) -> int:
    """Return 90 for sm_90."""
    return int(arch.removeprefix("sm_"))


def _require_alone(problem: Problem) -> None:
    """Raise InvalidValueError for a problem whose launch is not one device's own."""
    if problem.sharded:
        raise InvalidValueError(
            f"{problem.label}: several devices hold its rows, and a project launches on one; "
            "`softgen emit --sharded` writes the kernel"
        )
    if isinstance(problem.layout, AnyWidth):
        raise InvalidValueError(f"{problem.label}: a project has the kernels of any width anyway")


def _shortened(name: str) -> str:
    """Return a name that fits a C identifier, the same in every release."""
    if len(name) <= _IDENTIFIER:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _IDENTIFIER - 9]}_{digest}"


def _group_name(problem: Problem, name: str) -> str:
    parts = (name, problem.function.name, problem.layout.label, *map(str, problem.hooks))
    return _shortened("_".join(filter(None, parts)))


def _entry(problem: Problem, chosen: Variant | None, name: str, archs: tuple[Arch, ...]) -> Entry:
    """Return a problem with a kernel for each architecture and class of rows."""
    kernels, origins = [], []
    able = [arch for arch in archs if arch.compute_capability >= problem.needs]
    for arch in archs:
        if able and arch not in able:
            found = []
        elif chosen is not None and chosen.strategy.is_legal(problem, arch):
            found = [(chosen, "given")] * len(CLASSES)
        else:
            picked = [untimed(problem, rows, arch, problem.fixed_order) for _, rows in CLASSES]
            found = [(each.variant, each.origin) for each in picked]
        kernels.append(tuple(variant for variant, _ in found))
        origins.append(tuple(origin for _, origin in found))
    if chosen is not None and not any(chosen in row for row in kernels):
        raise IllegalVariantError(
            f"{chosen.name} is legal on none of {', '.join(arch.name for arch in archs)}; give "
            f"{chosen.oldest_arch}"
        )
    return Entry(problem, _shortened(f"{name}_{problem.label}"), tuple(kernels), tuple(origins))


def _of_any_width(problem: Problem, archs: tuple[Arch, ...]) -> Entry | None:
    """Return the kernel of the same with the width at run time; None where there is none.

    That is for other layouts, and for functions that cut a row into groups of columns.
    """
    if problem.layout is not ROWS or problem.function.groups:
        return None
    cols = MAX_INT32_COLS
    able = [arch for arch in archs if arch.compute_capability >= problem.needs]
    wide = dataclasses.replace(problem, cols=cols, alignment=1, layout=AnyWidth())
    found = [
        variant
        for variant in candidates(wide, CLASSES[1][1], able[0])
        if all(variant.strategy.is_legal(wide, arch) for arch in able)
    ]
    if not found:
        return None
    variant = min(found, key=lambda each: abs(each.launch.block_size - _BLOCK))
    classes = [len(CLASSES) * (arch in able) for arch in archs]
    kernels = tuple((variant,) * each for each in classes)
    return Entry(wide, "", kernels, tuple(("any width",) * each for each in classes))
