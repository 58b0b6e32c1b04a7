"""topk_softmax: the largest scores of a row with their columns, as routers of experts choose."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from softgen.problems.dtypes import FLOAT32_TINY, DType, FloatType, Integer
from softgen.problems.functions.base import Function, element, number_input, row_result
from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.operands import Extent, Measure, Operand
from softgen.problems.parts import TOP

MOST_CHOSEN = 64  # of a row
MOST_GROUPS = 32  # a lane ranks one each

# How far a choice may be from the exact one, relative to the score and to what is compared: scores
# carry the error of an exponential and of a sum.
_SCORE_ERROR = {DType.FLOAT32: 4e-6, DType.FLOAT64: 4e-14}
# Below it a score is 0: of float32 -ftz=true leaves no smaller number.
_LEAST_SCORE = {DType.FLOAT32: FLOAT32_TINY, DType.FLOAT64: 2.0**-1074}
_SUM_ERROR = {DType.FLOAT32: 2.0**-22, DType.FLOAT64: 2.0**-51}


def past_int32(what: str, cols: int) -> str:
    """Return why results of int32 do not name all of `cols` columns, or ""."""
    many = f"{what} are int32: x may have up to 2**31 - 1 columns, got {cols}"
    return many if cols >= 2**31 else ""


@dataclass(frozen=True)
class Chosen(Function):
    """What the choice of a row's largest scores and its gradient have in common.

    Attributes:
        k: how many of a row are chosen.
        sigmoid: whether scores are sigmoid(x), and not softmax(x).
    """

    k: int = 8
    sigmoid: bool = False

    shardable = False  # shards exchange no choices

    @property
    def least_cols(self) -> int:
        """As many as are chosen."""
        return self.k

    def objection(self, cols: int) -> str:
        """Return why a row of `cols` columns cannot be, or ""."""
        if wide := past_int32("ids", cols):
            return wide
        return f"k must be at most the {cols} columns, got {self.k}" if self.k > cols else ""


@dataclass(frozen=True)
class TopkSoftmax(Chosen):
    """The `k` largest scores of each row, largest first, ties to the lower column.

    Attributes:
        bias: whether a number a column is added to the scores, for the choice alone.
        groups: into how many groups of adjacent columns a row is cut, or 0.
        kept_groups: how many groups are chosen from: those with the largest sum of two scores, or
            without a bias with the largest score.
        renormalize: whether weights are divided by their sum.
    """

    bias: bool = False
    groups: int = 0
    kept_groups: int = 0
    renormalize: bool = False

    template = "topk_softmax"
    part = TOP
    # It has a scale of its own, of weights. A row that ends may have fewer columns than are chosen.
    barred = frozenset({"scale", "sink", "lengths", "causal"})

    @property
    def name(self) -> str:
        """As in names of kernels."""
        return f"topk_softmax_{self.options}"

    @property
    def options(self) -> str:
        """What stands behind the stem of its name."""
        words = [f"k{self.k}"]
        words += ["sigmoid"] * self.sigmoid + ["bias"] * self.bias
        words += [f"g{self.groups}of{self.kept_groups}"] * bool(self.groups)
        return "_".join(words + ["norm"] * self.renormalize)

    @property
    def formula(self) -> str:
        """What the kernel computes."""
        scores = "sigmoid(x)" if self.sigmoid else "softmax(x)"
        of = f", {self.kept_groups} of {self.groups} groups" if self.groups else ""
        return f"the {self.k} largest of {scores}{' + choice_bias' * self.bias}{of}"

    @property
    def call(self) -> str:
        """How people call it on arrays."""
        return f"softgen.topk_softmax(x, k={self.k})"

    @property
    def non_finite(self) -> str:
        """What a row with NaN or an infinity gives, for the header of an emitted file."""
        rows = "NaN" if self.sigmoid else "NaN or +inf, or of only -inf,"
        return f"a row with {rows} gives NaN and the first ids; -inf has weight 0"

    @property
    def remarks(self) -> tuple[str, ...]:
        """The order, and what a bias has no part in."""
        scores = "sigmoid(x)" if self.sigmoid else "softmax(x)"
        order = "the chosen come largest first, of equal ones the lower column"
        return (order, *([f"weights are of {scores}, without choice_bias"] * self.bias))

    @property
    def chosen(self) -> int:
        """How many elements of a row are chosen."""
        return self.k

    @property
    def chooses_scores(self) -> bool:
        """Whether the choice is made of scores, and not of x, whose order they have."""
        return self.bias

    @property
    def sums(self) -> bool:
        """Whether a row's sum is needed."""
        return not self.sigmoid and (self.chooses_scores or not self.renormalize)

    @property
    def least_cols(self) -> int:
        """As many as are chosen, of the groups that are kept."""
        return self.groups * -(-self.k // self.kept_groups) if self.groups else self.k

    def objection(self, cols: int) -> str:
        """Return why a row of `cols` columns cannot be, or ""."""
        if not self.groups or past_int32("ids", cols):
            return super().objection(cols)
        if cols % self.groups:
            return f"groups must divide the columns, got {self.groups} and {cols}"
        kept = cols // self.groups * self.kept_groups
        too_few = f"k must be at most the {kept} columns of the groups that are kept, got {self.k}"
        return too_few if self.k > kept else ""

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, the bias if there is one, the scale, the weights and their columns."""
        weights = "weights, whose sum is 1," if self.renormalize else "weights"
        bias = Operand("choice_bias", compute, Extent.COLUMN, False, "Compute")
        ids = Operand(
            *("ids", Integer.INT32, Extent.ROW, True, "int"), measure=Measure.EXACT, width=self.k
        )
        return (
            element("x", dtype, "X"),
            *((bias,) if self.bias else ()),
            number_input("scale", compute, "Compute", f"finite: what {weights} are times", 1.0),
            row_result("weights", compute, "Compute", Measure.VALUE, self.k),
            ids,
        )

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return weights and ids: of a row with NaN, NaN and the first columns."""
        import numpy as np

        x, compared, bad = inputs[0], self.compared(*inputs), self._bad(*inputs)
        if self.groups:
            kept = self._ranks(compared) < self.kept_groups
            compared = np.where(self._of_columns(kept, x), compared, -np.inf)
            inside = self._of_columns(kept, x)
            ids = np.lexsort((np.broadcast_to(np.arange(x.shape[1]), x.shape), -compared, ~inside))
        else:
            ids = np.argsort(-compared, axis=1, kind="stable")
        ids = np.where(bad[:, None], np.arange(x.shape[1]), ids)[:, : self.k]
        return self._shaped(self._weights(ids, bad, *inputs), ids.astype(np.int32))

    def settled(
        self, exact: tuple[Any, ...], found: tuple[Any, ...], *inputs: Any, off: Any = 0.0
    ) -> Any:
        """Return the exact results, of the columns that were `found` where those are as right.

        They are where what is compared differs by no more than its error.
        """
        import numpy as np

        x, bad = inputs[0], self._bad(*inputs)
        compared, off = self.compared(*inputs), self._error(*inputs) + off
        ids = np.array(exact[1]).reshape(len(x), self.k)
        others = np.asarray(found[1]).reshape(ids.shape)
        for row in np.flatnonzero((ids != others).any(axis=1) & ~bad):
            if self._as_right(others[row], compared[row], off[row], inputs[0][row]):
                ids[row] = others[row]
        return self._shaped(self._weights(ids, bad, *inputs), ids)

    def _as_right(self, found: Any, compared: Any, off: Any, x: Any) -> bool:
        """Return whether a row's columns are a choice within the error of what is compared."""
        import numpy as np

        cols = len(x)
        if len(set(found.tolist())) < self.k or found.min() < 0 or found.max() >= cols:
            return False
        inside = np.ones(cols, bool)
        if self.groups:  # those that may be kept, those of the columns that were found first
            size = cols // self.groups
            by_group = compared.reshape(self.groups, size)
            ranks = self._ranks(compared[None])[0]
            last = int(np.flatnonzero(ranks == self.kept_groups - 1)[0])
            scores = np.sort(by_group, axis=1)[:, -2 if self.bias and size > 1 else -1 :].sum(
                axis=1
            )
            spread = 4 * off.max()
            sure = scores > scores[last] + spread
            near = (scores == scores[last]) | (abs(scores - scores[last]) <= spread)
            maybe = near & ~sure
            used = np.isin(np.arange(self.groups), found // size)
            order = np.lexsort((ranks, ~used, ~maybe, ~sure))[: self.kept_groups]
            inside = np.isin(np.arange(self.groups), order).repeat(size)
        if not inside[found].all():
            return False
        wanted = np.sort(compared[inside])[::-1][: self.k]
        with np.errstate(invalid="ignore"):
            near = (compared[found] == wanted) | (abs(compared[found] - wanted) <= 2 * off[found])
        if not near.all():
            return False
        # Of elements that are alike, and are compared alike, the lower column comes first.
        alike = (x[found[1:]] == x[found[:-1]]) & (compared[found[1:]] == compared[found[:-1]])
        if (alike & (found[1:] < found[:-1])).any():
            return False
        left = np.setdiff1d(np.flatnonzero(inside), found)
        return not any(
            ((x[left] == x[id]) & (compared[left] == compared[id]) & (left < id)).any()
            for id in found
        )

    def compared(self, *inputs: Any) -> Any:
        """Return what the choice is made of: of scores alone, x, which has their order.

        A score that the arithmetic has no number for, as that of -inf, comes last.
        """
        import numpy as np

        x = inputs[0]
        if not self.bias:
            return x
        scores = self._scores(x)
        return np.where(scores < _LEAST_SCORE[_kind_of(x)], -np.inf, scores + inputs[1])

    def of_columns(self, columns: Any, *inputs: Any) -> tuple[Any, ...]:
        """Return the weights of those columns, and them."""
        weights = self._weights(columns, self._bad(*inputs), *inputs)
        return self._shaped(weights, columns)

    def other_inputs(self, x: Any) -> tuple[Any, ...]:
        """Return a bias, two columns alike, and a scale that is no power of two.

        The bias takes what is compared of small scores below 0.
        """
        import numpy as np

        bias = np.sin(np.arange(x.shape[1]) // 2 * 1.7) / 4 - 0.25
        return (*((bias,) if self.bias else ()), np.float64(2.5))

    def timed_inputs(self, rows: int, cols: int) -> dict[str, Any]:
        """Return a bias of a number a column, which 16 bits hold, and a scale."""
        import numpy as np

        bias = {"choice_bias": np.round(np.sin(np.arange(cols)) * 64) / 256} if self.bias else {}
        return {**bias, "scale": np.float64(1.0)}

    def _scores(self, x: Any) -> Any:
        """Return softmax(x) or sigmoid(x)."""
        import numpy as np

        if self.sigmoid:
            return np.exp(np.minimum(x, 0)) / (1 + np.exp(-abs(x)))
        terms = np.exp(x - x.max(axis=1, keepdims=True))
        return terms / terms.sum(axis=1, keepdims=True)

    def _error(self, *inputs: Any) -> Any:
        """Return by how much what is compared may be off: of x, subnormal numbers are 0."""
        import numpy as np

        x = inputs[0]
        kind = _kind_of(x)
        if not self.chooses_scores:
            return np.full(x.shape, 2.0**-126)
        scores = self._scores(x)
        compared = self.compared(*inputs)
        finite = np.where(np.isfinite(compared), compared, 0)  # of infinity nothing is rounded
        return _SCORE_ERROR[kind] * scores + _SUM_ERROR[kind] * abs(finite) + 2.0**-126

    def _bad(self, *inputs: Any) -> Any:
        """Return which rows give NaN."""
        import numpy as np

        x = inputs[0]
        compared = self.compared(*inputs) if self.chooses_scores else x
        bad = np.isnan(compared).any(axis=1) | np.isnan(x).any(axis=1)
        if not self.sigmoid:
            bad |= ~np.isfinite(x.max(axis=1))
        return bad

    def _ranks(self, compared: Any) -> Any:
        """Return the rank of each group of each row, 0 for the best."""
        import numpy as np

        size = compared.shape[1] // self.groups
        sorted_ones = np.sort(compared.reshape(len(compared), self.groups, size), axis=2)
        scores = sorted_ones[:, :, -2 if self.bias else -1 :].sum(axis=2)
        return np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1, kind="stable")

    def _of_columns(self, of_groups: Any, x: Any) -> Any:
        return of_groups.repeat(x.shape[1] // self.groups, axis=1)

    def _weights(self, ids: Any, bad: Any, *inputs: Any) -> Any:
        import numpy as np

        x, scale = inputs[0], inputs[-1]
        picked = np.take_along_axis(x, ids.astype(np.int64), axis=1)
        if self.renormalize:  # by scores that have no exponent too small to be a number
            top = picked.max(axis=1, keepdims=True)
            if self.sigmoid:
                top = np.minimum(top, 0)
                scores = np.exp(np.minimum(picked, 0) - top) / (1 + np.exp(-abs(picked)))
            else:
                scores = np.exp(picked - top)
            scores = scores / scores.sum(axis=1, keepdims=True)
        else:
            scores = np.take_along_axis(self._scores(x), ids.astype(np.int64), axis=1)
        return np.where(bad[:, None], np.nan, scores * scale)

    def _shaped(self, weights: Any, ids: Any) -> tuple[Any, ...]:
        """Return both without the axis of one column a row."""
        return (weights[:, 0], ids[:, 0]) if self.k == 1 else (weights, ids)


def _kind_of(x: Any) -> DType:
    """Return the type of the arithmetic that a reference in x's type judges."""
    return DType.FLOAT64 if x.dtype.itemsize > 8 else DType.FLOAT32


TOPK_SOFTMAX = TopkSoftmax()
FUNCTIONS = (
    TOPK_SOFTMAX,
    TopkSoftmax(k=1, sigmoid=True),
    TopkSoftmax(k=6, sigmoid=True, bias=True),
    TopkSoftmax(k=20, renormalize=True),
)

NAMES = (
    f"topk_softmax_k1 to topk_softmax_k{MOST_CHOSEN}, then, in this order, _sigmoid, _bias, _g8of4 "
    f"for 4 of 8 groups, of {MOST_GROUPS} at most, and _norm"
)
_NAME = re.compile(r"topk_softmax_k(\d+)(_sigmoid)?(_bias)?(?:_g(\d+)of(\d+))?(_norm)?")


def function_of(name: str) -> Function | None:
    """Return the function called `name`, or None."""
    if not (match := _NAME.fullmatch(name)):
        return None
    k, groups, kept = int(match[1]), int(match[4] or 0), int(match[5] or 0)
    found = TopkSoftmax(k, bool(match[2]), bool(match[3]), groups, kept, bool(match[6]))
    fits = 1 <= k <= MOST_CHOSEN and groups <= MOST_GROUPS and (1 <= kept <= groups or not groups)
    return found if fits and found.name == name else None


EXHIBITS = (Exhibit("a router of 256 experts, the best 8", TOPK_SOFTMAX, "bfloat16", 8192, 256),)
