"""The gradient of cross entropy of class indices from the log-sum-exp of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.problems.dtypes import DType, FloatType, Integer
from softgen.problems.functions.base import element, element_result, number_input, row_input
from softgen.problems.functions.cross_entropy import (
    IGNORE_INDEX,
    WITHOUT_SLOPES,
    OfTargets,
    arrays,
    first_column,
    one_hot,
    size_of,
    smoothing_input,
    targets_of,
    two_upstreams,
    upstream_inputs,
    upstream_of,
    z_loss_input,
)
from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.functions.softmax import log_sum_exp
from softgen.problems.hooks.base import Hook
from softgen.problems.hooks.target import Target
from softgen.problems.operands import Measure, Operand


@dataclass(frozen=True)
class CrossEntropyBackward(OfTargets):
    """dx of each row from x, its log-sum-exp, and the gradient with respect to its loss."""

    stem = "cross_entropy_backward"
    ignored = "dx is 0"

    formula = "dx = upstream d(loss)/dx, from lse"
    call = "softgen.cross_entropy_backward(x, target, lse, upstream)"
    non_finite = "an lse that is not finite, or a target that is no column, gives NaN"
    reduces = False  # the log-sum-exp of a row is given
    hookable = True  # by those that have a derivative
    barred = WITHOUT_SLOPES
    like = "finish"  # whose bytes it moves with the same launch

    @property
    def modifiers(self) -> tuple[Hook, ...]:
        """The target."""
        return (Target(gradient=True, given=True),)

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, target, lse, upstream and where rows find theirs, the numbers and dx."""
        return (
            element("x", dtype, "X"),
            *self.targets(),
            row_input("lse", compute, "Compute"),
            *upstream_inputs(compute),
            smoothing_input(compute),
            z_loss_input(compute),
            element_result("dx", out_dtype, "Y", Measure.TERMS, may_be="x"),
        )

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return dx: 0 in rows that are ignored, NaN where lse is not finite."""
        import numpy as np

        x, target, ignore_index, lse = inputs[:4]
        up, p, rest, hit, scale = self._terms(*inputs)
        dx = up * (p * scale - rest - hit)
        known = (target >= 0) & (target < x.shape[1]) & np.isfinite(lse)
        ignored = target == np.ravel(ignore_index)[0]
        return (np.where(ignored[:, None], 0, np.where(known[:, None], dx, np.nan)),)

    def magnitudes(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the size of what cancels in dx."""
        up, p, rest, hit, scale = self._terms(*inputs)
        return (abs(up) * (size_of(p) * abs(scale) + rest + hit),)

    def _terms(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the upstream, and what it is times: p, and what that is times and less."""
        import numpy as np

        x, target, _, lse, *upstream = inputs[:-2]
        smoothing, z_loss = (np.ravel(number)[0] for number in inputs[-2:])
        up = upstream_of(x, *upstream)
        p = np.exp(x - lse[:, None])
        hit = one_hot(target, x.shape[1]) * (1 - smoothing)
        return up, p, smoothing / x.shape[1], hit, (1 + 2 * z_loss * lse)[:, None]

    def numbers(self) -> dict[str, Any]:
        """Return a place for two gradients, some smoothing and a weight of lse^2."""
        return {
            **two_upstreams(),
            "label_smoothing": 0.125,
            "z_loss": 2.0**-10,
        }

    def timed_inputs(self, rows: int, cols: int) -> dict[str, Any]:
        """Return one gradient for all rows, as of a mean, and no more than that."""
        one = {"upstream": 0.375, "upstream_count": 1, "label_smoothing": 0.0, "z_loss": 0.0}
        return {**super().timed_inputs(rows, cols), **one}

    def other_inputs(self, x: Any) -> tuple[Any, ...]:
        """Return targets of all kinds, the rows' own log-sum-exp, and numbers."""
        numbers = arrays(*self.numbers().values())
        return (targets_of(x), *arrays(IGNORE_INDEX), log_sum_exp(x), *numbers)


@dataclass(frozen=True)
class CrossEntropyBackwardShard(CrossEntropyBackward):
    """dx of some columns of each row, of which others lie elsewhere: the target may be one of them.

    That it is a column somewhere the loss says, which is NaN otherwise. An upstream gradient of 0
    gives 0 then.
    """

    stem = "cross_entropy_backward_shard"

    hookable = False  # shards take no hooks
    template = "cross_entropy_backward"
    call = ""
    non_finite = "an lse that is not finite gives NaN, and a loss of NaN but where upstream is 0"

    @property
    def modifiers(self) -> tuple[Hook, ...]:
        """The target."""
        return (Target(gradient=True, given=True, shard=True),)

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return those of whole rows, and before dx the loss, the first column and how many."""
        *inputs, dx = super().operands(dtype, out_dtype, compute)
        accepts = "at least 1: how many columns all shards have, which share label_smoothing"
        every = number_input("classes", Integer.INT64, "long long", accepts, 1)
        return (*inputs, row_input("loss", compute, "Compute"), first_column(), every, dx)

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return dx: 0 in rows that are ignored, NaN where lse is not finite or the loss is NaN."""
        import numpy as np

        target, ignore_index, lse, loss = (*inputs[1:4], inputs[-3])
        up, p, smoothed, hit, scale = self._terms(*inputs)
        dx = up * (p * scale - smoothed - hit)
        known = np.isfinite(lse) & (~np.isnan(loss) | (up[:, 0] == 0))
        ignored = target == np.ravel(ignore_index)[0]
        return (np.where(ignored[:, None], 0, np.where(known[:, None], dx, np.nan)),)

    def _here(self, *inputs: Any) -> tuple[Any, ...]:
        """Return inputs of the gradient of whole rows, whose first column is 0."""
        import numpy as np

        x, target, *rest, _, first, _ = inputs
        return (x, target - np.ravel(first)[0], *rest)

    def _terms(self, *inputs: Any) -> tuple[Any, ...]:
        """Return those of whole rows, of which these are some columns."""
        import numpy as np

        *whole, _, _, classes = inputs
        up, p, rest, hit, scale = super()._terms(*self._here(*inputs))
        return up, p, rest * whole[0].shape[1] / np.ravel(classes)[0], hit, scale

    def numbers(self) -> dict[str, Any]:
        """Return gradients of which one is 0, a first column, and more columns than a row has."""
        upstream = {"upstream": (0.375, 0.0, -1.5), "upstream_count": 3}
        return {**super().numbers(), **upstream, "first": 2, "classes": 1000}

    def other_inputs(self, x: Any) -> tuple[Any, ...]:
        """Return targets of all kinds, lse, numbers, and losses of which some are NaN."""
        import numpy as np

        *others, first, classes = super().other_inputs(x)
        loss = np.where(np.arange(len(x)) % 5 == 3, np.nan, 1.0)
        return (*others, loss, first, classes)


CROSS_ENTROPY_BACKWARD = CrossEntropyBackward()
FUNCTIONS = (
    *(CROSS_ENTROPY_BACKWARD, CrossEntropyBackward(Integer.INT32)),
    *(CrossEntropyBackwardShard(), CrossEntropyBackwardShard(Integer.INT32)),
)

EXHIBITS = (
    Exhibit("Llama 3 vocabulary, gradient", CROSS_ENTROPY_BACKWARD, "bfloat16", 4096, 128256),
)
