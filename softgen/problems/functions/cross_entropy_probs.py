"""Cross entropy of class probabilities: the loss of each row, and its gradient from lse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.problems.dtypes import DType, FloatType
from softgen.problems.functions.base import (
    Function,
    element,
    element_result,
    lse_result,
    row_input,
    row_result,
)
from softgen.problems.functions.cross_entropy import loss_result
from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.functions.softmax import log_sum_exp
from softgen.problems.operands import Measure, Operand
from softgen.problems.parts import MAX_SUM_BELOW


@dataclass(frozen=True)
class CrossEntropyProbs(Function):
    """-sum(q log softmax(x)) of each row, its log-sum-exp and sum(q)."""

    name = "cross_entropy_probs"
    formula = "loss = -sum(probs log softmax(x)), lse, mass = sum(probs)"
    call = "softgen.cross_entropy(x, target=probs)"
    non_finite = "loss is NaN for a row with NaN, +inf or only -inf, or -inf where probs is 0"
    part = MAX_SUM_BELOW
    shardable = False  # a part is no pair

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, the probabilities, loss, lse and the sum of the probabilities."""
        return (
            element("x", dtype, "X"),
            element("probs", dtype, "X"),
            loss_result(compute),
            lse_result(compute),
            row_result("mass", compute, "Compute", Measure.VALUE),
        )

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return loss, lse and mass; 0 times infinity is NaN, as in PyTorch."""
        x, q = inputs
        return -(q * log_softmax(x)).sum(axis=1), log_sum_exp(x), q.sum(axis=1)

    def other_inputs(self, x: Any) -> tuple[Any, ...]:
        """Return probabilities of which some are 0, and rows that do not sum to 1."""
        return (probabilities_of(x),)


@dataclass(frozen=True)
class CrossEntropyProbsBackward(Function):
    """dx of each row from x, the probabilities, lse, and what p and they are times."""

    name = "cross_entropy_probs_backward"
    formula = "dx = exp(x - lse) scale - probs upstream - rest"
    call = "softgen.cross_entropy_backward(x, target=probs, lse=lse, upstream=upstream)"
    non_finite = (
        "a row of lse = -inf, or +inf in a row of lse = +inf, gives NaN; else -inf has p = 0"
    )
    shifts = False  # log p is x - lse
    reduces = False  # the log-sum-exp of a row is given

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, the probabilities, what there is one of per row, and dx, which may be x."""
        return (
            element("x", dtype, "X"),
            element("probs", dtype, "X"),
            *(row_input(each, compute, "Compute") for each in ("lse", "scale", "upstream", "rest")),
            element_result("dx", out_dtype, "Y", Measure.TERMS, may_be="x"),
        )

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return dx."""
        import numpy as np

        x, q, lse, *rows = inputs
        scale, upstream, rest = (each[:, None] for each in rows)
        return (np.exp(x - lse[:, None]) * scale - q * upstream - rest,)

    def magnitudes(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the size of what cancels in dx."""
        import numpy as np

        x, q, lse, *rows = inputs
        scale, upstream, rest = (abs(each[:, None]) for each in rows)
        log_p = x - lse[:, None]
        size = np.exp(log_p) * scale * (1 + np.where(np.isfinite(log_p), abs(log_p), 0) / 16)
        return (size + abs(q) * upstream + rest,)

    def other_inputs(self, x: Any) -> tuple[Any, ...]:
        """Return probabilities, lse, and what of a row they are times: of both signs."""
        import numpy as np

        up = np.asarray((0.75 - np.arange(len(x)) % 3) * np.ones(len(x)), like=x)
        q = probabilities_of(x)
        return q, log_sum_exp(x), up * q.sum(axis=1), up * 0.875, up * 0.125 / x.shape[1]


def probabilities_of(x: Any) -> Any:
    """Return probabilities of which some are 0, and rows that do not sum to 1."""
    import numpy as np

    q = np.random.default_rng([*x.shape, 7]).random(x.shape)
    q = np.asarray(np.where(q < 0.25, 0, q) * 2 / x.shape[1], like=x)  # x may be CuPy's
    return np.where(np.isneginf(x), 0.5 / x.shape[1], q)


def log_softmax(x: Any) -> Any:
    """Return the logarithm of the softmax of each row."""
    import numpy as np

    z = x - x.max(axis=1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=1, keepdims=True))


CROSS_ENTROPY_PROBS = CrossEntropyProbs()
BACKWARD = CrossEntropyProbsBackward()
FUNCTIONS = (CROSS_ENTROPY_PROBS, BACKWARD)

EXHIBITS = (
    Exhibit("probabilities, losses of Llama 3", CROSS_ENTROPY_PROBS, "bfloat16", 4096, 128256),
    Exhibit("probabilities, gradient of Llama 3", BACKWARD, "bfloat16", 4096, 128256),
)
