"""sample: a column of each row, drawn by softmax(x / temperature), with its log-probability."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from softgen.problems.dtypes import DType, FloatType, Integer
from softgen.problems.functions.base import (
    Function,
    element,
    number_input,
    row_ids,
    row_input,
    row_result,
)
from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.hooks.base import Hook
from softgen.problems.hooks.draw import Draw, noise
from softgen.problems.hooks.temperature import Temperature
from softgen.problems.operands import Extent, Limit, Measure, Operand
from softgen.problems.parts import DRAW, TOP, Part

# How far a score may be from the exact one: of what logarithms round, and of sums relative to them.
_KEY_ERROR = {DType.FLOAT32: 4e-6, DType.FLOAT64: 4e-14}
_SUM_ERROR = {DType.FLOAT32: 2.0**-22, DType.FLOAT64: 2.0**-51}

# How far the sums and logarithms may be off that filters compare, relative to them.
_EDGE = 1e-5

CAPACITIES = (8, 16, 32, 64)  # of kernels that choose the top_k largest first

MOST_COLS = 2**31 - 2**22  # a thread keeps a column in 32 bits


@dataclass(frozen=True)
class Sample(Function):
    """The column with the largest x / temperature - log(E), of independent exponential E.

    Filters keep the first of a row in one order: larger elements, of equal ones the lower column.

    Attributes:
        filtered: whether only the largest elements are drawn, by min_p, top_k and top_p.
        k: if not 0, what top_k is at most, whose elements are chosen first.
        rows: whether each row has a temperature of its own, and filters of its own.
        seeds: whether each row has a seed of its own, so that its number makes no difference.
    """

    # What templates of a choice ask for.
    bias: ClassVar[bool] = False
    kept_groups: ClassVar[int] = 0

    filtered: bool = False
    rows: bool = False
    seeds: bool = False
    k: int = 0

    template = "sample"
    formula = "ids, drawn by softmax(x / temperature), and log p of them"
    call = "softgen.sample(x, seed=s)"
    non_finite = "a row with NaN or +inf, or of only -inf, gives log_probs NaN and id 0"
    remarks = ("a temperature below 0, or no finite number, gives log_probs NaN and id 0",)
    barred = frozenset({"sink"})  # a sink, which is no column that could be drawn

    @property
    def name(self) -> str:
        """As in names of kernels."""
        words = ["sample"] + [f"k{self.k}" if self.k else "filtered"] * self.filters
        return "_".join(words + ["rows"] * self.rows + ["seeds"] * self.seeds)

    @property
    def filters(self) -> bool:
        """Whether min_p, top_k and top_p are operands."""
        return self.filtered or self.k > 0

    @property
    def modifiers(self) -> tuple[Hook, ...]:
        """The temperature and the noise."""
        warm = Temperature(self.rows)
        return (warm,) if self.k else (warm, Draw(self.rows, self.seeds, self.filtered))

    @property
    def hookable(self) -> bool:
        """Not where elements are chosen first, of which a row that ends has too few."""
        return not self.k

    @property
    def like(self) -> str:
        """That which reads the same; where elements are chosen first other settings win."""
        return self.name if self.k else "logsumexp"

    @property
    def part(self) -> Part:
        """What a piece of a row reduces to."""
        return TOP if self.k else DRAW

    @property
    def chosen(self) -> int:
        """How many elements of a row are chosen before one is drawn of them, or 0."""
        return self.k

    @property
    def least_cols(self) -> int:
        """As many as are chosen."""
        return max(1, self.k)

    def objection(self, cols: int) -> str:
        """Return why a row of `cols` columns cannot be, or ""."""
        if cols < self.least_cols:
            return f"{self.name} takes rows of at least {self.k} columns, got {cols}"
        return "" if cols <= MOST_COLS else f"cols must be at most {MOST_COLS}, got {cols}"

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, the numbers, or arrays of one a row, the log-probability and the column."""
        kind = Integer.INT64
        seed = "any 64 bits: the key of Philox4x32-7"
        offset = "any 64 bits: the upper half of its counter"

        def of_row(name: str, accepts: str, default: float) -> Operand:
            if self.rows:
                return row_input(name, compute, "Compute")
            return number_input(name, compute, "Compute", accepts, default)

        top_k = "how many of the largest may be drawn, 0 or less for all"
        if self.k:
            top_k = f"how many of the largest may be drawn, from 1 to {self.k}; else it is {self.k}"
        filters = (
            row_ids("top_k", kind)
            if self.rows
            else number_input("top_k", kind, kind.cuda, top_k, 0),
            of_row("top_p", "the share of what is left that may be drawn, 1 for all", 1.0),
            of_row("min_p", "what may be drawn has this share of the largest, 0 for all", 0.0),
        )
        return (
            element("x", dtype, "X"),
            of_row("temperature", "0 or more; 0 takes the largest", 1.0),
            row_ids("seed", kind) if self.seeds else number_input("seed", kind, kind.cuda, seed, 0),
            number_input("offset", kind, kind.cuda, offset, 0),
            *(filters if self.filters else ()),
            row_result(
                *("log_probs", compute, "Compute", Measure.LOGARITHM), limit=Limit.AT_MOST_ZERO
            ),
            Operand("ids", kind, Extent.ROW, True, kind.cuda, measure=Measure.EXACT),
        )

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return log p and the column, of x over the temperature: NaN and 0 where there is none."""
        import numpy as np

        z, scores = inputs[0], self._noisy_scores(*inputs)
        if self.filters:
            scores = np.where(self._ranks(z) < self._kept(*inputs)[:, None], scores, -np.inf)
        return self._results(z, np.where(self._bad(z), 0, scores.argmax(axis=1)))

    def settled(
        self, exact: tuple[Any, ...], found: tuple[Any, ...], *inputs: Any, off: Any = 0.0
    ) -> Any:
        """Return the exact results, of the columns that were `found` where those are as right.

        They are where scores differ by no more than their error and what hooks leave them off,
        without noise none, and where they are at the edge of what filters keep.
        """
        import numpy as np

        z, warm = inputs[0], np.broadcast_to(inputs[1], len(inputs[0]))
        scores, off = self._noisy_scores(*inputs), self._error(z, off)
        ids, others = np.array(exact[1]).astype(np.int64), np.asarray(found[1]).astype(np.int64)
        inside = (others >= 0) & (others < z.shape[1]) & ~self._bad(z) & (warm != 0)
        if self.filters:
            ranks, most = self._ranks(z), self._kept(*inputs, slack=_EDGE)
            inside &= np.take_along_axis(ranks, others[:, None] * inside[:, None], 1)[:, 0] < most
            surely = ranks < self._kept(*inputs, slack=-_EDGE)[:, None]
            best = np.where(surely, scores, -np.inf).max(axis=1)
        else:
            best = scores.max(axis=1)
        for row in np.flatnonzero((ids != others) & inside):
            if scores[row, others[row]] >= best[row] - 2 * off[row]:
                ids[row] = others[row]
        return self._results(z, ids)

    @staticmethod
    def _error(z: Any, off: Any) -> Any:
        """Return how far scores of each row may be from the exact ones."""
        import numpy as np

        finite = np.where(np.isfinite(z), z, 0)
        wide = bool((finite.astype(np.float32) != finite).any())
        kind = DType.FLOAT64 if wide else DType.FLOAT32
        rounded = _SUM_ERROR[kind] * abs(finite).max(axis=1, keepdims=True)
        return (_KEY_ERROR[kind] + np.maximum(rounded, off))[:, 0]

    @staticmethod
    def _ranks(z: Any) -> Any:
        """Return how many elements of its row come before each: larger ones, and lower columns."""
        import numpy as np

        order = np.argsort(-z, axis=1, kind="stable")
        return np.argsort(order, axis=1, kind="stable")

    def _kept(self, z: Any, *inputs: Any, slack: float = 0.0) -> Any:
        """Return how many of each row the filters keep, with `slack` of their numbers."""
        import numpy as np

        top_k, top_p, min_p = (np.broadcast_to(each, len(z)) for each in inputs[3:])
        with np.errstate(all="ignore"):
            low = np.log(min_p.astype(np.float64)) - slack
            below = np.sort(z, axis=1)[:, ::-1] - z.max(axis=1, keepdims=True)
            count = (below >= low[:, None]).sum(axis=1)
            most = self.k or z.shape[1]
            count = np.minimum(count, np.where(top_k > 0, np.minimum(top_k, most), most))
            terms = np.where(np.arange(z.shape[1]) < count[:, None], np.exp(below), 0)
            total = terms.cumsum(axis=1)
            share = top_p * total[:, -1] * (1 + slack)
            by_mass = (total - terms < share[:, None]).sum(axis=1)
        return np.maximum(1, np.where(top_p < 1, np.minimum(count, by_mass), count))

    def _noisy_scores(self, z: Any, temperature: Any, seed: Any, offset: Any, *_: Any) -> Any:
        """Return what the choice is made of, exactly."""
        import numpy as np

        noisy = np.broadcast_to(temperature, len(z)) != 0
        return z - np.where(noisy[:, None], noise(len(z), z.shape[1], seed, int(offset)), 0)

    @staticmethod
    def _bad(z: Any) -> Any:
        """Return which rows have no sample."""
        import numpy as np

        return ~np.isfinite(z.max(axis=1))

    def _results(self, z: Any, ids: Any) -> tuple[Any, ...]:
        """Return log p of columns, and the columns."""
        import numpy as np

        z = z.astype(np.result_type(z, np.float64))
        picked = np.take_along_axis(z, ids[:, None], axis=1)[:, 0]
        top = z.max(axis=1)
        with np.errstate(invalid="ignore"):
            log_probs = (picked - top) - np.log(np.exp(z - top[:, None]).sum(axis=1))
        return np.where(self._bad(z), np.nan, log_probs), ids

    def other_inputs(self, x: Any) -> tuple[Any, ...]:
        """Return temperatures, 0 and odd ones among them, seeds that rows share, and an offset."""
        import numpy as np

        rows = np.arange(len(x))
        warm = np.array([0.7, 1.0, 0.0, 2.5, 30.0])[rows % 5] if self.rows else np.float64(0.7)
        seeds = np.array([5, -(2**62) - 3, 2**40 + 12345])[rows % 3]
        found = (warm, seeds if self.seeds else np.int64(2**40 + 12345), np.int64(2**33 + 7))
        if not self.filters:
            return found
        if not self.rows:
            return (*found, np.int64(20), np.float64(0.75), np.float64(0.015625))
        top_k = np.array([0, 1, 7, 1000, 40, 0, -1])[rows % 7]
        top_p = np.array([0.9, 0.75, 1.0, 0.125, 0.0, 0.5, 2.0])[rows % 7]
        return (*found, top_k, top_p, np.array([0.0, 0.0625, 0.5])[rows % 3])

    def timed_inputs(self, rows: int, cols: int) -> dict[str, Any]:
        """Return a temperature and seeds."""
        import numpy as np

        found: dict[str, Any] = {"offset": np.int64(0)}
        found["temperature"] = np.full(rows, 0.7) if self.rows else np.float64(0.7)
        found["seed"] = np.arange(rows) if self.seeds else np.int64(1)
        if self.filters:
            one = np.ones(rows) if self.rows else np.float64(1)
            # Sums decide at the edge of top_p, where kernels that are compared may differ.
            share = one if self.k else 0.9 * one
            found |= {"top_k": (50 * one).astype(np.int64), "top_p": share, "min_p": 0.01 * one}
        return found


SAMPLE = Sample()
FUNCTIONS = (
    SAMPLE,
    Sample(rows=True, seeds=True),
    Sample(filtered=True),
    Sample(filtered=True, rows=True, seeds=True),
    Sample(k=8),
    Sample(k=32, rows=True, seeds=True),
)

NAMES = (
    f"sample, sample_filtered, {', '.join(f'sample_k{k}' for k in CAPACITIES)}, then, in this "
    "order, _rows and _seeds"
)
_NAME = re.compile(r"sample(_filtered)?(?:_k(\d+))?(_rows)?(_seeds)?")


def function_of(name: str) -> Function | None:
    """Return the function called `name`, or None."""
    if not (match := _NAME.fullmatch(name)):
        return None
    k = int(match[2] or 0)
    found = Sample(bool(match[1]), bool(match[3]), bool(match[4]), k)
    return found if k in (0, *CAPACITIES) and found.name == name else None


EXHIBITS = (
    Exhibit("a token of each sequence, Llama 3 vocabulary", SAMPLE, "bfloat16", 64, 128256),
)
