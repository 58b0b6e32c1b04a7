"""Offsets beyond 2^31 and 2^32 elements, without so many: a large first row."""

from __future__ import annotations

import math

import pytest

from softgen.devices.emulator import Job, build
from softgen.errors import EmulationError, InvalidValueError
from softgen.problems.layouts import Columns
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.bands import Bands
from softgen.strategies.cooperative import Cooperative
from softgen.strategies.lessons.oneflowwarp import OneflowWarp
from softgen.strategies.registry import all_strategies
from softgen.strategies.split import Split
from softgen.strategies.spread import Spread
from softgen.strategies.variants import Variant, candidates
from softgen.verify.ways import exchanges, layouts
from tests.helpers.emulator_helpers import ARCH, broken, input_of
from tests.helpers.single import check

ROWS = 9
PAST = 2**32  # elements before the first row that is computed
COLUMNS, ODD = Columns(8), Columns(7)
# tests/gpu/test_many_rows.py has these.
SHARED_BY_BLOCKS = (Cooperative.name, Split.name, Spread.name)


def first_row(source: Source) -> int:
    """Return a row behind PAST elements, the last one of a block."""
    step = source.variant.problem.layout.step
    rows = math.lcm(source.variant.launch.rows_per_block, step)
    return -(-PAST // source.variant.problem.cols // rows) * rows - step


def sources(fixed_order: bool) -> list[Source]:
    """Return kernels of every strategy, by every way that it deals out rows; types take turns."""
    found: list[Source] = []
    for number, kind in enumerate(all_strategies()):
        if kind.name in SHARED_BY_BLOCKS:
            continue
        # OneflowWarp has no float64.
        types = ["float32", "bfloat16", "float32" if kind is OneflowWarp else "float64"]
        for turn, cols in enumerate((100, 1001, 5000, 5001), number):
            problem = Problem.of("softmax", types[turn % 3], cols, fixed_order=fixed_order)
            variants = list(candidates(problem, 64, ARCH, kind.name))
            found += [render(variant) for variant in layouts(variants)]
        # Columns have that order anyway.
        for turn, cols in () if fixed_order else enumerate((100, 1001), number):
            layout = ODD if kind is Bands else COLUMNS
            problem = Problem.of("softmax", types[turn % 3], cols, layout=layout)
            variants = list(candidates(problem, 64, ARCH, kind.name))
            found += [render(variant) for variant in exchanges(variants)]
    names = {source.variant.strategy.name for source in found}
    assert fixed_order or names == {kind.name for kind in all_strategies()} - {*SHARED_BY_BLOCKS}
    return found


@pytest.mark.parametrize("fixed_order", [False, True], ids=["any order", "fixed order"])
def test_rows_behind_many_elements_are_the_same(fixed_order: bool) -> None:
    kernels = sources(fixed_order)
    program = build(kernels)
    inputs = [input_of(source, ROWS * source.variant.problem.layout.step) for source in kernels]
    near = program.run_all([Job(s, x) for s, x in zip(kernels, inputs, strict=True)])
    far = program.run_all(
        [Job(s, x, first_row=first_row(s)) for s, x in zip(kernels, inputs, strict=True)]
    )
    for source, x, one, other in zip(kernels, inputs, near, far, strict=True):
        assert not isinstance(one, EmulationError), one
        assert not isinstance(other, EmulationError), other
        assert first_row(source) * source.variant.problem.cols > 2**32 - 2**20
        problem = source.variant.problem
        step = problem.layout.step
        assert check(other[step:], x[step:], problem).ok, source.name
        # Elsewhere a row may lie within a pack, and be summed in another order.
        if fixed_order or problem.alignment >= problem.dtype.max_pack:
            assert (one[step:] == other[step:]).all(), source.name


def test_an_offset_of_32_bits_is_seen() -> None:
    problem = Problem.of("softmax", "float32", 1000)
    for variant in layouts(list(candidates(problem, 64, ARCH, "block"))):
        source = render(variant)
        narrow = broken(source, "x + row * kCols", "x + static_cast<int>(row) * kCols")
        job = Job(narrow, input_of(narrow, ROWS), first_row=first_row(narrow))
        assert isinstance(build([narrow]).run_all([job])[0], EmulationError)
        unsigned = "x + static_cast<unsigned int>(row) * static_cast<unsigned int>(kCols)"
        narrow = broken(source, "x + row * kCols", unsigned)
        job = Job(narrow, input_of(narrow, ROWS), first_row=first_row(narrow))
        assert isinstance(build([narrow]).run_all([job])[0], EmulationError)


def test_blocks_that_share_rows_cannot_begin_later() -> None:
    source = render(Variant(Problem.of("softmax", "float32", 1000), Split(4, 8, 32, 1, True)))
    with pytest.raises(InvalidValueError, match="rows to themselves"):
        Job(source, input_of(source, 2), first_row=7)
