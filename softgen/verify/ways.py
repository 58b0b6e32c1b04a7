"""Candidates of one problem that differ in what they do, and not only in numbers."""

from __future__ import annotations

from softgen.strategies.variants import Variant


def exchanges(variants: list[Variant]) -> list[Variant]:
    """Return the best guess of each way that parts of columns go: lanes, warps, a cluster."""
    found: dict[tuple[object, ...], Variant] = {}
    for variant in variants:
        strategy = variant.strategy
        way = (variant.launch.cluster_size > 1, variant.launch.static_shared_bytes == 0)
        found.setdefault((type(strategy), *way, getattr(strategy, "direct", False)), variant)
    return list(found.values())


def layouts(variants: list[Variant]) -> list[Variant]:
    """Return the best guess of each way to deal out rows: to blocks, to accesses and in time."""
    found: dict[tuple[bool, bool, bool], Variant] = {}
    for variant in variants:
        several = variant.strategy.knobs.get("rows_per_access", 1) > 1
        layout = (variant.launch.rows_per_block > 1, several, variant.launch.strides)
        found.setdefault(layout, variant)
    return list(found.values())


def covering(variants: list[Variant]) -> list[Variant]:
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
