"""token_log_probs_backward: gradients of log-probabilities of ids, and of entropies, from lse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.problems.dtypes import DType, FloatType, Integer
from softgen.problems.functions.base import Function, element, element_result, row_input
from softgen.problems.functions.entropy import entropy_of
from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.functions.of_logarithms import FromLse
from softgen.problems.functions.softmax import log_sum_exp
from softgen.problems.functions.token_log_probs import OfIds, counted
from softgen.problems.hooks.base import Hook
from softgen.problems.hooks.ids import Ids
from softgen.problems.operands import Measure, Operand


@dataclass(frozen=True)
class TokenLogProbsBackward(FromLse, OfIds):
    """dx = sum of ([column == id] - p) upstream over a row's ids, where log p = x - lse.

    Attributes:
        entropy: whether -p (log p + entropy) entropy_upstream is added, the gradient of the row's
            entropy.
    """

    stem = "token_log_probs_backward"

    entropy: bool = False

    non_finite = (
        "lse that is not finite gives NaN, as an id that is no column, unless its upstream is 0"
    )

    @property
    def options(self) -> str:
        """What is in its name of what it adds."""
        return "_entropy" if self.entropy else ""

    @property
    def formula(self) -> str:
        """What the kernel computes."""
        if self.entropy:
            return "dx = d(log_probs upstream + entropy entropy_upstream)/dx"
        return "dx = ([column in ids] - p) upstream, log p = x - lse"

    @property
    def call(self) -> str:
        """How people call it on arrays."""
        more = ", entropy, entropy_upstream" if self.entropy else ""
        return f"softgen.token_log_probs_backward(x, ids, lse, upstream{more})"

    @property
    def modifiers(self) -> tuple[Hook, ...]:
        """The ids."""
        return (Ids(self.count, gradient=True, entropy=self.entropy),)

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, ids, what there is of a row, and dx, which may be x."""
        more = ("entropy", "entropy_upstream") if self.entropy else ()
        return (
            element("x", dtype, "X"),
            self.columns,
            row_input("lse", compute, "Compute"),
            row_input("upstream", compute, "Compute", self.count),
            *(row_input(name, compute, "Compute") for name in more),
            element_result("dx", out_dtype, "Y", Measure.TERMS, may_be="x"),
        )

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return dx."""
        import numpy as np

        x, of_row, hit, total, entropy, g = self._terms(*inputs)
        log_p = x - of_row
        p = np.exp(log_p)
        dx = hit - p * total
        if self.entropy:
            dx = dx - p * (np.where(p == 0, 0, log_p) + entropy) * g
        return (dx + 0 * of_row,)

    def magnitudes(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the size of what is added up in dx, more where log p is rounded far from 0."""
        import numpy as np

        x, of_row, hit, total, entropy, g = self._terms(*inputs, size=True)
        log_p = np.where(np.isfinite(x - of_row), x - of_row, 0)
        size = np.exp(x - of_row) * (1 + abs(log_p) / 16)
        size = size * (total + ((abs(log_p) + entropy) * abs(g) if self.entropy else 0))
        return (hit + np.where(np.isfinite(size), size, 0),)

    def _terms(
        self, x: Any, ids: Any, lse: Any, upstream: Any, *more: Any, size: bool = False
    ) -> Any:
        """Return x, what there is of rows as columns, and what upstream adds to the ids' columns.

        With `size` of the absolute values of upstream.
        """
        import numpy as np

        columns, up = (each.reshape(len(x), self.count) for each in (ids, upstream))
        columns = columns.astype(np.int64)
        up = abs(up) if size else up
        known = (columns >= 0) & (columns < x.shape[1])
        up = np.where(known | (up == 0), up, np.nan)
        hit = np.zeros_like(x)
        rows = np.arange(len(x), like=x)  # x may be CuPy's
        for k in range(columns.shape[1]):
            add = np.where(known[:, k], up[:, k], 0)
            hit[rows, np.where(known[:, k], columns[:, k], 0)] += add  # one column a row
        entropy, g = (each[:, None] for each in more) if more else (None, None)
        return x, lse[:, None], hit, up.sum(axis=1, keepdims=True), entropy, g

    def other_inputs(self, x: Any) -> tuple[Any, ...]:
        """Return ids of all kinds, lse of rows like `x`, and gradients of both signs, and 0."""
        import numpy as np

        rows, cols = x.shape
        ids = self.some_ids(rows, cols)
        upstream = (0.75 - np.arange(rows * self.count) % 4 * 0.25 * 3).reshape(rows, -1)
        # Most rows of many ids would be NaN.
        none = ((ids < 0) | (ids >= cols)).reshape(rows, -1)
        upstream[none & (np.arange(rows) % 4 != 3)[:, None]] = 0
        found: tuple[Any, ...] = (ids, log_sum_exp(x), upstream.reshape(ids.shape))
        if self.entropy:
            found = (*found, entropy_of(x), 0.25 - np.arange(rows) % 3 * 0.5)
        return found


TOKEN_LOG_PROBS_BACKWARD = TokenLogProbsBackward(entropy=True)
FUNCTIONS = tuple(
    TokenLogProbsBackward(ids, 1, entropy)
    for entropy in (False, True)
    for ids in (Integer.INT64, Integer.INT32)
)


def function_of(name: str) -> Function | None:
    """Return the function called `name` of several ids a row, or None."""
    return counted(FUNCTIONS, name)


EXHIBITS = (
    Exhibit(
        "gradient of a policy, with its entropy's",
        TOKEN_LOG_PROBS_BACKWARD,
        "bfloat16",
        8192,
        151936,
    ),
)
