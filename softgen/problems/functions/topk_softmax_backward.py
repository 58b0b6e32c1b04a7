"""topk_softmax_backward: the gradient of the weights of what was chosen of a row."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from softgen.problems.dtypes import DType, FloatType, Integer
from softgen.problems.functions.base import (
    Function,
    element,
    element_result,
    number_input,
    row_ids,
    row_input,
)
from softgen.problems.functions.cross_entropy import probabilities, size_of
from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.functions.topk_softmax import MOST_CHOSEN, Chosen, TopkSoftmax
from softgen.problems.hooks.base import Hook
from softgen.problems.hooks.choices import Choices
from softgen.problems.operands import Measure, Operand


@dataclass(frozen=True)
class TopkSoftmaxBackward(Chosen):
    """dx of weights = scale * s[ids], s = softmax(x) or sigmoid(x), by weights and ids.

    With g = weights * upstream softmax gives [column in ids] g - softmax(x) sum(g), sigmoid
    [column in ids] g (1 - s). Where weights are divided by their sum, g is weights * (upstream -
    sum(weights * upstream) / scale), whose sum is 0.

    Attributes:
        renormalize: whether weights were divided by their sum.
    """

    renormalize: bool = False

    template = "topk_softmax_backward"
    hookable = False  # softgen.torch, which asks for it, takes no hooks of a choice
    call = "softgen.topk_softmax_backward(x, weights, ids, upstream)"
    like = "softmax"  # whose bytes it moves with the same launch

    @property
    def name(self) -> str:
        """As in names of kernels."""
        options = "_sigmoid" * self.sigmoid + "_norm" * self.renormalize
        return f"topk_softmax_backward_k{self.k}{options}"

    @property
    def formula(self) -> str:
        """What the kernel computes."""
        scores = "sigmoid" if self.sigmoid else "softmax"
        return f"dx = d(weights upstream)/dx of {self.k} chosen by {scores}"

    @property
    def non_finite(self) -> str:
        """What a row with NaN or an infinity gives, for the header of an emitted file."""
        where = "everywhere" if self.reduces else "at its ids"
        return f"a row whose weights are NaN gives NaN {where}"

    @property
    def reduces(self) -> bool:
        """Whether the sum of a row is found: elsewhere no column has a share in it."""
        return not self.sigmoid and not self.renormalize

    @property
    def sums(self) -> bool:
        """Whether exponentials are summed."""
        return self.reduces

    @property
    def shifts(self) -> bool:
        """Whether elements are taken relative to a maximum."""
        return self.reduces

    @property
    def modifiers(self) -> tuple[Hook, ...]:
        """The choice."""
        return (Choices(self.k, total=self.reduces, divided=self.renormalize),)

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, the choice, the upstream gradient, the scale, and dx, which may be x."""
        scale = number_input("scale", compute, "Compute", "finite: what weights are times", 1.0)
        return (
            element("x", dtype, "X"),
            row_input("weights", compute, "Compute", self.k),
            row_ids("ids", Integer.INT32, self.k),
            row_input("upstream", compute, "Compute", self.k),
            *((scale,) if self.renormalize else ()),
            element_result("dx", out_dtype, "Y", Measure.TERMS, may_be="x"),
        )

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return dx."""
        return (self._sum(*inputs, size=False),)

    def magnitudes(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the size of what is added up in dx."""
        import numpy as np

        size = self._sum(*inputs, size=True)
        return (np.where(np.isfinite(size), size, 0),)

    def _sum(self, x: Any, weights: Any, ids: Any, upstream: Any, *scale: Any, size: bool) -> Any:
        """Return dx, or the sum of the absolute values of its terms."""
        import numpy as np

        shape = (len(x), self.k)
        w, columns, up = (each.reshape(shape) for each in (weights, ids, upstream))
        w, up = (abs(w), abs(up)) if size else (w, up)
        if self.renormalize:
            mean = (w * up).sum(axis=1, keepdims=True) / (abs(scale[0]) if size else scale[0])
            up = up + mean if size else up - mean
        hit = np.zeros_like(x)
        np.put_along_axis(hit, columns.astype(np.int64), w * up, axis=1)
        if self.sigmoid:
            chosen = np.zeros_like(x, dtype=bool)
            np.put_along_axis(chosen, columns.astype(np.int64), True, axis=1)
            return np.where(chosen, hit / (1 + np.exp(x)), 0)
        if self.renormalize:
            return hit
        p, total = probabilities(x), (w * up).sum(axis=1, keepdims=True)
        return hit + size_of(p) * total if size else hit - p * total

    def other_inputs(self, x: Any) -> tuple[Any, ...]:
        """Return the choice from rows like `x`, gradients of both signs, and the scale."""
        import numpy as np

        scale = np.float64(2.5)
        of = TopkSoftmax(self.k, sigmoid=self.sigmoid, renormalize=self.renormalize)
        weights, ids = of.reference(x, scale)
        weights = np.where(weights < 1e-30, 0, weights)  # what terms of float32 may be, too
        upstream = (0.75 - np.arange(ids.size) % 4 * 0.25 * 3).reshape(ids.shape)
        return (weights, ids, upstream, *((scale,) if self.renormalize else ()))

    def timed_inputs(self, rows: int, cols: int) -> dict[str, Any]:
        """Return columns all over rows, equal weights, gradients of both signs, and a scale."""
        import numpy as np

        shape = (rows,) if self.k == 1 else (rows, self.k)
        first = np.random.default_rng(0).integers(0, cols, (rows, 1))
        apart = np.arange(self.k) * max(1, cols // self.k)  # a row has no column twice
        found: dict[str, Any] = {
            "ids": ((first + apart) % cols).reshape(shape),
            "weights": np.full(shape, 1 / self.k),
            "upstream": 0.75 - np.arange(rows * self.k).reshape(shape) % 4 * 0.25 * 3,
        }
        return {**found, "scale": np.float64(1.0)} if self.renormalize else found


TOPK_SOFTMAX_BACKWARD = TopkSoftmaxBackward()
FUNCTIONS = (
    TOPK_SOFTMAX_BACKWARD,
    TopkSoftmaxBackward(k=1, sigmoid=True),
    TopkSoftmaxBackward(k=6, renormalize=True),
    TopkSoftmaxBackward(k=20, sigmoid=True, renormalize=True),
)


NAMES = (
    f"topk_softmax_backward_k1 to topk_softmax_backward_k{MOST_CHOSEN}, then, in this order, "
    "_sigmoid and _norm"
)


def function_of(name: str) -> Function | None:
    """Return the function called `name`, or None."""
    match = re.fullmatch(r"topk_softmax_backward_k(\d+)(_sigmoid)?(_norm)?", name)
    if not match or not 1 <= int(match[1]) <= MOST_CHOSEN:
        return None
    found = TopkSoftmaxBackward(int(match[1]), bool(match[2]), bool(match[3]))
    return found if found.name == name else None


EXHIBITS = (Exhibit("gradient of that router", TOPK_SOFTMAX_BACKWARD, "bfloat16", 8192, 256),)
