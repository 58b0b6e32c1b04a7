"""Cross entropy of class indices: the loss of each row, and with it, if asked for, the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from softgen.problems.dtypes import DType, FloatType, Integer
from softgen.problems.functions.base import (
    Function,
    element,
    element_result,
    lse_result,
    number_input,
    row_ids,
    row_result,
)
from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.functions.softmax import log_sum_exp
from softgen.problems.hooks.base import Hook
from softgen.problems.hooks.places import Place, one_term
from softgen.problems.hooks.target import Target
from softgen.problems.layouts import FIRST
from softgen.problems.operands import Extent, Limit, Measure, Operand
from softgen.problems.parts import MAX_SUM_BELOW

IGNORE_INDEX = -100  # of torch.nn.functional.cross_entropy


# Hooks that gradients do not take: they know the derivatives of a scale and a softcap.
WITHOUT_SLOPES = frozenset(
    {"bias", "mask", "lengths", "causal", "sink", "zeroempty", "outscale", "dropout"}
)


@dataclass(frozen=True)
class OfTargets(Function):
    """Base of functions of x and of a column of each row.

    Attributes:
        ids: the type of the columns' numbers.
    """

    stem: ClassVar[str]
    ignored: ClassVar[str]  # what a row that is ignored gives, in words

    ids: Integer = Integer.INT64

    @property
    def name(self) -> str:
        """As in names of kernels."""
        return self.stem if self.ids is Integer.INT64 else f"{self.stem}_{self.ids.short}"

    @property
    def template(self) -> str:
        """The stem of its template, one for both types of numbers."""
        return self.stem

    @property
    def twin(self) -> str:
        """That of 64-bit numbers, for the other."""
        return "" if self.ids is Integer.INT64 else self.stem

    def targets(self) -> tuple[Operand, Operand]:
        """Return the columns, and which number of a column says that a row is ignored."""
        accepts = f"any: where it is the target {self.ignored}"
        ignored = number_input("ignore_index", Integer.INT64, "long long", accepts, IGNORE_INDEX)
        return row_ids("target", self.ids), ignored

    def beside_a_sink(self, cols: int, *others: Any) -> tuple[Any, ...]:
        """Return them with a number that is no column where the target is the sink's."""
        import numpy as np

        target, ignore_index, *rest = others
        ignored = np.ravel(ignore_index)[0]
        none = -1 if ignored != -1 else -2
        return (np.where((target == cols) & (target != ignored), none, target), ignore_index, *rest)

    def timed_inputs(self, rows: int, cols: int) -> dict[str, Any]:
        """Return columns anywhere in the row, of which none is ignored."""
        import numpy as np

        target = np.random.default_rng(0).integers(0, cols, rows)
        return {"target": target, "ignore_index": IGNORE_INDEX, **self.numbers()}

    def numbers(self) -> dict[str, Any]:
        """Return numbers of its own, by name, that show what they do."""
        return {}

    def other_numbers(self, rows: int) -> tuple[dict[str, Any], ...]:
        """Return numbers that change nothing; then a gradient a row, and a column as ignored."""
        import numpy as np

        kind = DType.FLOAT32
        names = [operand.name for operand in self.operands(kind, kind, kind)]
        each = np.arange(rows) % 5 - 2.0 if "upstream_every" in names else -1.5
        plain = {"z_loss": 0.0, "label_smoothing": 0.0, "upstream": 1.0, "upstream_count": 1}
        of_rows = {"upstream": each, "upstream_count": rows}
        return (plain, {"label_smoothing": 1.0, "ignore_index": 0, **of_rows})


@dataclass(frozen=True)
class CrossEntropy(OfTargets):
    """-log(softmax(x)[target]) of each row, and its log-sum-exp."""

    stem = "cross_entropy"
    ignored = "loss is 0 and lse is -inf"

    formula = "lse = log(sum(exp(x))); loss = lse - x[target] + z_loss lse^2"
    call = "softgen.cross_entropy(x, target)"
    non_finite = (
        "loss is NaN for a row with NaN or +inf, or of only -inf, and for a target that is no "
        "column"
    )
    like = "logsumexp"  # which reads the same
    posts_element = True  # the target's: the shard that has its column tells the others

    @property
    def modifiers(self) -> tuple[Hook, ...]:
        """The target."""
        return (Target(),)

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, target, the numbers, loss and lse."""
        return (
            element("x", dtype, "X"),
            *self.targets(),
            z_loss_input(compute),
            loss_result(compute),
            lse_result(compute),
        )

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return loss and lse.

        Of a row that is ignored 0 and -inf. A target that is no column gives a loss of NaN.
        """
        import numpy as np

        loss, lse, ignored = losses(*inputs)
        return np.where(ignored, 0, loss), lse

    def numbers(self) -> dict[str, Any]:
        """Return the weight of lse^2."""
        return {"z_loss": 2.0**-10}

    def timed_inputs(self, rows: int, cols: int) -> dict[str, Any]:
        """Return no weight of lse^2, as most callers."""
        return {**super().timed_inputs(rows, cols), "z_loss": 0.0}

    def other_inputs(self, x: Any) -> tuple[Any, ...]:
        """Return targets of all kinds, and numbers."""
        return (targets_of(x), *arrays(IGNORE_INDEX, *self.numbers().values()))


