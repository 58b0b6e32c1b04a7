"""Rows of views on the emulator: results, what lies between rows, and kernels that miss a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softgen.devices.emulator import Job, build, run_each
from softgen.errors import EmulationError, InvalidValueError
from softgen.problems.layouts import Strided
from softgen.problems.numerics import check
from softgen.problems.placement import Placement
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.base import Strategy
from softgen.strategies.online import Online
from softgen.strategies.safe import Safe
from softgen.strategies.variants import Variant
from softgen.strategies.warp import Warp
from tests.helpers.emulator_helpers import broken, input_of


def source_of(outer: int, strategy: Strategy | None = None, function: str = "softmax") -> Source:
    problem = Problem.of(function, "float32", 48, layout=Strided(outer))
    return render(Variant(problem, strategy or Safe(32)))


def report(source: Source, placement: Placement, **options: Any) -> str:
    """Return the report that stops `source`."""
    with pytest.raises(EmulationError) as stopped:
        run_each(source, input_of(source, placement.rows), placement=placement, **options)
    return str(stopped.value)


# Rows with 12 and 4 elements between them.
GAPS = Placement((6,), ((60,), (52,)))
# The first axis goes down in x, and the second is the outer one in y.
TWO = Placement((3, 2), ((-120, 60), (52, 160)))


def test_results_of_several_placements() -> None:
    one, two, three = sources = [source_of(outer, Online(4, 1, 64)) for outer in (1, 2, 3)]
    program = build(sources)
    broadcast = Placement((6,), ((0,), (48,)))
    for source, placement in (
        (one, None),
        (one, GAPS),
        (one, Placement((6,), ((-64,), (48,)))),
        (two, TWO),
        (two, GAPS),  # which lacks an axis
        (three, Placement((2, 1, 3), ((200, 0, 64), (56, 8, 112)))),
        (three, TWO),
        (one, broadcast),
    ):
        x = input_of(source, 6)
        if placement is broadcast:
            x = np.repeat(x[:1], 6, axis=0)
        (y,) = program.run_each(source, x, placement=placement)
        accuracy = check((y,), (x,), source.variant.problem)
        assert accuracy.ok, accuracy.message


def test_a_warp_behind_the_last_row_does_nothing() -> None:
    """Of 8 rows a warp, in blocks of four warps: what 16 rows take is twice what 8 do."""
    problem = Problem.of("softmax", "float32", 48, layout=Strided(2))
    source = render(Variant(problem, Warp.covering(problem, 4, 8, 2, 128)))
    jobs = [Job(source, input_of(source, rows)) for rows in (8, 16)]
    exchanges = []
    for result in build([source]).run_counted(jobs):
        assert not isinstance(result, EmulationError)
        exchanges.append(result[1].exchanges)
    few, many = exchanges
    assert many == 2 * few > 0


def test_results_of_rows_are_contiguous() -> None:
    source = source_of(2, function="softmax_lse")
    x = input_of(source, 6)
    accuracy = check(run_each(source, x, placement=TWO), (x,), source.variant.problem)
    assert accuracy.ok, accuracy.message


def test_a_view_in_place() -> None:
    source = source_of(2)
    x = input_of(source, 6)
    where = Placement((3, 2), ((-124, 60), (-124, 60)))
    (y,) = run_each(source, x, placement=where, in_place=True)
    assert check((y,), (x,), source.variant.problem).ok


# Sabotage of the real templates.


def test_a_load_and_a_store_between_rows() -> None:
    source = source_of(1)
    text = report(broken(source, "row_x[col]", "row_x[col + 3]"), GAPS)
    assert "1 element(s) into the gap behind x[row 0, col 47], which belongs to no row" in text
    assert "thread 13 of block 0 read 4 bytes" in text
    text = report(broken(source, "row_y[col]", "row_y[col + 4]"), GAPS)
    assert "wrote 4 bytes that reach 1 element(s) into the gap behind y[row 0, col 47]" in text


def test_packs_that_reach_between_rows() -> None:
    source = source_of(1, Warp(4, 8, 8, 1, True, 32))
    wide = broken(source, "col + kPackSize <= kCols", "col <= kCols")
    assert "4 element(s) into the gap behind x[row 0, col 47]" in report(wide, GAPS)


def test_a_stride_that_is_off_by_one() -> None:
    source = broken(source_of(1), "row * stride", "row * (stride + 1)")
    assert "1 element(s) into the gap behind x[row 1, col 47]" in report(source, GAPS)
    crossed = broken(
        source_of(2), "{x, size1, x_stride0, x_stride1}", "{x, size1, x_stride1, x_stride0}"
    )
    assert "13 element(s) past the end of x" in report(crossed, TWO)
    lost = broken(source_of(2), "row % size1 * stride1", "row / size1 * stride1")
    where = Placement((2, 3), ((60, 120), (52, 104)))
    assert "y[row 0, col 16], which thread 16 of block 0 had written" in report(lost, where)


def test_a_row_that_is_never_written_is_named_by_its_number() -> None:
    skip = broken(source_of(2), "row_y[col] =", "if (row != 3 || col < 47) row_y[col] =")
    text = report(skip, TWO)
    assert "1 of" in text
    assert "elements of y were never written; the first is y[row 3, col 47]" in text


def test_a_store_that_is_not_seen_leaves_its_mark() -> None:
    """Inline assembly writes between rows, where no check of an access looks."""
    store = 'asm volatile("movl $7, (%0)" : : "r"(row_y + 48) : "memory");'
    store = f"if (row == 0 && col == 0) {store} row_y[col] ="
    text = report(broken(source_of(1), "row_y[col] =", store), GAPS)
    assert "the kernel wrote outside of its arrays, into the gap" in text


# What a job refuses.


@pytest.mark.parametrize(
    ("outer", "options", "message"),
    [
        (1, {"placement": TWO}, r"takes 1 outer axes of 6 rows in all, got sizes \(3, 2\)"),
        (1, {"placement": Placement((5,), ((48,), (48,)))}, r"of 6 rows in all, got sizes \(5,\)"),
        (1, {"placement": GAPS, "in_place": True}, "in place the result's strides are x's"),
    ],
)
def test_a_placement_that_is_not_the_kernels(
    outer: int, options: dict[str, Any], message: str
) -> None:
    source = source_of(outer)
    with pytest.raises(InvalidValueError, match=message):
        Job(source, input_of(source, 6), **options)
    plain = render(Variant(Problem.of("softmax", "float32", 48), Safe(32)))
    with pytest.raises(InvalidValueError, match="follow each other"):
        Job(plain, input_of(plain, 6), placement=GAPS)
