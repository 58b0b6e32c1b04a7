"""merge_losses: the cross entropy of whole rows from what processes know of their columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.problems.dtypes import DType, FloatType, Integer
from softgen.problems.functions.base import element, lse_result, number_input, row_input
from softgen.problems.functions.cross_entropy import (
    IGNORE_INDEX,
    OfTargets,
    arrays,
    hard_targets,
    loss_result,
)
from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.functions.merge import MERGE
from softgen.problems.functions.partial import pair
from softgen.problems.hooks.base import Hook
from softgen.problems.hooks.target import Target
from softgen.problems.operands import Operand


@dataclass(frozen=True)
class MergeLosses(OfTargets):
    """The loss of each row and its log-sum-exp, from its pieces' pairs and the target's element."""

    stem = "merge_losses"
    ignored = "loss is 0 and lse is -inf"

    formula = "lse of the pairs (ms, ds); loss = lse - logits + z_loss lse^2"
    non_finite = "loss is NaN for a row with NaN or +inf, or of only -inf, and for a logit of +inf"
    like = "merge"  # which reads the same
    posts_element = True

    @property
    def modifiers(self) -> tuple[Hook, ...]:
        """The target, whose element is known."""
        return (Target(told=True),)

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return the pieces' pairs, the logits, target, the numbers, loss and lse."""
        return (
            element("ms", dtype, "X"),
            element("ds", dtype, "X"),
            row_input("logits", compute, "Compute"),
            *self.targets(),
            number_input("z_loss", compute, "Compute", "finite: the weight of lse^2", 0.0),
            loss_result(compute),
            lse_result(compute),
        )

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return loss and lse: 0 and -inf of a row that is ignored."""
        import numpy as np

        ms, ds, logits, target, ignore_index, z_loss = inputs
        m, (_, d) = ms.max(axis=1), pair(ms, ds)
        lse = np.where(np.isinf(m), m, m + np.log(d))
        z = float(np.ravel(z_loss)[0])
        loss = (m - logits) + np.log(d) + (z * lse * lse if z else 0)
        ignored = target == np.ravel(ignore_index)[0]
        loss = np.where(np.isposinf(logits), np.nan, loss)
        return np.where(ignored, 0, loss), np.where(ignored, -np.inf, lse)

    def numbers(self) -> dict[str, Any]:
        """Return the weight of lse^2."""
        return {"z_loss": 2.0**-10}

    def timed_inputs(self, rows: int, cols: int) -> dict[str, Any]:
        """Return sums that pieces may have, since logarithms are taken, and finite elements."""
        import numpy as np

        sums = np.random.default_rng(0).uniform(1, 8, (rows, cols))
        return {**super().timed_inputs(rows, cols), "ds": sums, "logits": np.zeros(rows)}

    def other_inputs(self, x: Any) -> tuple[Any, ...]:
        """Return sums, elements of which some are nobody's, targets of all kinds, and numbers."""
        import numpy as np

        rows, cols = x.shape
        row = np.arange(rows)
        logits = np.where(row % 7 == 2, np.inf, row % 3 - 1.0)
        logits[3::4] = x[3::4].max(axis=1)
        numbers = arrays(IGNORE_INDEX, *self.numbers().values())
        return (*MERGE.other_inputs(x), logits, hard_targets(rows, cols), *numbers)


MERGE_LOSSES = MergeLosses()
FUNCTIONS = (MERGE_LOSSES, MergeLosses(Integer.INT32))

EXHIBITS = (Exhibit("losses of two halves of a vocabulary", MERGE_LOSSES, "float32", 4096, 2),)
