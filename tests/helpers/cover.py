"""Few variants that meet every combination of two properties of many."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import combinations

from softgen.strategies.variants import Variant


def cover(variants: Sequence[Variant]) -> list[Variant]:
    """Return variants that have every pair of values of two properties that `variants` have.

    And each hook, and each kind of hook in each function, by each strategy, with each type and in
    each layout. Greedily: always the one that brings the most combinations that none before has.
    What one brings only falls, so that a heap of earlier counts tells the best one without counting
    all again.
    """
    brought = [set(_combinations(variant)) for variant in variants]
    heap = [(-len(found), index) for index, found in enumerate(brought)]
    heapq.heapify(heap)
    seen: set[object] = set()
    chosen: list[int] = []
    while heap:
        _, index = heapq.heappop(heap)
        new = len(brought[index] - seen)
        if new and heap and new < -heap[0][0]:
            heapq.heappush(heap, (-new, index))
        elif new:
            seen |= brought[index]
            chosen.append(index)
    return [variants[index] for index in sorted(chosen)]


def _combinations(variant: Variant) -> Iterator[object]:
    problem = variant.problem
    properties: dict[str, object] = {
        "function": problem.function,
        "strategy": variant.strategy.name,
        "dtype": problem.dtype,
        "out_dtype": problem.out_dtype,
        "cols": problem.cols,
        "alignment": problem.alignment,
        "fixed_order": problem.fixed_order,
        "hooks": bool(problem.hooks),
        "layout": problem.layout,
        "shares a block": variant.launch.rows_per_block > 1,
    }
    yield from combinations(properties.items(), 2)
    for hook in problem.hooks:
        yield hook.name
        for other in ("function", "strategy", "dtype", "layout"):
            yield hook.kind, other, properties[other]
