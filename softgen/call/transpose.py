"""Axes that no kernel takes where they are: a copy of the inputs has them last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from softgen.call.kernels import is_captured
from softgen.call.library import Library
from softgen.errors import CaptureError
from softgen.problems.operands import Extent
from softgen.problems.problem import Problem


def run_transposed(
    library: Library,
    problem: Problem,
    axes: tuple[int, ...],
    inputs: Sequence[Any],
    out: Any,
    run: Callable[[Sequence[Any], tuple[int, ...]], Any],
) -> Any:
    """Return the results from copies of the inputs whose last axes are those that are reduced.

    A result of x's shape is a view of one with the axes in that order.

    Args:
        library: of all arrays, on the current device.
        problem: names the operands.
        axes: those that are reduced, rising.
        inputs: x and the others, which belong to it.
        out: the caller's array for the first result, which fits, or None.
        run: computes the results of inputs along the axes that it is told.

    Raises CaptureError where a copy would break a capture.
    """
    x = inputs[0]
    if library.mallocs_in_capture and is_captured(library.stream(library.device(x))):
        raise CaptureError(
            f"axes {axes} of a {x.ndim}-d array are copied to be the last, and CuPy cannot "
            "allocate the copy while a stream is captured; move and copy them before"
        )
    order = [i for i in range(x.ndim) if i not in axes] + list(axes)
    back = [order.index(i) for i in range(x.ndim)]
    moved = [
        library.contiguous(library.permuted(array, order))
        if operand.extent is Extent.ELEMENT
        else array
        for operand, array in zip(problem.inputs, inputs, strict=True)
    ]
    found = run(moved, tuple(range(x.ndim - len(axes), x.ndim)))
    results = [
        library.permuted(array, back) if operand.extent is Extent.ELEMENT else array
        for operand, array in zip(
            problem.results, found if isinstance(found, tuple) else (found,), strict=True
        )
    ]
    if out is not None:
        library.assign(out, results[0])
        results[0] = out
    return results[0] if len(results) == 1 else tuple(results)
