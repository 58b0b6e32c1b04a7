"""The calls of the suites that are more than rows: other axes, hooks, views, gradients."""

from __future__ import annotations

from collections.abc import Iterator

from softgen.bench.cases import HOOKED, VIEWS
from softgen.bench.shape import Case, Shape
from softgen.problems.dtypes import DType
from softgen.problems.functions.base import Function
from softgen.problems.functions.logsumexp import LogSumExp
from softgen.problems.functions.ranked_log_probs import RANKED_LOG_PROBS
from softgen.problems.functions.topk_softmax import TopkSoftmax

F16, BF16, F32, F64 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64

# Images by channels, scores by queries, few and many columns, long axes.
ARRAYS = (
    (64, 128, 1024),
    (8, 4096, 77),
    (1, 50257, 16),
    (8192, 8192),
    (64, 21, 512, 512),
    (1000000, 3, 4),
    (4, 16, 2048, 128),
    (16, 1000, 197),
    (256, 64, 56, 56),
    (32, 32000, 64),
    (4096, 4096),
    (100000, 21, 3),
    (32, 512, 7, 7),
    (1000000, 64),
    (2048, 8, 4096),
    (131072, 512),
)


def axes() -> Iterator[Shape]:
    """Yield softmax along every axis of the arrays, and along two axes the functions like it."""
    cases = [Case(shape, axis) for shape in ARRAYS for axis, size in enumerate(shape) if size > 1]
    for dtype in (F32, BF16, F16, F64):
        yield from (Shape.of("axes", dtype, case) for case in cases)
    for name in ("log_softmax", "logsumexp"):
        for dtype in (F32, BF16):
            for case in (Case((64, 128, 1024), 1), Case((8192, 8192), 0)):
                yield Shape.of("axes", dtype, case, Function.of(name))


LOGITS = ((4096, 128256), (8192, 151936), (16384, 50257), (2048, 32000))
OF_LOGITS = (
    *("cross_entropy", "cross_entropy_grad", "cross_entropy_backward", "token_log_probs"),
    *("entropy", "entropy_backward", "logsumexp_backward"),
)


def losses() -> Iterator[Shape]:
    """Yield what training takes of logits: a number a row, and its gradient."""
    for name in OF_LOGITS:
        function = Function.of(name)
        yield from (Shape("losses", BF16, *size, function=function) for size in LOGITS)
        yield Shape("losses", F32, 4096, 32000, function=function)


SCORES = (4, 16, 2048, 2048)  # batch, heads, queries, keys
LONG_SCORES = (1, 16, 8192, 8192)


def hooks() -> Iterator[Shape]:
    """Yield softmax of attention scores without a hook, with each alone, and with two."""
    cases = [Case(SCORES), *(Case(SCORES, hook=hook) for hook in HOOKED)]
    cases += [Case(LONG_SCORES), Case(LONG_SCORES, hook="causal")]
    return (Shape.of("hooks", BF16, case) for case in cases)


VIEWED = (16, 8, 256, 4096)
# Views that are a small part of that would stay in L2.
VIEWED_OTHERS = {
    "x[..., 5:38]": (512, 8, 256, 128),
    "x[::2, ::2, ::2, :512]": (32, 16, 256, 1024),
    "x[:, :131000]": (1024, 131072),
}


def views() -> Iterator[Shape]:
    """Yield softmax of each view."""
    for name in VIEWS:
        yield Shape.of("views", F32, Case(VIEWED_OTHERS.get(name, VIEWED), view=name))


GRADIENTS = (
    *((BF16, rows, cols) for rows, cols in ((8192, 8192), (8192, 32000), (4096, 128256))),
    (F32, 128, 131072),
    (BF16, 4096, 50257),
    *((BF16, 8192, cols) for cols in (1024, 4096)),
    (F32, 4096, 4096),
)


def gradients() -> Iterator[Shape]:
    """Yield the gradients of softmax and of log_softmax, from their results."""
    for name in ("softmax_backward", "log_softmax_backward"):
        function = Function.of(name)
        yield from (Shape("backward", *case, function=function) for case in GRADIENTS)


ROUTED = tuple(
    (rows, cols) for cols in (8, 64, 128, 160, 256, 384) for rows in (1, 64, 8192, 65536)
)
DEEPSEEK = TopkSoftmax(8, sigmoid=True, bias=True, groups=8, kept_groups=4, renormalize=True)
SERVED = tuple((rows, cols) for cols in (128256, 151936) for rows in (1, 8, 64, 1024))


def routing() -> Iterator[Shape]:
    """Yield the best 8 of rows of experts, and DeepSeek-V3's router."""
    yield from (Shape("routing", BF16, *size, function=TopkSoftmax(8)) for size in ROUTED)
    yield Shape("routing", BF16, 8192, 256, function=DEEPSEEK)


def topk() -> Iterator[Shape]:
    """Yield the best tokens of rows of logits."""
    return (Shape("topk", BF16, *size, function=RANKED_LOG_PROBS) for size in SERVED)


def samples() -> Iterator[Shape]:
    """Yield a sample of each row of the same; logsumexp reads as much."""
    function = LogSumExp()
    return (Shape.of("sample", BF16, Case(size, samples=True), function) for size in SERVED)
