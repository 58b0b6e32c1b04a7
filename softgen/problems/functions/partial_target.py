"""partial_target: the pair of some columns of each row, and the target's element if it is here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.problems.dtypes import DType, FloatType, Integer
from softgen.problems.functions.base import element, row_result
from softgen.problems.functions.cross_entropy import (
    IGNORE_INDEX,
    OfTargets,
    arrays,
    first_column,
    hard_targets,
)
from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.functions.partial import pair, sums_result
from softgen.problems.hooks.base import Hook
from softgen.problems.hooks.target import Target
from softgen.problems.operands import Measure, Operand


@dataclass(frozen=True)
class PartialTarget(OfTargets):
    """What one process knows of the cross entropy of rows whose columns several have."""

    stem = "partial_target"
    ignored = "the pair is (-inf, 0)"

    formula = "m = max(x), d = sum(exp(x - m)), logit = x[target - first]"
    non_finite = "NaN makes m, d NaN, +inf d alone, both either; logit is +inf of targets elsewhere"
    hookable = False  # nobody asks for it
    like = "partial"  # which reads the same

    @property
    def modifiers(self) -> tuple[Hook, ...]:
        """The target."""
        return (Target(shard=True),)

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, target, the numbers, maxima, sums and logits."""
        return (
            element("x", dtype, "X"),
            *self.targets(),
            first_column(),
            row_result("maxima", compute, "Compute", Measure.EXACT),
            sums_result(compute),
            row_result("logits", compute, "Compute", Measure.EXACT),
        )

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return m, d and the element."""
        import numpy as np

        x, target, ignore_index, first = inputs
        ignored = target == np.ravel(ignore_index)[0]
        column = target - np.ravel(first)[0]
        here = (column >= 0) & (column < x.shape[1]) & ~ignored
        column = np.where(here, column, 0).astype(np.int64)
        logits = np.where(here, x[np.arange(len(x), like=x).astype(np.int64), column], np.inf)
        _, d = pair(x)
        return np.where(ignored, -np.inf, x.max(axis=1)), np.where(ignored, 0, d), logits

    def numbers(self) -> dict[str, Any]:
        """Return a first column."""
        return {"first": 2}

    def other_inputs(self, x: Any) -> tuple[Any, ...]:
        """Return targets of all kinds, and numbers."""
        return (hard_targets(*x.shape), *arrays(IGNORE_INDEX, *self.numbers().values()))


PARTIAL_TARGET = PartialTarget()
FUNCTIONS = (PARTIAL_TARGET, PartialTarget(Integer.INT32))

EXHIBITS = (
    Exhibit("half of the Llama 3 vocabulary, targets", PARTIAL_TARGET, "bfloat16", 4096, 64128),
)
