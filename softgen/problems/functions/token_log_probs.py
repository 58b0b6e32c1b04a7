"""token_log_probs: the log-probabilities of chosen columns, a few numbers a row; x is read once."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar

from softgen.problems.dtypes import DType, FloatType, Integer
from softgen.problems.functions.base import Function, element, lse_result, row_ids, row_result
from softgen.problems.functions.entropy import entropy_of, entropy_result
from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.functions.softmax import log_sum_exp
from softgen.problems.hooks.base import Hook
from softgen.problems.hooks.ids import Ids
from softgen.problems.operands import Limit, Measure, Operand
from softgen.problems.parts import MAX_SUM, MAX_SUM_DOT, Part

MOST_IDS = 64  # of a row


@dataclass(frozen=True)
class OfIds(Function):
    """Base of functions of x and of some columns of each row.

    Attributes:
        ids: the type of the columns' numbers.
        count: how many each row has.
    """

    stem: ClassVar[str]

    ids: Integer = Integer.INT64
    count: int = 1

    @property
    def name(self) -> str:
        """As in names of kernels."""
        kind = "" if self.ids is Integer.INT64 else f"_{self.ids.short}"
        return f"{self.stem}{self.options}{kind}{f'_k{self.count}' if self.count > 1 else ''}"

    @property
    def options(self) -> str:
        """What is in its name of what it gives beside."""
        return ""

    @property
    def template(self) -> str:
        """The stem of its template."""
        return self.stem

    @property
    def twin(self) -> str:
        """That of 64-bit numbers, for the other."""
        return "" if self.ids is Integer.INT64 else self.name.replace(f"_{self.ids.short}", "", 1)

    @property
    def columns(self) -> Operand:
        """The columns of each row."""
        return row_ids("ids", self.ids, self.count)

    def timed_inputs(self, rows: int, cols: int) -> dict[str, Any]:
        """Return columns anywhere in the row."""
        import numpy as np

        drawn = np.random.default_rng(0).integers(0, cols, (rows, self.count))
        return {"ids": drawn.reshape(self.columns.shape(rows, cols))}

    def some_ids(self, rows: int, cols: int) -> Any:
        """Return the first, the last and other columns, and numbers that are none, by turns."""
        import numpy as np

        kinds = [0, cols - 1, cols // 2, cols, 1, -1, 7 * cols // 8, cols + 2**30, cols // 3]
        row, k = np.ix_(np.arange(rows), np.arange(self.count))
        found = np.array(kinds)[(row + 3 * k) % len(kinds)]
        return found.reshape(self.columns.shape(rows, cols))


@dataclass(frozen=True)
class TokenLogProbs(OfIds):
    """(x[id] - m) - log(d) of each id of a row: m = max(x), d = sum(exp(x - m)).

    Attributes:
        lse: whether log(sum(exp(x))) of the row is a result too, in the type of the arithmetic.
        entropy: whether the row's entropy is one, before lse, which then is too.
    """

    stem = "token_log_probs"

    lse: bool = False
    entropy: bool = False

    non_finite = (
        "log_probs is NaN for a row with NaN or +inf, or of only -inf, and for an id that is "
        "no column"
    )
    barred = frozenset({"sink"})  # a sink, which is no column that an id could name
    like = "logsumexp"  # which reads the same

    @property
    def options(self) -> str:
        """What is in its name of what it gives beside."""
        return "_entropy" if self.entropy else "_lse" if self.lse else ""

    @property
    def formula(self) -> str:
        """What the kernel computes."""
        entropy = "; entropy of softmax(x)" if self.entropy else ""
        lse = "; lse = log(sum(exp(x)))" if self.lse else ""
        return f"log_probs = log_softmax(x)[ids]{entropy}{lse}"

    @property
    def call(self) -> str:
        """How people call it on arrays."""
        option = "return_entropy" if self.entropy else "return_lse"
        return f"softgen.token_log_probs(x, ids{f', {option}=True' if self.lse else ''})"

    @property
    def modifiers(self) -> tuple[Hook, ...]:
        """The ids."""
        return (Ids(self.count),)

    @property
    def part(self) -> Part:
        """What a piece of a row reduces to."""
        return MAX_SUM_DOT if self.entropy else MAX_SUM

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, ids, log_probs, and, if asked for, the entropy and lse."""
        found = [
            element("x", dtype, "X"),
            self.columns,
            row_result(
                *("log_probs", out_dtype, "Y", Measure.LOGARITHM, self.count),
                limit=Limit.AT_MOST_ZERO,
            ),
        ]
        if self.entropy:
            found.append(entropy_result(out_dtype))
        if self.lse:
            found.append(lse_result(compute))
        return tuple(found)

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return log_probs, NaN where an id is no column, and what else is asked for."""
        x, ids = inputs
        found = [log_probs_of(x, ids)]
        if self.entropy:
            found.append(entropy_of(x))
        if self.lse:
            found.append(log_sum_exp(x))
        return tuple(found)

    def other_inputs(self, x: Any) -> tuple[Any, ...]:
        """Return ids of all kinds: in each fourth row the largest column, for one."""
        ids = self.some_ids(*x.shape)
        ids.reshape(len(x), -1)[3::4, 0] = x[3::4].argmax(axis=1).tolist()  # x may be CuPy's
        return (ids,)


def log_probs_of(x: Any, ids: Any) -> Any:
    """Return log_softmax(x) at the columns `ids` of each row, of their shape."""
    import numpy as np

    columns = ids.reshape(len(x), math.prod(ids.shape[1:])).astype(np.int64)
    m = x.max(axis=-1, keepdims=True)
    known = (columns >= 0) & (columns < x.shape[1])
    picked = np.take_along_axis(x, np.where(known, columns, 0), axis=-1)
    found = (picked - m) - np.log(np.exp(x - m).sum(axis=-1, keepdims=True))
    return np.where(known, found, np.nan).reshape(ids.shape)


def counted(kinds: tuple[OfIds, ...], name: str) -> OfIds | None:
    """Return the function called `name`, one of `kinds` of several ids a row, or None."""
    match = re.fullmatch(r"(\w+)_k([1-9]\d?)", name)
    if match and 1 < int(match[2]) <= MOST_IDS:
        for kind in kinds:
            if kind.name == match[1]:
                return dataclasses.replace(kind, count=int(match[2]))
    return None


TOKEN_LOG_PROBS = TokenLogProbs()
FUNCTIONS = tuple(
    TokenLogProbs(ids, 1, lse, entropy)
    for lse, entropy in ((False, False), (True, False), (True, True))
    for ids in (Integer.INT64, Integer.INT32)
)


def function_of(name: str) -> Function | None:
    """Return the function called `name` of several ids a row, or None."""
    return counted(FUNCTIONS, name)


EXHIBITS = (
    Exhibit("Qwen vocabulary, tokens that were drawn", TOKEN_LOG_PROBS, "bfloat16", 8192, 151936),
)
