"""The gallery: the kernels that `softgen emit` writes into generated/ for people to read."""

from __future__ import annotations

import dataclasses

from softgen.problems.arch import DEFAULT_ARCH, arch_named
from softgen.problems.functions import all_exhibits
from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.layouts import layout_from
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.base import NO_PDL, Lesson
from softgen.strategies.registry import all_strategies
from softgen.strategies.select import select
from softgen.strategies.variants import Variant, candidates


def gallery() -> list[Source]:
    """Return the sources of the gallery, for the default architecture.

    A strategy that no exhibit shows is added at the first exhibit's problem that it can compute, so
    that a new strategy is in the gallery without an entry of its own, unless nobody has timed it. A
    kernel waits for the launch before it (pdl) only where its exhibit says so: the others are to be
    read, and run on any GPU.
    """
    arch = arch_named(DEFAULT_ARCH)
    exhibits = all_exhibits()
    chosen = {}
    for exhibit in exhibits:
        variant = select(_problem(exhibit), exhibit.rows, arch, exhibit.choice)
        if not exhibit.choice or "pdl" not in exhibit.choice:
            variant = _plain(variant)
        chosen[variant.name] = variant
    shown = {variant.strategy.name for variant in chosen.values()}
    for kind in all_strategies():
        if kind.name not in shown and (kind.tuned or issubclass(kind, Lesson)):
            for exhibit in exhibits:
                found = next(candidates(_problem(exhibit), exhibit.rows, arch, kind.name), None)
                if found is not None:
                    chosen[_plain(found).name] = _plain(found)
                    break
    return [render(chosen[name], arch) for name in sorted(chosen)]


def _plain(variant: Variant) -> Variant:
    """Return a best guess as older GPUs have it: without the wait for the launch before."""
    return Variant(variant.problem, dataclasses.replace(variant.strategy, pdl=NO_PDL))


def _problem(exhibit: Exhibit) -> Problem:
    return Problem.of(
        exhibit.function,
        exhibit.dtype,
        exhibit.cols,
        out_dtype=exhibit.out_dtype,
        alignment=exhibit.alignment,
        fixed_order=exhibit.fixed_order,
        layout=layout_from(exhibit.inner, exhibit.strided, exhibit.sharded),
    )
