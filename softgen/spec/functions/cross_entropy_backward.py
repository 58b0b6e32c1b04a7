"""The gradient of cross entropy of class indices from the log-sum-exp of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.spec.dtypes import DType, FloatType, Integer
from softgen.spec.functions.base import element, element_result, number_input, row_input
from softgen.spec.functions.cross_entropy import (
    IGNORE_INDEX,
    OfTargets,
    arrays,
    hard_targets,
    one_hot,
    size_of,
)
from softgen.spec.functions.exhibit import Exhibit
from softgen.spec.functions.softmax import log_sum_exp
from softgen.spec.hooks.base import Hook
from softgen.spec.hooks.places import Place, one_term
from softgen.spec.hooks.target import Target
from softgen.spec.operands import Extent, Measure, Operand


@dataclass(frozen=True)
class CrossEntropyBackward(OfTargets):
    """dx of each row from x, its log-sum-exp, and the gradient with respect to its loss."""

    stem = "cross_entropy_backward"
    ignored = "dx is 0"

    @property
    def formula(self) -> str:
        """What the kernel computes."""
        return "dx = upstream d(loss)/dx, from lse"

    @property
    def call(self) -> str:
        """How people call it on arrays."""
        return "softgen.cross_entropy_backward(x, target, lse, upstream)"

    @property
    def non_finite(self) -> str:
        """What a row with NaN or an infinity gives, for the header of an emitted file."""
        return "an lse that is not finite, or a target that is no column, gives NaN"

    @property
    def reduces(self) -> bool:
        """The log-sum-exp of a row is given."""
        return False

    @property
    def modifiers(self) -> tuple[Hook, ...]:
        """The target."""
        return (Target(gradient=True, given=True),)

    @property
    def like(self) -> str:
        """finish, whose bytes it moves with the same launch."""
        return "finish"

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, target, lse, upstream and where rows find theirs, the numbers and dx."""
        return (
            element("x", dtype, "X"),
            *self.targets(),
            row_input("lse", compute, "Compute"),
            Operand("upstream", compute, Extent.BROADCAST, False, "Compute"),
            *one_term("upstream"),
            number_input("label_smoothing", compute, "Compute", "0 to 1", 0.0),
            number_input("z_loss", compute, "Compute", "finite: the weight of lse^2", 0.0),
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

        x, target, _, lse, upstream = inputs[:5]
        every, count, smoothing, z_loss = (np.ravel(number)[0] for number in inputs[5:])
        place = Place(int(every), int(count), 1)
        up = np.ravel(upstream)[place.of(np.arange(len(x)))][:, None]
        p = np.exp(x - lse[:, None])
        hit = one_hot(target, x.shape[1]) * (1 - smoothing)
        return up, p, smoothing / x.shape[1], hit, (1 + 2 * z_loss * lse)[:, None]

    def numbers(self) -> dict[str, Any]:
        """Return a place for two gradients, some smoothing and a weight of lse^2."""
        return {
            "upstream": (0.375, -1.5),
            "upstream_every": 1,
            "upstream_count": 2,
            "label_smoothing": 0.125,
            "z_loss": 2.0**-10,
        }

    def other_inputs(self, x: Any) -> tuple[Any, ...]:
        """Return targets of all kinds, the rows' own log-sum-exp, and numbers."""
        numbers = arrays(*self.numbers().values())
        return (hard_targets(*x.shape), *arrays(IGNORE_INDEX), log_sum_exp(x), *numbers)


CROSS_ENTROPY_BACKWARD = CrossEntropyBackward()
FUNCTIONS = (CROSS_ENTROPY_BACKWARD, CrossEntropyBackward(Integer.INT32))

EXHIBITS = (
    Exhibit("Llama 3 vocabulary, gradient", CROSS_ENTROPY_BACKWARD, "bfloat16", 4096, 128256),
)
