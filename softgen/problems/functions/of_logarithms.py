"""The gradients of results of a row, from its log-sum-exp: logsumexp's and entropy's."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

from softgen.problems.dtypes import DType, FloatType
from softgen.problems.functions.base import Function, element, element_result, row_input
from softgen.problems.functions.softmax import log_sum_exp
from softgen.problems.operands import Measure, Operand


class FromLse(Function):
    """Base of gradients with hooks that take log p = x - lse from the lse of each row."""

    shifts = False  # log p is x - lse
    reduces = False
    hookable = True  # what enters it is modified as it was in the function whose gradient it is
    # What is part of lse already, and what is for NaN of rows of -inf.
    barred = frozenset({"sink", "zeroempty"})


@dataclass(frozen=True)
class OfLogarithms(FromLse):
    """The gradient with respect to x of one number a row, from lse and the upstream gradient."""

    gradient_of: ClassVar[str]
    saved: ClassVar[tuple[str, ...]] = ("lse",)  # inputs of a row before the upstream gradient

    @property
    def name(self) -> str:
        """As in names of kernels."""
        return f"{self.gradient_of}_backward"

    @property
    def call(self) -> str:
        """How people call it on arrays."""
        return f"softgen.{self.name}(x, {', '.join(self.saved)}, upstream)"

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, what there is one of per row, and dx, which may be x."""
        return (
            element("x", dtype, "X"),
            *(row_input(name, compute, "Compute") for name in (*self.saved, "upstream")),
            element_result("dx", out_dtype, "Y", Measure.TERMS, may_be="x"),
        )

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return dx; where lse is infinite as x - lse says, by PyTorch's formula."""
        x, lse, *others = inputs
        return (self.of_logarithms(x - lse[..., None], *(each[..., None] for each in others)),)

    def magnitudes(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the size of what is added up in dx, more where log p is rounded far from 0."""
        import numpy as np

        x, lse, *others = inputs
        log_p = x - lse[..., None]
        size = self.size_of(log_p, *(abs(each[..., None]) for each in others))
        return (np.where(np.isfinite(log_p), size * (1 + abs(log_p) / 16), 0),)

    def other_inputs(self, x: Any) -> tuple[Any, ...]:
        """Return lse of rows like `x`, and gradients of both signs."""
        import numpy as np

        upstream = (0.75 - np.arange(len(x)) % 3) * np.ones(len(x))
        return (*self.saved_of(x), upstream)

    def saved_of(self, x: Any) -> tuple[Any, ...]:
        """Return what of the rows of `x` is saved for the gradient."""
        return (log_sum_exp(x),)

    @abc.abstractmethod
    def of_logarithms(self, log_p: Any, *row: Any) -> Any:
        """Return dx from log p and the other inputs of a row, as columns."""

    @abc.abstractmethod
    def size_of(self, log_p: Any, *row: Any) -> Any:
        """Return the size of what is added up in dx, from the absolute values of those."""