@dataclass(frozen=True)
class CrossEntropyGrad(OfTargets):
    """The loss of each row with its gradient: x is read once, and dx may be x."""

    stem = "cross_entropy_grad"
    upstreams: ClassVar[bool] = False
    ignored = "dx and loss are 0 and lse is -inf"

    formula = "lse, loss as cross_entropy; dx = upstream d(loss)/dx"
    call = "softgen.cross_entropy_grad(x, target)"
    hookable = True  # by those that have a derivative
    barred = WITHOUT_SLOPES
    like = "softmax"  # whose bytes it moves with the same launch

    @property
    def non_finite(self) -> str:
        """What a row with NaN or an infinity gives, for the header of an emitted file."""
        rows = "a row with NaN, +inf or only -inf, or whose target is no column"
        return f"dx and loss are NaN for {rows}"

    @property
    def modifiers(self) -> tuple[Hook, ...]:
        """The target."""
        return (Target(gradient=True, upstreams=self.upstreams),)

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, target, the numbers, dx, loss and lse."""
        return (
            element("x", dtype, "X"),
            *self.targets(),
            *self.upstream(compute),
            z_loss_input(compute),
            element_result("dx", out_dtype, "Y", Measure.TERMS, may_be="x"),
            loss_result(compute),
            lse_result(compute),
        )

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return dx, loss and lse; dx is 0 in rows that are ignored."""
        import numpy as np

        x, target, *_, z_loss = inputs
        loss, lse, ignored = losses(x, target, inputs[2], z_loss)
        up, hit, scale = self._terms(*inputs)
        dx = (probabilities(x) * scale - hit) * up
        dx = np.where(hit.any(axis=1, keepdims=True), dx, np.nan)
        return np.where(ignored[:, None], 0, dx), np.where(ignored, 0, loss), lse

    def magnitudes(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the size of what cancels in dx."""
        up, hit, scale = self._terms(*inputs)
        return (size_of(probabilities(inputs[0])) * abs(scale) + hit) * abs(up), None, None

    def _terms(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the upstream of rows, whether a column is the target, and what p is times."""
        import numpy as np

        x, target, _, *upstream, z_loss = inputs
        up = upstream_of(x, *upstream)
        scale = 1 + 2 * np.ravel(z_loss)[0] * log_sum_exp(x)
        return up, one_hot(target, x.shape[1]), scale[:, None]

    def upstream(self, compute: DType) -> tuple[Operand, ...]:
        """Return the gradient with respect to the loss."""
        accepts = "finite: what the gradient is times"
        return (number_input("upstream", compute, "Compute", accepts, 1.0),)

    def numbers(self) -> dict[str, Any]:
        """Return a gradient that is no power of two, and a weight of lse^2."""
        return {"upstream": 0.375, "z_loss": 2.0**-10}

    def timed_inputs(self, rows: int, cols: int) -> dict[str, Any]:
        """Return no weight of lse^2, as most callers."""
        return {**super().timed_inputs(rows, cols), "z_loss": 0.0}

    def other_inputs(self, x: Any) -> tuple[Any, ...]:
        """Return targets of all kinds, and numbers."""
        return (targets_of(x), *arrays(IGNORE_INDEX, *self.numbers().values()))


@dataclass(frozen=True)
class CrossEntropyGradRows(CrossEntropyGrad):
    """The same where upstream is an array: of one element, or of one a row."""

    stem = "cross_entropy_grad_rows"
    upstreams = True

    template = "cross_entropy_grad"
    like = "cross_entropy_grad"

    def upstream(self, compute: DType) -> tuple[Operand, ...]:
        """Return the gradients with respect to the losses, and where rows find theirs."""
        return upstream_inputs(compute)

    def numbers(self) -> dict[str, Any]:
        """Return a place for two gradients, and a weight of lse^2."""
        return {**two_upstreams(), "z_loss": 2.0**-10}

    def timed_inputs(self, rows: int, cols: int) -> dict[str, Any]:
        """Return one gradient for all rows, as of a mean."""
        return {**super().timed_inputs(rows, cols), "upstream": 0.375, "upstream_count": 1}


@dataclass(frozen=True)
class CrossEntropySmooth(CrossEntropy):
    """The loss where all columns share some of the target's probability."""

    stem = "cross_entropy_smooth"

    formula = "lse; loss = lse - (1 - s) x[target] - s mean(x) + z_loss lse^2"
    template = "cross_entropy"
    call = "softgen.cross_entropy(x, target, label_smoothing=s)"
    smooths = True
    part = MAX_SUM_BELOW
    posts_element = False  # shards tell each other no sums of distances
    barred = frozenset({"sink"})  # a sink: the mean of a row has none

    @property
    def modifiers(self) -> tuple[Hook, ...]:
        """The target."""
        return (Target(smooths=True),)

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, target, the numbers, loss and lse."""
        return with_smoothing(super().operands(dtype, out_dtype, compute), compute)

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return loss and lse."""
        import numpy as np

        x, target, ignore_index, smoothing, z_loss = inputs
        loss, lse, ignored = losses(x, target, ignore_index, z_loss, smoothing)
        return np.where(ignored, 0, loss), lse

    def numbers(self) -> dict[str, Any]:
        """Return some smoothing, and the weight of lse^2."""
        return {"label_smoothing": 0.125, **super().numbers()}


@dataclass(frozen=True)
class CrossEntropyGradSmooth(CrossEntropyGradRows):
    """The loss of each row with its gradient, where all columns share some of the probability."""

    stem = "cross_entropy_grad_smooth"

    call = "softgen.cross_entropy_grad(x, target, label_smoothing=s)"
    smooths = True
    part = MAX_SUM_BELOW

    @property
    def modifiers(self) -> tuple[Hook, ...]:
        """The target."""
        return (Target(gradient=True, upstreams=True, smooths=True),)

    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return x, target, upstream, the numbers, dx, loss and lse."""
        return with_smoothing(super().operands(dtype, out_dtype, compute), compute)

    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return dx, loss and lse; dx is 0 in rows that are ignored."""
        import numpy as np

        *inputs_, smoothing, z_loss = inputs
        dx, *_ = super().reference(*inputs_, z_loss)
        s, up = np.ravel(smoothing)[0], upstream_of(dx, *inputs[3:6])
        x, target, ignore_index, *_ = inputs
        loss, lse, ignored = losses(x, target, ignore_index, z_loss, smoothing)
        hit = one_hot(inputs[1], dx.shape[1])
        share = 1 / dx.dtype.type(dx.shape[1])  # in float64 hit - share may lose what is left of dx
        dx = dx + np.where(ignored[:, None], 0, up * s * (hit - share))
        return dx, np.where(ignored, 0, loss), lse

    def magnitudes(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the size of what cancels in dx."""
        import numpy as np

        *inputs_, smoothing, z_loss = inputs
        of_dx, *rest = super().magnitudes(*inputs_, z_loss)
        up = upstream_of(of_dx, *inputs[3:6])
        hit = one_hot(inputs[1], of_dx.shape[1])
        return of_dx + abs(up) * np.ravel(smoothing)[0] * (1 / of_dx.shape[1] - hit), *rest

    def numbers(self) -> dict[str, Any]:
        """Return a place for two gradients, some smoothing, and a weight of lse^2."""
        return {**two_upstreams(), "label_smoothing": 0.125, "z_loss": 2.0**-10}


def with_smoothing(operands: tuple[Operand, ...], compute: DType) -> tuple[Operand, ...]:
    """Return operands with the label smoothing before z_loss."""
    at = [operand.name for operand in operands].index("z_loss")
    return (*operands[:at], smoothing_input(compute), *operands[at:])


def smoothing_input(compute: DType) -> Operand:
    """Return how much of the target's probability all columns share."""
    return number_input("label_smoothing", compute, "Compute", "0 to 1", 0.0)


def first_column() -> Operand:
    """Return the number of the first column here, where a row has columns elsewhere, too."""
    accepts = "at least 0: the number of the first column here"
    return number_input(FIRST, Integer.INT64, "long long", accepts, 0)


def z_loss_input(compute: DType) -> Operand:
    """Return the weight of lse^2 in a loss."""
    return number_input("z_loss", compute, "Compute", "finite: the weight of lse^2", 0.0)


def upstream_inputs(compute: DType) -> tuple[Operand, ...]:
    """Return the gradients with respect to the losses, and where rows find theirs."""
    array = Operand("upstream", compute, Extent.BROADCAST, False, "Compute")
    return (array, *one_term("upstream"))


def two_upstreams() -> dict[str, Any]:
    """Return two gradients with respect to losses, by turns."""
    return {"upstream": (0.375, -1.5), "upstream_every": 1, "upstream_count": 2}


def upstream_of(x: Any, upstream: Any, every: Any = 1, count: Any = 1) -> Any:
    """Return the gradient with respect to the loss of each row, shape (rows, 1), of x's library."""
    import numpy as np

    place = Place(int(np.ravel(every)[0]), int(np.ravel(count)[0]), 1)
    given = np.asarray(np.ravel(upstream), like=x)  # x may be CuPy's
    return given[place.of(np.arange(len(x), like=x))][:, None]


def loss_result(compute: DType) -> Operand:
    """Return the loss of each row."""
    return row_result("loss", compute, "Compute", Measure.LOGARITHM, limit=Limit.AT_LEAST_ZERO)


def hard_targets(rows: int, cols: int) -> Any:
    """Return numbers of columns: the first and the last, some that are ignored, some that are none.

    Others are anywhere. The first row has a column.
    """
    import numpy as np

    target = np.random.default_rng([rows, cols]).integers(0, cols, rows)
    last = cols - 1
    hard = (0, last, IGNORE_INDEX, cols // 2, cols, last // 3, -1, 2**31 - 1)
    for row in range(0, rows, 2):
        target[row] = hard[row // 2 % len(hard)]
    return target


def targets_of(x: Any) -> Any:
    """Return hard targets, and in each fourth row the largest column: the least that a loss is."""
    target = hard_targets(*x.shape)
    target[3::4] = x[3::4].argmax(axis=1).tolist()  # x may be CuPy's
    return target


def arrays(*numbers: Any) -> tuple[Any, ...]:
    """Return numbers as arrays, as all inputs are."""
    import numpy as np

    return tuple(np.asarray(number) for number in numbers)


def one_hot(target: Any, cols: int) -> Any:
    """Return whether each column is the row's target, shape (rows, cols)."""
    import numpy as np

    return np.arange(cols, like=target) == target[:, None]


def probabilities(x: Any) -> Any:
    """Return the softmax of each row; NaN where torch's is."""
    import numpy as np

    terms = np.exp(x - x.max(axis=1, keepdims=True))
    return terms / terms.sum(axis=1, keepdims=True)


def size_of(p: Any) -> Any:
    """Return what errors of probabilities are relative to: float64 rounds their logarithms."""
    import numpy as np

    return p * (1 + np.where(p > 0, abs(np.log(p)), 0) / 90)


def losses(
    x: Any, target: Any, ignore_index: Any, z_loss: Any = 0.0, smoothing: Any = 0.0
) -> tuple[Any, Any, Any]:
    """Return loss, lse, and which rows are ignored: their lse is -inf, of the others log-sum-exp.

    By torch's rules a loss is NaN where softmax is.
    """
    import numpy as np

    rows, cols = x.shape
    ignored = target == np.ravel(ignore_index)[0]
    known = (target >= 0) & (target < cols)
    column = np.where(known, target, 0).astype(np.int64)
    maximum = x.max(axis=1, keepdims=True)
    total = np.exp(x - maximum).sum(axis=1)  # NaN where softmax is
    loss = (maximum[:, 0] - x[np.arange(rows, like=x), column]) + np.log(total)
    s = np.ravel(smoothing)[0]
    if s:  # of a class of probability 0 parts are infinite, and 0 times that is NaN
        mean = (maximum - x).mean(axis=1) + np.log(total)
        loss = (1 - s) * loss + s * mean
    lse = np.where(ignored, -np.inf, log_sum_exp(x))
    z = float(np.ravel(z_loss)[0])
    loss = loss + (z * lse * lse if z else 0)
    return np.where(known, loss, np.nan), lse, ignored


CROSS_ENTROPY = CrossEntropy()
CROSS_ENTROPY_GRAD = CrossEntropyGrad()
FUNCTIONS = (
    *(CROSS_ENTROPY, CrossEntropy(Integer.INT32)),
    *(CROSS_ENTROPY_GRAD, CrossEntropyGrad(Integer.INT32)),
    *(CrossEntropyGradRows(), CrossEntropyGradRows(Integer.INT32)),
    *(CrossEntropySmooth(), CrossEntropySmooth(Integer.INT32)),
    *(CrossEntropyGradSmooth(), CrossEntropyGradSmooth(Integer.INT32)),
)

EXHIBITS = (
    Exhibit("Llama 3 vocabulary, losses", CROSS_ENTROPY, "bfloat16", 4096, 128256),
    Exhibit(
        "Llama 3 vocabulary, losses and gradient", CROSS_ENTROPY_GRAD, "bfloat16", 4096, 128256
    ),
    Exhibit(
        "half of the Llama 3 vocabulary, losses, the rest on another GPU",
        CROSS_ENTROPY,
        "bfloat16",
        4096,
        64128,
        sharded=True,
    ),
)
