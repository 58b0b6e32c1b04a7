"""The shapes that are timed: sets that others have published figures for, and those of LLMs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random

from softgen.bench.call_suites import (
    axes,
    gradients,
    hooks,
    losses,
    routing,
    samples,
    topk,
    views,
)
from softgen.bench.shape import Shape
from softgen.errors import InvalidValueError
from softgen.names import unknown
from softgen.problems.dtypes import DType
from softgen.problems.functions.base import Function
from softgen.problems.functions.logsumexp import LogSumExp
from softgen.problems.functions.softmax import SOFTMAX

CUSTOM = "custom"
GRID = "grid"  # of searches, whose competitors are the labels of settings

Size = tuple[DType, int, int]  # of a suite: the element type, rows, columns


@dataclass(frozen=True)
class Suite:
    """A named set of shapes.

    Attributes:
        origin: where the shapes come from.
        cases: those of rows: element type, rows, columns.
        stride: every how many shapes are landmarks; the first and the last always are.
        function: what is computed of each row unless another function is asked for.
        calls: yields shapes that are more than a type, rows and columns.
        peers: who takes part by default; None for all, and those that belong to the suite.
    """

    name: str
    origin: str
    cases: tuple[Size, ...] = ()
    stride: int = 1
    function: Function = SOFTMAX
    calls: Callable[[], Iterable[Shape]] = tuple
    peers: tuple[str, ...] | None = None

    def shapes(self, quick: bool = False, function: Function | None = None) -> list[Shape]:
        """Return the shapes in order, by default of the suite's function; landmarks if `quick`."""
        last = len(self.cases) - 1
        found = [
            Shape(self.name, *case, i % self.stride == 0 or i == last, function or self.function)
            for i, case in enumerate(self.cases)
        ]
        found += [replace(call, function=function or call.function) for call in self.calls()]
        return [shape for shape in found if shape.landmark] if quick else found


def _all(dtype: DType, sizes: Iterable[tuple[int, int]]) -> tuple[Size, ...]:
    return tuple((dtype, rows, cols) for rows, cols in sizes)


def _each(rows: Iterable[int], cols: Iterable[int]) -> tuple[tuple[int, int], ...]:
    widths = tuple(cols)
    return tuple((r, c) for r in rows for c in widths)


DRAWN_SEED = 0  # the first that was tried: nobody chose the shapes
DRAWN_EACH = 10  # shapes of each element type
DRAWN_ROWS = (1, 100_000)
DRAWN_COLS = (3, 3_000_000)
DRAWN_BYTES = 1 << 30  # the largest input


def draw(seed: int) -> tuple[Size, ...]:
    """Return random shapes of every element type: rows and columns log-uniform, on their own.

    Every second width is rounded to a multiple of 8, so that both rows of whole packs and rows that
    start anywhere occur. A shape whose input exceeds DRAWN_BYTES is drawn again.
    """
    random = Random(seed)
    return tuple(
        (dtype, *_draw_size(random, dtype, whole=number % 2 == 0))
        for dtype in DType
        for number in range(DRAWN_EACH)
    )


def _draw_size(random: Random, dtype: DType, whole: bool) -> tuple[int, int]:
    while True:
        rows, cols = (_log_uniform(random, *ends) for ends in (DRAWN_ROWS, DRAWN_COLS))
        if whole:
            cols = max(8, round(cols / 8) * 8)
        if rows * cols * dtype.itemsize <= DRAWN_BYTES:
            return rows, cols


def _log_uniform(random: Random, least: int, most: int) -> int:
    return round(least * math.pow(most / least, random.random()))


# Whoever has other axes, hooks and gradients.
USUAL = ("softgen", "softgen-untuned", "torch", "torch.compile")

HEADS = 32  # of the attention scores, whose rows are heads * seq

SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "triton",
            "the plot of Triton's fused softmax tutorial",
            _all(DType.FLOAT32, _each([4096], (128 * i for i in range(2, 100)))),
            stride=8,
        ),
        Suite(
            "fastsoftmax",
            "the table of FastSoftmax",
            _all(DType.FLOAT32, _each([128], (2**i for i in range(10, 18)))),
        ),
        Suite(
            "online",
            "rows of up to millions, for online softmax (arXiv 1805.02867)",
            _all(
                DType.FLOAT32,
                (
                    *_each([128], (2048, 32728, 65536, 131072, 262144, 2097152, 4194304)),
                    (20000, 5000),
                    (16, 4194304),
                    (4, 16777216),
                ),
            ),
        ),
        Suite(
            "oneflow",
            "the plots of OneFlow's softmax article",
            _all(DType.FLOAT16, _each([49152], (2**i for i in range(5, 16)))),
        ),
        Suite(
            "packs",
            "the questions of an article on OneFlow's softmax: pack sizes and rows per access",
            tuple(
                case
                for dtype in (DType.FLOAT32, DType.FLOAT16)
                for case in _all(
                    dtype,
                    ((1024, 1024), (32, 16), *_each([49152], (2**i for i in range(5, 11)))),
                )
            ),
        ),
        Suite(
            "llm",
            "logits, vocabularies and attention scores of language models",
            _all(
                DType.BFLOAT16,
                (
                    *_each([8192], (1024, 2048, 4096, 8192, 16384, 32000)),
                    *_each([1, 8, 64, 256, 4096], [128256]),
                    *((HEADS * seq, seq) for seq in (512, 1024, 2048, 4096, 8192)),
                    (4096, 50257),
                    (256, 151937),
                ),
            ),
        ),
        Suite(
            "logsumexp",
            "logits of language models, where a loss or a probability is wanted and no softmax",
            (
                *_all(DType.BFLOAT16, ((4096, 128256), (8192, 151936), (16384, 50257))),
                (DType.FLOAT32, 128, 4194304),
                (DType.BFLOAT16, 8, 128256),
            ),
            function=LogSumExp(),
        ),
        Suite(
            "short",
            "calls of a few microseconds, where the launch is what is left",
            (
                *_all(DType.FLOAT32, ((8, 1024), (128, 1024), (128, 4096))),
                *_all(DType.BFLOAT16, ((1, 128256), (8, 128256))),
            ),
        ),
        Suite(
            "compiled",
            "shapes of the other suites, where torch.compile also searches (max-autotune)",
            (
                *_all(DType.BFLOAT16, _each([8192], (1024, 4096, 8192, 16384, 32000))),
                *_all(DType.BFLOAT16, _each([1, 8, 64, 256, 4096], [128256])),
                *_all(DType.BFLOAT16, ((4096, 50257), (16384, 512), (131072, 4096))),
                *_all(DType.FLOAT32, ((4096, 1024), (4096, 4096), (4096, 8192))),
                *_all(DType.FLOAT32, ((128, 131072), (20000, 5000), (49152, 512))),
                *_all(DType.FLOAT16, _each([49152], [1024])),
            ),
            peers=("softgen", "torch.compile", "torch.compile-max-autotune"),
        ),
        Suite("drawn", "a seeded generator, so that nobody chose them", draw(DRAWN_SEED)),
        Suite(
            "axes",
            "every axis of images, scores and tables, in four types",
            calls=axes,
            peers=USUAL,
        ),
        Suite(
            "hooks",
            "attention scores with each hook alone",
            calls=hooks,
            peers=USUAL,
        ),
        Suite(
            "views",
            "views, and the same call on a contiguous array",
            calls=views,
            # Its contiguous width is tuned first: a view takes that setting.
            peers=("softgen-contiguous", "softgen", "torch", "torch.compile"),
        ),
        Suite(
            "backward",
            "gradients from results, at the shapes of language models",
            calls=gradients,
            peers=(*USUAL, "quack"),
        ),
        Suite(
            "losses",
            "logits of language models in training",
            calls=losses,
            peers=(*USUAL, "quack"),
        ),
        Suite(
            "routing",
            "routers of experts: the best 8 of each row, and DeepSeek-V3's",
            calls=routing,
            peers=(
                *("softgen", "softgen-untuned", "softgen-softmax"),
                *("torch.topk", "torch.compile-topk"),
                *("flashinfer.topk", "sglang", "vllm", "quack.topk"),
            ),
        ),
        Suite(
            "topk",
            "the 20 best log-probabilities of rows of logits, with the rank of a token",
            calls=topk,
            peers=(
                *("softgen", "softgen-untuned", "softgen-logsumexp"),
                *("torch.topk", "torch.compile-topk", "torch.topk-softgen", "flashinfer.topk"),
            ),
        ),
        Suite(
            "sample",
            "a sample of each row of logits, by all filters",
            calls=samples,
            peers=(
                *("softgen", "softgen-logsumexp", "torch.multinomial", "torch.gumbel"),
                *("flashinfer.sampling", "flashinfer.top_k_top_p"),
            ),
        ),
    )
}


def suite_named(name: str) -> Suite:
    """Return a suite; InvalidValueError names the choices."""
    if name not in SUITES:
        raise InvalidValueError(unknown("suite", name, SUITES))
    return SUITES[name]


def shapes_of(
    names: Sequence[str], quick: bool = False, function: Function | None = None
) -> list[Shape]:
    """Return the shapes of the named suites, in that order, each suite once."""
    suites = [suite_named(name) for name in dict.fromkeys(names)]
    return [shape for suite in suites for shape in suite.shapes(quick, function)]
