"""softmax_backward: the gradient of softmax, dx = y (dy - sum(dy y)): two inputs, sums as parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.spec.dtypes import DType
from softgen.spec.functions.base import Function, element, element_result
from softgen.spec.operands import Measure, Operand
from softgen.spec.parts import SUM, Part


@dataclass(frozen=True)
class SoftmaxBackward(Function):
    """The gradient of softmax with respect to x, from that with respect to y, and y."""

    @property
    def name(self) -> str:
        """As in names of kernels."""
        return "softmax_backward"

    @property
    def formula(self) -> str:
        """What the kernel computes."""
        return "dx = y (dy - sum(dy y))"

    @property
    def part(self) -> Part:
        """What a piece of a row reduces to."""
        return SUM

    def operands(self, dtype: DType, out_dtype: DType, compute: DType) -> tuple[Operand, ...]:
        """Return dy, y and dx."""
        return (
            element("dy", dtype, "X"),
            element("y", dtype, "X"),
            element_result("dx", out_dtype, "Y", Measure.TERMS, may_be="dy"),
        )

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return dx; NaN in rows whose sum is not finite."""
        import numpy as np

        dy, y = inputs
        total = (dy * y).sum(axis=-1, keepdims=True)
        return (y * (dy - np.where(np.isfinite(total), total, np.nan)),)

    def magnitudes(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the size of what cancels in dx."""
        dy, y = inputs
        return (y * (abs(dy) + abs(dy * y).sum(axis=-1, keepdims=True)),)

    def other_inputs(self, x: Any) -> tuple[Any, ...]:
        """Return y, a softmax of rows like `x` without what is not finite or large.

        It sums to 0.98, so that the sum of the largest numbers does not overflow in float32.
        """
        import numpy as np

        terms = np.exp(np.clip(np.where(np.isfinite(x), x, 0), -9, 9))
        return (0.98 * terms / terms.sum(axis=-1, keepdims=True),)


FUNCTIONS = (SoftmaxBackward(),)
