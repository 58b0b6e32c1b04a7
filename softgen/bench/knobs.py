"""Every setting of a strategy: what a search over its knobs has to time."""

from __future__ import annotations

import dataclasses
import itertools

from softgen.problems.arch import Arch
from softgen.problems.problem import Problem
from softgen.strategies.base import MOST_UNROLL, PACK_SIZES, Strategy
from softgen.strategies.registry import strategy_named
from softgen.strategies.variants import Variant, candidates

# The values of the knobs that strategies share whose block walks over a row.
SPANS: dict[str, tuple[int | bool, ...]] = {
    "pack_size": PACK_SIZES,
    "unroll": tuple(range(1, MOST_UNROLL + 1)),
    "coalesced": (False, True),
    "shuffle": (False, True),
    "block_size": (32, 64, 128, 256, 512, 1024),
}
SEARCHED = ("unroll", "block_size")  # FastSoftmax's search


def every_variant(strategy: str, problem: Problem, rows: int, arch: Arch) -> list[Variant]:
    """Return every legal variant of a strategy for `rows` rows: a lesson's as well.

    Where all knobs are among SPANS it is each combination of their values, else each candidate. A
    knob with a default keeps it.
    """
    kind = strategy_named(strategy)
    required = [f for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING]
    names = [field.name for field in required]
    if not set(names) <= SPANS.keys():
        return list(candidates(problem, rows, arch, strategy))
    found = itertools.product(*(SPANS[name] for name in names))
    settings = (kind(**dict(zip(names, values, strict=True))) for values in found)
    return [Variant(problem, each) for each in settings if _is_sensible(each, problem, rows, arch)]


def around(setting: Strategy, problem: Problem, rows: int, arch: Arch) -> list[Strategy]:
    """Return the legal settings that differ from `setting` in block size and unroll alone.

    One that loads a single pack at a time keeps to that: it is a step of its own.
    """
    knobs = setting.knobs
    free = [name for name in SEARCHED if knobs.get(name, 1) > 1]
    changes = itertools.product(*(SPANS[name] for name in free))
    found = (
        dataclasses.replace(setting, **dict(zip(free, values, strict=True))) for values in changes
    )
    return [each for each in found if _is_sensible(each, problem, rows, arch)]


def _is_sensible(setting: Strategy, problem: Problem, rows: int, arch: Arch) -> bool:
    """Whether a setting is legal, and has fewer than twice the threads that the rows need."""
    if not setting.is_legal(problem, arch):
        return False
    per_block = setting.launch(problem).rows_per_block
    return per_block == 1 or per_block < 2 * max(rows, 32)
