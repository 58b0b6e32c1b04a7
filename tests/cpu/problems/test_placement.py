"""Where rows lie: axes that join, and the numbers that a kernel takes of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.layouts import ROWS, Layout, Strided, layout_of
from softgen.problems.placement import Placement, outer_strides
from softgen.problems.problem import Problem

slices = st.builds(slice, st.none(), st.none(), st.sampled_from([1, 2, 3, -1, -2]))


def starts(placement: Placement, array: int = 0) -> list[int]:
    """Return where rows start, from the first one on."""
    rows = placement.indices(array, 1)[:, 0]
    return [int(row - rows[0]) for row in rows]


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.lists(slices, min_size=4, max_size=4),
    st.permutations(range(4)),
)
def test_the_numbers_lead_to_the_rows_of_any_view(
    shape: list[int], cuts: list[slice], order: list[int]
) -> None:
    base = np.arange(np.prod(shape) * 5).reshape(*shape, 5)
    view = base[tuple(cuts[: len(shape)])]
    view = view.transpose(*[axis for axis in order if axis < len(shape)], len(shape))[..., 1:4]
    strides = outer_strides(view.shape, view.strides, 8)
    assert strides is not None
    contiguous = tuple(s // 8 for s in np.zeros(view.shape).strides[:-1])
    joined = Placement(view.shape[:-1], (strides, contiguous)).joined()
    assert starts(joined) == [int(first - view.flat[0]) for first in view[..., 0].reshape(-1)]
    assert joined == joined.joined()
    low, high = joined.extent(0, 3)
    assert (low, high) == (view.min() - view.flat[0], view.max() + 1 - view.flat[0])
    layout = joined.layout(3)
    if layout == ROWS:
        assert view.flags.c_contiguous or len(joined.sizes) == joined.rows == 1
        return
    for outer in range(len(joined.sizes), 4):
        wider = Strided(outer)
        sizes, numbers = joined.numbers(wider)[: outer - 1], joined.numbers(wider)[outer - 1 :]
        row = np.arange(joined.rows)
        offset, rest = 0 * row, row
        for size, step in zip(reversed((10**9, *sizes)), reversed(numbers[:outer]), strict=True):
            offset, rest = offset + rest % size * step, rest // size
        assert list(offset) == starts(joined)


def test_axes_join_where_they_do_in_every_array() -> None:
    both = Placement((4, 5, 6), ((600, 60, 10), (300, 60, 10)))
    assert both.joined() == Placement((4, 30), ((600, 10), (300, 10)))
    assert Placement((4, 1, 6), ((60, 7, 10),)).joined() == Placement((24,), ((10,),))
    assert Placement((4, 5), ((0, 0),)).joined() == Placement((20,), ((0,),))
    assert Placement((4, 5), ((-50, -10),)).joined() == Placement((20,), ((-10,),))
    assert Placement((1, 1), ((7, 7),)).joined() == Placement((1,), ((0,),))
    assert Placement((4, 5), ((50, 10), (10, 40))).joined().sizes == (4, 5)


def test_the_layout_is_that_of_as_many_axes_as_are_left() -> None:
    def layout(sizes: tuple[int, ...], strides: tuple[int, ...]) -> Layout | None:
        return Placement(sizes, (strides,)).joined().layout(10)

    assert layout((4, 5), (50, 10)) == ROWS
    assert layout((4, 5), (55, 11)) == Strided(1)
    assert layout((1, 1), (55, 3)) == ROWS
    assert layout((2, 2, 2), (100, 40, 15)) == Strided(3)
    assert layout((2, 2, 2, 2), (300, 100, 40, 15)) is None


def test_what_has_no_rows_of_contiguous_elements() -> None:
    assert outer_strides((4, 5), (40, 8), 4) is None
    assert outer_strides((4, 5), (40, -4), 4) is None
    assert outer_strides((4, 5), (42, 4), 4) is None  # no whole number of elements
    assert outer_strides((4, 1), (40, 8), 4) == (10,)
    assert outer_strides((1, 5), (42, 4), 4) == (10,)  # never stepped over
    assert outer_strides((5,), (4,), 4) == ()


def test_labels_of_layouts() -> None:
    for outer in (1, 2, 3):
        assert layout_of(Strided(outer).label) == Strided.of(outer) == Strided(outer)
    assert layout_of("") == Strided.of(0) == ROWS
    with pytest.raises(InvalidValueError, match="strided must be from 0 to 3, got 4"):
        Strided.of(4)
    with pytest.raises(InvalidTypeError, match="strided must be an int, got True"):
        Strided.of(True)
    with pytest.raises(InvalidValueError, match="unknown layout 'strided4'"):
        layout_of("strided4")


def test_the_numbers_are_operands_that_no_caller_gives() -> None:
    problem = Problem.of("softmax_lse", "bfloat16", 100, layout=Strided(2), hooks=["scale"])
    assert [operand.name for operand in problem.operands] == [
        *("x", "y", "lse", "scale", "size1"),
        *("x_stride0", "x_stride1", "y_stride0", "y_stride1"),
    ]
    assert [operand.name for operand in problem.inputs] == ["x", "scale"]
    assert problem.as_json["layout"] == "strided2"
    assert problem.bytes_per_row == problem.bare.bytes_per_row
    assert problem.bare == Problem.of("softmax_lse", "bfloat16", 100)
