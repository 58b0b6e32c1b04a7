"""Where a result goes: a new array, the caller's, or a scratch array copied into the caller's."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from softgen.call.library import Library, library_of
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.dtypes import ElementType, Float8
from softgen.problems.operands import Extent
from softgen.problems.problem import Problem


class Output(NamedTuple):
    """The result's arrays.

    Attributes:
        target: array that the kernel writes: C-contiguous, or the caller's view.
        result: what the caller gets; `target` or the caller's strided array.
    """

    target: Any
    result: Any

    def elsewhere(self, library: Library, dtype: ElementType) -> Output:
        """Return this output with another scratch array, of `dtype`, in place of the target."""
        device = library.device(self.target)
        target = library.empty(tuple(self.target.shape), dtype, device)
        return Output(target, self.result)

    def finish(self, library: Library) -> Any:
        """Copy the scratch array into the caller's, if there is one, and return the result."""
        if self.target is self.result:
            library.written(self.result)
        else:
            library.assign(self.result, self.target)
        return self.result


def resolve_output(
    library: Library,
    x: Any,
    out: Any,
    dtype: ElementType,
    extent: Extent = Extent.ELEMENT,
    row_shape: tuple[int, ...] = (),
    *,
    views: bool = False,
) -> Output:
    """Return where the result of `x` goes.

    Args:
        library: of x and of out.
        x: the input.
        out: the caller's array or None. x itself is fine (in place), a partial overlap is
            not. One that is not contiguous costs a scratch array and a copy.
        dtype: of the result.
        extent: whether the result has x's shape, or that of its rows.
        row_shape: the latter: x's without the axes that are reduced.
        views: whether one of x's shape that is not contiguous is left to `views.placed`, which also
            tells whether it overlaps x.

    Raises InvalidTypeError or InvalidValueError if `out` does not fit, and what `library_of` does.
    """
    shape = tuple(x.shape) if extent is Extent.ELEMENT else row_shape
    elements = math.prod(shape)
    if out is None:
        fresh = library.empty(shape, dtype, library.device(x))
        return Output(fresh, fresh)
    _check_out(library, x, out, dtype, shape, elements)
    left = views and extent is Extent.ELEMENT
    if elements and not left and not library.is_contiguous(out):
        return Output(library.empty(shape, dtype, library.device(x)), out)
    return Output(out, out)


def resolve_outputs(
    library: Library,
    x: Any,
    out: Any,
    problem: Problem,
    row_shape: tuple[int, ...],
    *,
    views: bool,
) -> list[Output]:
    """Return where each result of `x` goes; `out` is the caller's array for the first, or None.

    `row_shape` is x's shape without the axes that are reduced; `views` is as in `resolve_output`.

    Raises what `resolve_output` raises.
    """
    return [
        resolve_output(
            *(library, x, None if i else out, each.dtype, each.extent),
            (*row_shape, *each.behind),
            views=views and not i,
        )
        for i, each in enumerate(problem.results)
    ]


def require_fit(
    library: Library, x: Any, out: Any, problem: Problem, row_shape: tuple[int, ...]
) -> None:
    """Raise what `resolve_output` raises, unless the first result can be written to `out`."""
    first = problem.results[0]
    of_rows = (*row_shape, *first.behind)
    shape = tuple(x.shape) if first.extent is Extent.ELEMENT else of_rows
    _check_out(library, x, out, first.dtype, shape, math.prod(shape))


def _check_out(
    library: Library, x: Any, out: Any, dtype: ElementType, shape: tuple[int, ...], elements: int
) -> None:
    if not isinstance(out, type(x)) and not isinstance(x, type(out)):  # either may be a subclass
        raise InvalidTypeError(
            f"out must be of x's library ({type(x).__module__}.{type(x).__qualname__}), got "
            f"{type(out).__module__}.{type(out).__qualname__}"
        )
    library_of(out, "out")  # which raises for one without memory, or that autograd follows
    if tuple(out.shape) != shape:
        raise InvalidValueError(f"out must have shape {shape}, got {tuple(out.shape)}")
    if isinstance(dtype, Float8):
        if not library.holds_float8(out, dtype):
            raise InvalidValueError(
                f"out must be {dtype.value} (in CuPy uint8, which holds its bits), got {out.dtype}"
            )
    elif library.element_type(out) is not dtype:
        raise InvalidValueError(
            f"out must be {dtype.value}, got {library.element_type(out).value}; pass dtype= for "
            "another result type"
        )
    if library.device(out) != library.device(x):
        raise InvalidValueError(
            f"out must be on device {library.device(x)} like x, got device {library.device(out)}"
        )
    if not elements:
        return
    if _repeats(shape, library.byte_strides(out), dtype.itemsize):
        raise InvalidValueError(
            "out repeats its elements (a stride is 0, as after broadcast_to, or too small, as in a "
            "sliding window); pass a real array"
        )
    # An array that is not contiguous is copied before or after the launch, so that only two
    # contiguous ones can meet in memory.
    if library.is_contiguous(x) and library.is_contiguous(out):
        x_start, y_start = library.pointer(x), library.pointer(out)
        x_end = x_start + math.prod(x.shape) * library.dtype(x).itemsize
        y_end = y_start + elements * dtype.itemsize
        in_place = (x_start, x_end) == (y_start, y_end) and shape == tuple(x.shape)
        if not in_place and x_start < y_end and y_start < x_end:
            raise InvalidValueError(
                "out overlaps x without being x; pass x itself (in place) or an array of its own "
                "memory"
            )


def _repeats(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Whether two indices may meet: an axis steps over less than the axes inside it cover."""
    span = itemsize
    for stride, length in sorted((abs(s), n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride < span:
            return True
        span += stride * (length - 1)
    return False
