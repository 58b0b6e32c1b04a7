"""Exhibits: the kernels of a function that people find in the gallery, generated/."""

from __future__ import annotations

from typing import NamedTuple

from softgen.problems.functions.base import Function


class Exhibit(NamedTuple):
    """One kernel of the gallery.

    Attributes:
        where: where such a kernel is met.
        function: what it computes.
        dtype: element type of x.
        rows: number of rows that the kernel is chosen for.
        cols: elements in a row.
        choice: what `select` takes; None for the best guess.
        out_dtype: element type of the result.
        alignment: where rows start, in elements.
        fixed_order: whether a row is summed in one order wherever it lies.
        inner: elements behind the axis that is reduced.
        strided: outer axes of a view; 0 for contiguous rows.
        sharded: whether several devices hold the rows together, `cols` of each on one.
    """

    where: str
    function: Function
    dtype: str
    rows: int
    cols: int
    choice: str | None = None
    out_dtype: str | None = None
    alignment: int | None = None
    fixed_order: bool = False
    inner: int = 1
    strided: int = 0
    sharded: bool = False
