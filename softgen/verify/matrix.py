"""Which variants `softgen verify` runs of its problems: a spread over strategies and knobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from softgen.errors import IllegalVariantError, InvalidValueError
from softgen.problems.arch import DEFAULT_ARCH, Arch, arch_named
from softgen.problems.dtypes import DType
from softgen.problems.functions.base import Function
from softgen.problems.layouts import Columns
from softgen.problems.problem import Problem
from softgen.strategies.base import Strategy
from softgen.strategies.registry import all_strategies
from softgen.strategies.select import select
from softgen.strategies.variants import Variant, candidates, is_full_name, parse_name
from softgen.verify.pairwise import pairwise
from softgen.verify.problems import WIDELY, problems, problems_of, wanted_strategies
from softgen.verify.ways import covering, exchanges, layouts, own_ways

# Where a best guess is not enough: blocks of two rows, the last half empty, several rows an access,
# and rings that refill.
LAYOUT_WIDTHS = (100, 1001, 5000)

# A variant costs 0.1 to 0.2 s to compile and run on the emulator, a wide one 0.5 s: 6000 take about
# 10 minutes on 2 cores. Where the candidates are more, every strategy and problem gives up its last
# ones alike.
MOST_VARIANTS = 6000

_ROWS = 64  # moves the best guess only


class _Kept(NamedTuple):
    """Which problems are verified: of these types of x, functions and widths; () is all."""

    types: tuple[DType, ...]
    functions: tuple[Function, ...]
    cols: tuple[int, ...]

    def has(self, problem: Problem) -> bool:
        """Whether a problem is one of them."""
        of_function = not self.functions or problem.function in self.functions
        of_width = not self.cols or problem.cols in self.cols
        return problem.dtype in self.types and of_function and of_width

    def among(self, every: bool) -> list[Problem]:
        """Return these of the problems to verify, or of rows of the widths that are asked for."""
        found = problems_of(self.cols) if self.cols else problems(every)
        return [problem for problem in found if self.has(problem)]

    def nothing(self, choice: str) -> InvalidValueError:
        """Return the error for a choice that leaves nothing to verify."""
        of = ", ".join(function.name for function in self.functions) + " " * bool(self.functions)
        types = ", ".join(dtype.value for dtype in self.types)
        wide = f" with {', '.join(map(str, self.cols))} columns" if self.cols else ""
        return InvalidValueError(f"{choice} computes nothing that is verified of {of}{types}{wide}")


def matrix(
    all_variants: bool,
    choices: Sequence[str] | None = None,
    dtypes: Sequence[DType | str] | None = None,
    functions: Sequence[Function | str] | None = None,
    cols: Sequence[int] | None = None,
) -> list[Variant]:
    """Return the variants to verify: the best guesses, or candidates that cover the knobs.

    Args:
        all_variants: candidates that cover the knobs, not the best guesses alone.
        choices: only these strategies, settings, named choices and full names.
        dtypes: only these types of x.
        functions: only these.
        cols: contiguous rows of these widths, not the widths that are verified otherwise.

    Raises InvalidValueError for an unknown name, or one that leaves nothing to verify.
    """
    known = {kind.name: kind for kind in all_strategies()}
    kinds = [known[name] for name in choices if name in known] if choices else [*known.values()]
    arch = arch_named(DEFAULT_ARCH)
    kept = _Kept(
        tuple(map(DType.of, dtypes)) if dtypes else tuple(DType),
        tuple(map(Function.of, functions)) if functions else (),
        tuple(cols or ()),
    )
    named = [_chosen(choice, kept, arch) for choice in choices or () if choice not in known]
    groups = [_Group(variants, 1) for variants in named]
    if kinds:
        groups += _guesses(kinds, kept, arch, all_variants)
        others = () if cols else (*pairwise(), *own_ways(arch))
        mine = (each for each in others if kept.has(each.problem))
        groups += [_Group([each], 1) for each in mine if type(each.strategy) in kinds]
    if not groups:
        raise kept.nothing(", ".join(choices or ["softgen"]))
    limit = _limit([len(group.variants) for group in groups])
    found = (group.variants[: max(group.least, limit)] for group in groups)
    return [*dict.fromkeys(variant for variants in found for variant in variants)]


class _Group(NamedTuple):
    """Variants of a problem by a strategy, and how many of them are taken at least."""

    variants: list[Variant]
    least: int


def _guesses(
    kinds: Sequence[type[Strategy]], kept: _Kept, arch: Arch, all_variants: bool
) -> Iterator[_Group]:
    """Yield the best guesses for each problem, and behind them candidates that cover the knobs."""
    for problem in kept.among(all_variants):
        wanted = wanted_strategies(problem)
        for kind in kinds:
            if wanted and kind.name not in wanted:
                continue
            widely = problem.function.name in WIDELY and not problem.hooks
            several = wanted or isinstance(problem.layout, Columns) or (all_variants and widely)
            some = None if several or problem.cols in LAYOUT_WIDTHS else 1
            found = list(islice(candidates(problem, _ROWS, arch, kind.name), some))
            if not found:
                continue
            if wanted:  # small blocks: a row in as many parts as there are
                best = max(found, key=lambda variant: variant.launch.blocks_per_row)
                found.insert(0, found.pop(found.index(best)))
            first = found[:1]
            if isinstance(problem.layout, Columns):
                first = exchanges(found)
            elif problem.cols in LAYOUT_WIDTHS:
                first = layouts(found)
            rest = covering(found) if all_variants and widely else []
            yield _Group(list(dict.fromkeys([*first, *rest])), len(first))


def _chosen(choice: str, kept: _Kept, arch: Arch) -> list[Variant]:
    """Return the variant of a full name, or a setting for every problem that it can compute."""
    if is_full_name(choice):
        named = parse_name(choice)
        named.check(arch)
        found = [named] if kept.has(named.problem) else []
    else:
        found = []
        for problem in kept.among(every=False):
            try:
                variant = select(problem, _ROWS, arch, choice)
            except IllegalVariantError:
                continue
            wanted = wanted_strategies(problem)
            if not wanted or variant.strategy.name in wanted:
                found.append(variant)
    if not found:
        raise kept.nothing(choice)
    return found


def _limit(sizes: list[int]) -> int:
    """Return the most variants of one problem and strategy that keep within MOST_VARIANTS."""
    limit = 1
    while (
        limit < max(sizes, default=0)
        and sum(min(size, limit + 1) for size in sizes) <= MOST_VARIANTS
    ):
        limit += 1
    return limit
