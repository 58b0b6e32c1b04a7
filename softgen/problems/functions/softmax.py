"""softmax: exp(x - max) / sum(exp(x - max)), and with it, if asked for, log(sum(exp(x)))."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

from softgen.problems.dtypes import DType, FloatType
from softgen.problems.functions.base import Function, element, element_result, lse_result
from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.operands import Limit, Measure, Operand


@dataclass(frozen=True)
class Normalized(Function):
    """An element a column whose row sums to one, or the logarithm of that.

    Attributes:
        lse: whether log(sum(exp(x))) of the row is a second result, in the type of the arithmetic.
    """

    stem: ClassVar[str]
    measure: ClassVar[Measure]
    limit: ClassVar[Limit]

    lse: bool = False

    writes_float8 = True
    like = "softmax"  # whose bytes it moves with the same launch

    @property
    def name(self) -> str:
        """As in names of kernels."""
        return f"{self.stem}_lse" if self.lse else self.stem

    @property
    def formula(self) -> str:
        """What the kernel computes."""
        return f"y = {self.stem}(x)" + (", lse = log(sum(exp(x)))" if self.lse else "")

    @property
    def call(self) -> str:
        """How people call it on arrays."""
        return f"softgen.{self.stem}(x{', return_lse=True' if self.lse else ''})"

    @property
    def non_finite(self) -> str:
        """What a row with NaN or an infinity gives, for the header of an emitted file."""
        nothing = "0" if self.measure is Measure.VALUE else "-inf"
        lse = "(lse: NaN, +inf, -inf)" if self.lse else "everywhere"
        return (
            f"a row with NaN or +inf, or of only -inf, gives NaN {lse}; else -inf gives {nothing}"
        )

    @property
    def template(self) -> str:
        """The stem of its template."""
        return self.stem

    @property
    def textbook(self) -> bool:
        """Whether there is no lse."""
        return not self.lse

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, y and, if asked for, lse."""
        x = element("x", dtype, "X")
        y = element_result("y", out_dtype, "Y", self.measure, "x", self.limit)
        lse = lse_result(compute)
        return (x, y, lse) if self.lse else (x, y)

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return y and, if asked for, lse.

        A row with NaN or +inf, or with nothing but -inf, gives NaN everywhere. Elsewhere -inf gives
        exactly 0, or its logarithm.
        """
        import numpy as np

        (x,) = inputs
        # NaN wins the maximum and inf - inf is NaN: no kind of row needs a case of its own.
        shifted = x - x.max(axis=-1, keepdims=True)
        terms = np.exp(shifted)
        total = terms.sum(axis=-1, keepdims=True)
        y = np.where(np.isnan(total), np.nan, self.of_terms(shifted, terms, total))
        return (y, log_sum_exp(x)) if self.lse else (y,)

    @abc.abstractmethod
    def of_terms(self, shifted: Any, terms: Any, total: Any) -> Any:
        """Return y from x - max, its exponentials and their sum."""


@dataclass(frozen=True)
class Softmax(Normalized):
    """softmax of each row."""

    stem = "softmax"
    measure = Measure.VALUE
    limit = Limit.UP_TO_ONE

    own_terms = True
    weighs = True

    def of_terms(self, shifted: Any, terms: Any, total: Any) -> Any:
        """Return y."""
        return terms / total


def log_sum_exp(x: Any) -> Any:
    """Return log(sum(exp(x))) of each row: -inf for one of -inf, +inf where there is +inf."""
    import numpy as np

    maximum = x.max(axis=-1, keepdims=True)
    shift = np.where(np.isinf(maximum), 0, maximum)
    return (shift + np.log(np.exp(x - shift).sum(axis=-1, keepdims=True)))[..., 0]


SOFTMAX: Function = Softmax()
SOFTMAX_LSE = Softmax(lse=True)
FUNCTIONS = (SOFTMAX, SOFTMAX_LSE)

EXHIBITS = (
    Exhibit("ImageNet classes", SOFTMAX, "float32", 4096, 1000),
    Exhibit("ImageNet classes, as OneFlow does it", SOFTMAX, "float32", 4096, 1000, "oneflow"),
    Exhibit("attention, 1024 keys, as OneFlow does it", SOFTMAX, "float16", 49152, 1024, "oneflow"),
    Exhibit("Triton's widest, as OneFlow does it", SOFTMAX, "float32", 4096, 12672, "oneflow"),
    Exhibit("attention, 128 keys", SOFTMAX, "bfloat16", 65536, 128),
    Exhibit("attention, 512 keys", SOFTMAX, "float16", 16384, 512),
    Exhibit("attention, 1024 keys", SOFTMAX, "bfloat16", 32768, 1024),
    Exhibit("attention, 2048 keys", SOFTMAX, "float16", 16384, 2048),
    Exhibit("attention, 4096 keys", SOFTMAX, "bfloat16", 16384, 4096),
    Exhibit("attention, fp32 weights", SOFTMAX, "bfloat16", 16384, 4096, out_dtype="float32"),
    Exhibit("rows that start anywhere", SOFTMAX, "float32", 4096, 1024, "online", alignment=1),
    Exhibit("a width of the Triton tutorial", SOFTMAX, "float32", 4096, 12672),
    Exhibit("a vocabulary that fits shared memory", SOFTMAX, "bfloat16", 4096, 32000, "shared"),
    Exhibit(
        "GPT-2 vocabulary, the same bits in any batch",
        SOFTMAX,
        "bfloat16",
        4096,
        50257,
        fixed_order=True,
    ),
    Exhibit("Llama 3 vocabulary, sampling", SOFTMAX, "bfloat16", 64, 128256),
    Exhibit("widest row of the FastSoftmax search", SOFTMAX, "float32", 128, 131072),
    Exhibit("the three-pass oracle, shortest to read", SOFTMAX, "float32", 128, 2048, "safe"),
    Exhibit("the two-pass online softmax", SOFTMAX, "float32", 128, 2048, "online"),
    Exhibit("the ladder's first step", SOFTMAX, "float32", 128, 1024, "naive"),
    Exhibit("the ladder's second, a tree", SOFTMAX, "float32", 128, 1024, "tree"),
    Exhibit("the authors' online softmax", SOFTMAX, "float32", 128, 2048, "article_online"),
    Exhibit(
        "a short launch in a row of them",
        SOFTMAX,
        "float32",
        128,
        1024,
        "block_p4_c8_g128_b128_m12_pdl2",
    ),
    Exhibit("scientific data", SOFTMAX, "float64", 4096, 512),
    Exhibit("a width of the Triton tutorial, in chunks", SOFTMAX, "float32", 4096, 12672, "split"),
    Exhibit(
        "Llama 3 vocabulary, a pipeline of blocks", SOFTMAX, "bfloat16", 64, 128256, "cooperative"
    ),
    Exhibit("a part of a cache, where it lies", SOFTMAX, "bfloat16", 4096, 1000, strided=2),
    Exhibit(
        "half of the Llama 3 vocabulary, the rest on another GPU",
        SOFTMAX,
        "bfloat16",
        4096,
        64128,
        "cluster_p8_c64_b128_k8_m7_pk_pdl1",
        sharded=True,
    ),
    Exhibit("classes of pixels", SOFTMAX, "float32", 64 * 512**2, 21, inner=512**2),
    Exhibit("the first of two axes", SOFTMAX, "float32", 8192, 8192, "strips", inner=8192),
    Exhibit(
        "a probability of three, for four at once",
        SOFTMAX,
        "float32",
        4 * 10**6,
        3,
        "tiles",
        inner=4,
    ),
    Exhibit("sixteen vocabularies side by side", SOFTMAX, "float32", 16, 50257, "spread", inner=16),
    Exhibit("an axis before an odd one", SOFTMAX, "float32", 8 * 77, 4096, "bands", inner=77),
    Exhibit("the axis before the last", SOFTMAX, "bfloat16", 64 * 1024, 128, inner=1024),
    Exhibit("attention whose rows are merged later", SOFTMAX_LSE, "bfloat16", 16384, 4096),
)
