"""ranked_log_probs: what serving returns of tokens: log p and rank of each, and the row's best."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from softgen.problems.dtypes import DType, FloatType, Integer
from softgen.problems.functions.base import element, lse_result, row_result
from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.functions.softmax import log_sum_exp
from softgen.problems.functions.token_log_probs import MOST_IDS, OfIds, log_probs_of
from softgen.problems.functions.topk_softmax import MOST_CHOSEN, TopkSoftmax, past_int32
from softgen.problems.hooks.base import Hook
from softgen.problems.hooks.ids import Ids
from softgen.problems.operands import Extent, Limit, Measure, Operand
from softgen.problems.parts import TOP

UNRANKED = -1  # the rank of what has no log-probability


@dataclass(frozen=True)
class RankedLogProbs(OfIds):
    """log_softmax(x) at the ids of each row and at its k largest elements, and the ids' ranks.

    Attributes:
        k: how many of a row are chosen.
    """

    stem = "ranked_log_probs"
    bias: ClassVar[bool] = False
    renormalize: ClassVar[bool] = False

    k: int = 20

    non_finite = "a row with NaN or +inf, or of only -inf, gives NaN; a rank beside NaN is -1"
    remarks = (
        "the best come largest first, of equal ones the lower column; their columns are top_ids",
        "a rank is how many elements of the row are larger; an id that is no column has NaN and -1",
    )
    barred = frozenset({"sink"})  # a sink, which is no column that an id could name
    shardable = False  # shards exchange no choices
    part = TOP

    @property
    def options(self) -> str:
        """What is in its name of what it gives beside."""
        return f"_top{self.k}"

    @property
    def formula(self) -> str:
        """What the kernel computes."""
        return f"log_softmax(x) of ids, with ranks, and its {self.k} largest"

    @property
    def call(self) -> str:
        """How people call it on arrays."""
        return f"softgen.token_log_probs(x, ids, topk={self.k})"

    @property
    def modifiers(self) -> tuple[Hook, ...]:
        """The ids."""
        return (Ids(self.count, later=True),)

    @property
    def chosen(self) -> int:
        """How many elements of a row are chosen."""
        return self.k

    @property
    def ranked(self) -> int:
        """How many elements of a row are ranked."""
        return self.count

    @property
    def least_cols(self) -> int:
        """As many as are chosen."""
        return self.k

    def objection(self, cols: int) -> str:
        """Return why a row of `cols` columns cannot be, or ""."""
        if wide := past_int32("columns and ranks", cols):
            return wide
        return f"topk must be at most the {cols} columns, got {self.k}" if self.k > cols else ""

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, ids, their log-probabilities, those of the best, their columns, ranks, lse."""
        known = (compute, "Compute", Measure.LOGARITHM)
        return (
            element("x", dtype, "X"),
            self.columns,
            row_result("log_probs", *known, self.count, limit=Limit.AT_MOST_ZERO),
            row_result("top_log_probs", *known, self.k, limit=Limit.AT_MOST_ZERO),
            _integers("top_ids", self.k),
            _integers("ranks", self.count),
            lse_result(compute),
        )

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the results: of a row with NaN the first columns, and ranks of -1."""
        import numpy as np

        x, ids = inputs
        log_probs = log_probs_of(x, ids)
        ranks = np.where(np.isnan(log_probs), UNRANKED, self._above(x, ids, 0.0))
        top_ids = TopkSoftmax(self.k).reference(x, np.float64(1))[1]
        best = log_probs_of(x, top_ids)
        return log_probs, best, top_ids, ranks.astype(np.int32), log_sum_exp(x)

    def settled(
        self, exact: tuple[Any, ...], found: tuple[Any, ...], *inputs: Any, off: Any = 0.0
    ) -> Any:
        """Return the exact results, of the columns and with the ranks `found` that are as right.

        They are where elements differ by no more than they may be off.
        """
        import numpy as np

        x, ids = inputs[0].astype(np.longdouble), inputs[1]  # what hooks left has the kernel's type
        log_probs, best, top_ids, ranks, lse = exact
        scores = (best, top_ids), (found[1], found[2])
        _, top_ids = TopkSoftmax(self.k).settled(*scores, x, np.float64(1), off=off)
        off = 2.0**-126 + off  # subnormal numbers are 0
        near = (found[3] >= self._above(x, ids, off)) & (found[3] <= self._above(x, ids, -off))
        ranks = np.where((ranks != UNRANKED) & near, found[3], ranks)
        best = log_probs_of(x, top_ids).astype(best.dtype)
        return log_probs, best, top_ids, ranks, lse

    def of_columns(self, columns: Any, *inputs: Any) -> tuple[Any, ...]:
        """Return the results with those columns as the best."""
        x, ids = inputs
        log_probs, best, top_ids, ranks, lse = self.reference(x, ids)
        best = log_probs_of(x, columns.reshape(top_ids.shape))
        return log_probs, best, columns.reshape(top_ids.shape), ranks, lse

    def _above(self, x: Any, ids: Any, by: Any) -> Any:
        """Return how many elements of its row are larger than each id's by more than `by`."""
        import numpy as np

        columns = ids.reshape(len(x), self.count).astype(np.int64)
        known = np.where((columns >= 0) & (columns < x.shape[1]), columns, 0)
        picked = np.take_along_axis(x, known, axis=1) + by
        found = (x[:, None, :] > picked[:, :, None]).sum(axis=2)
        return found.reshape(ids.shape)

    def other_inputs(self, x: Any) -> tuple[Any, ...]:
        """Return ids of all kinds: in each fourth row the largest column, for one."""
        ids = self.some_ids(*x.shape)
        ids.reshape(len(x), -1)[3::4, 0] = x[3::4].argmax(axis=1).tolist()  # x may be CuPy's
        return (ids,)


def _integers(name: str, width: int) -> Operand:
    """Return a result of integers of a row."""
    kind = Integer.INT32
    return Operand(name, kind, Extent.ROW, True, kind.cuda, measure=Measure.EXACT, width=width)


RANKED_LOG_PROBS = RankedLogProbs()
FUNCTIONS = (
    RANKED_LOG_PROBS,
    RankedLogProbs(Integer.INT32),
    RankedLogProbs(count=3, k=1),
    RankedLogProbs(Integer.INT32, count=3, k=1),
)

NAMES = (
    f"ranked_log_probs_top1 to ranked_log_probs_top{MOST_CHOSEN}, then, in this order, _i32 for "
    f"ids of 32 bits and _k2 to _k{MOST_IDS} for so many ids a row"
)
_NAME = re.compile(r"ranked_log_probs_top(\d+)(_i32)?(?:_k(\d+))?")


def function_of(name: str) -> RankedLogProbs | None:
    """Return the function called `name`, or None."""
    if not (match := _NAME.fullmatch(name)):
        return None
    kind = Integer.INT32 if match[2] else Integer.INT64
    found = RankedLogProbs(kind, int(match[3] or 1), int(match[1]))
    fits = 1 <= found.k <= MOST_CHOSEN and 1 <= found.count <= MOST_IDS
    return found if fits and found.name == name else None


EXHIBITS = (Exhibit("a server's 20 best tokens of 1024", RANKED_LOG_PROBS, "bfloat16", 4096, 1024),)
