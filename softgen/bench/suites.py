"""The shapes that are timed: sets that others have published figures for, and those of LLMs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from softgen.errors import InvalidValueError
from softgen.problem import DType

CUSTOM = "custom"


@dataclass(frozen=True)
class Shape:
    """One softmax to time: `rows` rows of `cols` elements.

    Attributes:
        landmark: whether competitors that compile anew for every shape are timed here as well.
    """

    suite: str
    dtype: DType
    rows: int
    cols: int
    landmark: bool = True

    @property
    def label(self) -> str:
        """The shape in words, for progress bars and messages."""
        return f"{self.suite} {self.dtype.value} {self.rows}x{self.cols}"


@dataclass(frozen=True)
class Suite:
    """A named set of shapes.

    Attributes:
        origin: where the shapes come from.
        stride: every how many shapes are landmarks; the first and the last always are.
    """

    name: str
    origin: str
    dtype: DType
    sizes: tuple[tuple[int, int], ...]
    stride: int = 1

    def shapes(self, quick: bool = False) -> list[Shape]:
        """Return the shapes in order; only the landmarks if `quick`."""
        last = len(self.sizes) - 1
        found = [
            Shape(self.name, self.dtype, rows, cols, i % self.stride == 0 or i == last)
            for i, (rows, cols) in enumerate(self.sizes)
        ]
        return [shape for shape in found if shape.landmark] if quick else found


def _each(rows: Iterable[int], cols: Iterable[int]) -> tuple[tuple[int, int], ...]:
    widths = tuple(cols)
    return tuple((r, c) for r in rows for c in widths)


HEADS = 32  # of the attention scores, whose rows are heads * seq

SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "triton",
            "the plot of Triton's fused softmax tutorial",
            DType.FLOAT32,
            _each([4096], (128 * i for i in range(2, 100))),
            stride=8,
        ),
        Suite(
            "fastsoftmax",
            "the table of FastSoftmax",
            DType.FLOAT32,
            _each([128], (2**i for i in range(10, 18))),
        ),
        Suite(
            "online",
            "rows of up to millions, for online softmax (arXiv 1805.02867)",
            DType.FLOAT32,
            (
                *_each([128], (2048, 32728, 65536, 131072, 262144, 2097152, 4194304)),
                (20000, 5000),
                (16, 4194304),
                (4, 16777216),
            ),
        ),
        Suite(
            "oneflow",
            "the plots of OneFlow's softmax article",
            DType.FLOAT16,
            _each([49152], (2**i for i in range(5, 16))),
        ),
        Suite(
            "llm",
            "logits, vocabularies and attention scores of language models",
            DType.BFLOAT16,
            (
                *_each([8192], (1024, 2048, 4096, 8192, 16384, 32000)),
                *_each([1, 8, 64, 256, 4096], [128256]),
                *((HEADS * seq, seq) for seq in (512, 1024, 2048, 4096, 8192)),
                (4096, 50257),
                (256, 151937),
            ),
        ),
    )
}


def suite_named(name: str) -> Suite:
    """Return a suite; InvalidValueError names the choices."""
    if name not in SUITES:
        raise InvalidValueError(f"unknown suite {name!r}; softgen knows: {', '.join(SUITES)}")
    return SUITES[name]


def shapes_of(names: Sequence[str], quick: bool = False) -> list[Shape]:
    """Return the shapes of the named suites, in that order, each suite once."""
    return [shape for name in dict.fromkeys(names) for shape in suite_named(name).shapes(quick)]
