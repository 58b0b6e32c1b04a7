"""The gradients of softmax and log_softmax from their results: two inputs, sums as parts."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

from softgen.problems.dtypes import DType, FloatType
from softgen.problems.functions.base import Function, element, element_result
from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.operands import Measure, Operand
from softgen.problems.parts import SUM


@dataclass(frozen=True)
class Backward(Function):
    """The gradient with respect to x, from that with respect to y, and y."""

    gradient_of: ClassVar[str]

    part = SUM

    @property
    def name(self) -> str:
        """As in names of kernels."""
        return f"{self.gradient_of}_backward"

    @property
    def call(self) -> str:
        """How people call it on arrays."""
        return f"softgen.{self.name}(dy, y)"

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return dy, y and dx, which may be dy."""
        return (
            element("dy", dtype, "X"),
            element("y", dtype, "X"),
            element_result("dx", out_dtype, "Y", Measure.TERMS, may_be="dy"),
        )

    def other_inputs(self, x: Any) -> tuple[Any, ...]:
        """Return y of rows like `x` without what is not finite or large.

        The probabilities sum to 0.98, so that the sum of the largest numbers, weighted by them,
        does not overflow in float32.
        """
        import numpy as np

        terms = np.exp(np.clip(np.where(np.isfinite(x), x, 0), -9, 9))
        return (self.of_probabilities(0.98 * terms / terms.sum(axis=-1, keepdims=True)),)

    @abc.abstractmethod
    def of_probabilities(self, p: Any) -> Any:
        """Return y where a softmax is p."""


@dataclass(frozen=True)
class SoftmaxBackward(Backward):
    """dx = y (dy - sum(dy y)), where y is a softmax."""

    gradient_of = "softmax"

    formula = "dx = y (dy - sum(dy y))"
    non_finite = "a row whose sum is not finite gives NaN everywhere"

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return dx; NaN in rows whose sum is not finite."""
        dy, y = inputs
        return (y * (dy - _or_nan((dy * y).sum(axis=-1, keepdims=True))),)

    def magnitudes(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the size of what cancels in dx."""
        dy, y = inputs
        return (y * (abs(dy) + abs(dy * y).sum(axis=-1, keepdims=True)),)

    def of_probabilities(self, p: Any) -> Any:
        """Return p."""
        return p


@dataclass(frozen=True)
class LogSoftmaxBackward(Backward):
    """dx = dy - exp(y) sum(dy), where y is a log_softmax."""

    gradient_of = "log_softmax"

    formula = "dx = dy - exp(y) sum(dy)"
    non_finite = "a row with dy not finite gives NaN everywhere; where y is -inf dx is dy"

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return dx; NaN in rows whose dy is not finite."""
        import numpy as np

        dy, y = inputs
        return (dy - np.exp(y) * _or_nan(dy.sum(axis=-1, keepdims=True)),)

    def magnitudes(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the size of what cancels in dx."""
        import numpy as np

        dy, y = inputs
        return (abs(dy) + np.exp(y) * abs(dy).sum(axis=-1, keepdims=True),)

    def of_probabilities(self, p: Any) -> Any:
        """Return log p."""
        import numpy as np

        return np.log(p)


def _or_nan(total: Any) -> Any:
    """Return the sums, NaN where they are not finite."""
    import numpy as np

    return np.where(np.isfinite(total), total, np.nan)


SOFTMAX_BACKWARD = SoftmaxBackward()
LOG_SOFTMAX_BACKWARD = LogSoftmaxBackward()
FUNCTIONS = (SOFTMAX_BACKWARD, LOG_SOFTMAX_BACKWARD)

EXHIBITS = (
    Exhibit("gradient of attention, 4096 keys", SOFTMAX_BACKWARD, "bfloat16", 16384, 4096),
    Exhibit("gradient of ImageNet classes", LOG_SOFTMAX_BACKWARD, "float32", 4096, 1000),
)
