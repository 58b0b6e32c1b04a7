"""One call to time: a function, a size, and what sets it apart from plain rows."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

from softgen.bench.cases import HOOKED, VIEWS
from softgen.problems.dtypes import DType
from softgen.problems.functions.base import Function
from softgen.problems.functions.softmax import SOFTMAX
from softgen.problems.layouts import layout_behind
from softgen.problems.problem import Problem

# The filters of a sample, by the names of softgen.sample's arguments.
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.02}


@dataclass(frozen=True)
class Case:
    """What sets a call apart from rows along the last axis of a contiguous array.

    Attributes:
        shape: the shape of the array that is allocated; x is that array, or a view of it.
        axis: which axis of x is reduced.
        hook: the arguments of the call beside x, by a name of `cases.HOOKED`; "" for none.
        view: the part of the array that x is, by a name of `cases.VIEWS`; "" for all of it.
        samples: whether a column of each row is drawn, by the filters of `SAMPLED`. The function is
            then what reads as much.
    """

    shape: tuple[int, ...]
    axis: int = -1
    hook: str = ""
    view: str = ""
    samples: bool = False

    @functools.cached_property
    def x_shape(self) -> tuple[int, ...]:
        """The shape of x."""
        if not self.view:
            return self.shape
        import numpy as np

        shape: tuple[int, ...] = VIEWS[self.view](np.broadcast_to(np.int8(0), self.shape)).shape
        return shape

    @property
    def cols(self) -> int:
        """Elements of a row."""
        return self.x_shape[self.axis]

    @property
    def rows(self) -> int:
        """Rows of x."""
        return math.prod(self.x_shape) // self.cols

    @property
    def inner(self) -> int:
        """Elements behind the axis."""
        behind = self.axis % len(self.x_shape) + 1
        return math.prod(self.x_shape[behind:])

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of a result of one element a row."""
        axis = self.axis % len(self.x_shape)
        return self.x_shape[:axis] + self.x_shape[axis + 1 :]

    @property
    def called(self) -> bool:
        """Whether it takes a call on arrays: a plan knows neither views nor a hook's arrays."""
        return bool(self.hook or self.view)

    @property
    def given_bytes(self) -> int:
        """Bytes of what the call is given beside x."""
        given = HOOKED[self.hook].given(self.shape) if self.hook else {}
        return sum(getattr(value, "nbytes", 0) for value in given.values())

    def __str__(self) -> str:
        words = [self.hook] if self.hook else []
        words += [f"a sample by {name} {value}" for name, value in SAMPLED.items() if self.samples]
        size = " x ".join(map(str, self.shape))
        if self.view:
            words += [f"{self.view} of {size}"]
        elif self.axis % len(self.shape) != len(self.shape) - 1:
            words += [f"axis {self.axis} of {size}"]
        else:
            words += [size]
        return ", ".join(words)


@dataclass(frozen=True)
class Shape:
    """One call to time: a function of `rows` rows of `cols` elements.

    Attributes:
        landmark: whether competitors that compile anew for every shape are timed here as well.
        function: what is computed of each row.
        case: the axis, the hook or the view; None for rows of a contiguous array.
    """

    suite: str
    dtype: DType
    rows: int
    cols: int
    landmark: bool = True
    function: Function = SOFTMAX
    case: Case | None = None

    @classmethod
    def of(cls, suite: str, dtype: DType, case: Case, function: Function = SOFTMAX) -> Shape:
        """Return the shape of a case."""
        return cls(suite, dtype, case.rows, case.cols, True, function, case)

    @property
    def label(self) -> str:
        """The shape in words, for progress bars and messages."""
        function = "" if self.function == SOFTMAX else f"{self.function} "
        size = f"({self.case})" if self.case else f"{self.rows}x{self.cols}"
        return f"{self.suite} {function}{self.dtype.value} {size}"

    @property
    def axis(self) -> int:
        """Which axis is reduced."""
        return self.case.axis if self.case else -1

    @property
    def problem(self) -> Problem:
        """What a kernel is chosen for: results have the type of x. Without hooks."""
        inner = self.case.inner if self.case else 1
        return Problem.of(self.function, self.dtype, self.cols, layout=layout_behind(inner))

    @property
    def allocated(self) -> tuple[int, int]:
        """Rows and columns of the array that x is, or is a view of."""
        if self.case is None or not self.case.view:
            return self.rows, self.cols
        return math.prod(self.case.shape[:-1]), self.case.shape[-1]

    @property
    def moved_bytes(self) -> int:
        """The bytes of all arrays, each once."""
        given = self.case.given_bytes if self.case else 0
        return self.rows * self.problem.bytes_per_row + given
