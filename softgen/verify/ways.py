"""Candidates of one problem that differ in what they do, and not only in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from softgen.problems.arch import Arch
from softgen.problems.dtypes import DType
from softgen.problems.layouts import Columns
from softgen.problems.problem import Problem
from softgen.strategies.base import Strategy
from softgen.strategies.registry import all_strategies
from softgen.strategies.variants import Variant, candidates

# Columns of memory for each of Strategy.ways: (columns, inner, type).
SIZES = (
    (101, 77, DType.FLOAT32),
    (96, 77, DType.FLOAT32),
    (1001, 6, DType.FLOAT16),
    (20000, 3, DType.FLOAT32),
    (20000, 48, DType.FLOAT32),
    (40000, 8, DType.FLOAT32),
    (120000, 4, DType.FLOAT64),
)
FUNCTIONS = ("softmax", "logsumexp")  # elements and a number a row
_ROWS = 64  # moves the best guess only


def own_ways(arch: Arch) -> Iterator[Variant]:
    """Yield the best guess of each of Strategy.ways, by each strategy that has such."""
    for kind in all_strategies():
        if kind.ways is Strategy.ways:
            continue
        for function in FUNCTIONS:
            seen: set[tuple[bool, ...]] = set()
            for cols, inner, dtype in SIZES:
                problem = Problem.of(function, dtype, cols, layout=Columns(inner))
                for variant in candidates(problem, _ROWS, arch, kind.name):
                    ways = variant.strategy.ways(problem)
                    if ways not in seen:
                        seen.add(ways)
                        yield variant


def exchanges(variants: Sequence[Variant]) -> list[Variant]:
    """Return the best guess of each way that parts of columns go: lanes, warps, a cluster."""
    found: dict[tuple[object, ...], Variant] = {}
    for variant in variants:
        strategy = variant.strategy
        way = (variant.launch.cluster_size > 1, variant.launch.static_shared_bytes == 0)
        found.setdefault((type(strategy), *way, getattr(strategy, "direct", False)), variant)
    return list(found.values())


def layouts(variants: Sequence[Variant]) -> list[Variant]:
    """Return the best guess of each way to deal out rows: to blocks, to accesses and in time."""
    found: dict[tuple[bool, bool, bool], Variant] = {}
    for variant in variants:
        several = variant.strategy.knobs.get("rows_per_access", 1) > 1
        layout = (variant.launch.rows_per_block > 1, several, variant.launch.strides)
        found.setdefault(layout, variant)
    return list(found.values())


def covering(variants: Sequence[Variant]) -> list[Variant]:
    """Reorder candidates so that each one brings as many values of knobs not seen as possible.

    Any number of them from the front covers the knobs well; the first stays the best guess.
    """
    rest = [(variant, set(variant.strategy.knobs.items())) for variant in variants]
    ordered: list[Variant] = []
    seen: set[tuple[str, int]] = set()
    while rest:
        news = [len(values - seen) for _, values in rest]
        if not any(news):
            break
        variant, values = rest.pop(news.index(max(news)) if ordered else 0)
        ordered.append(variant)
        seen |= values
    return [*ordered, *(variant for variant, _ in rest)]
