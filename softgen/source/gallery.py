"""The gallery: the kernels that `softgen emit` writes into generated/ for people to read."""

from __future__ import annotations

from dataclasses import dataclass

from softgen.source.render import Source, render
from softgen.spec.arch import DEFAULT_ARCH, arch_named
from softgen.spec.problem import Problem
from softgen.strategies.registry import all_strategies
from softgen.strategies.select import select
from softgen.strategies.variants import candidates


@dataclass(frozen=True)
class Exhibit:
    """One kernel of the gallery: `choice` is what `select` takes, None for the best guess."""

    where: str
    algorithm: str
    dtype: str
    rows: int
    cols: int
    choice: str | None = None
    out_dtype: str | None = None
    alignment: int | None = None
    fixed_order: bool = False

    @property
    def problem(self) -> Problem:
        """The request."""
        return Problem.of(
            self.algorithm,
            self.dtype,
            self.cols,
            out_dtype=self.out_dtype,
            alignment=self.alignment,
            fixed_order=self.fixed_order,
        )


# Where such a softmax is met, then algorithm, input type, rows and columns.
EXHIBITS = (
    Exhibit("CIFAR-10 classes", "log_softmax", "float32", 65536, 10),
    Exhibit("ImageNet classes", "softmax", "float32", 4096, 1000),
    Exhibit("ImageNet classes, as OneFlow does it", "softmax", "float32", 4096, 1000, "oneflow"),
    Exhibit("ImageNet classes, training loss", "log_softmax", "float16", 1024, 1000),
    Exhibit("attention, 128 keys", "softmax", "bfloat16", 65536, 128),
    Exhibit("attention, 512 keys", "softmax", "float16", 16384, 512),
    Exhibit("attention, 1024 keys", "softmax", "bfloat16", 32768, 1024),
    Exhibit("attention, 2048 keys", "softmax", "float16", 16384, 2048),
    Exhibit("attention, 4096 keys", "softmax", "bfloat16", 16384, 4096),
    Exhibit("attention, fp32 weights", "softmax", "bfloat16", 16384, 4096, out_dtype="float32"),
    Exhibit("rows that start anywhere", "softmax", "float32", 4096, 1024, "online", alignment=1),
    Exhibit("a width of the Triton tutorial", "softmax", "float32", 4096, 12672),
    Exhibit("a vocabulary that fits shared memory", "softmax", "bfloat16", 4096, 32000, "shared"),
    Exhibit("Llama 2 vocabulary", "log_softmax", "bfloat16", 4096, 32000),
    Exhibit("GPT-2 vocabulary, an odd width", "log_softmax", "float32", 2048, 50257),
    Exhibit(
        "GPT-2 vocabulary, the same bits in any batch",
        "softmax",
        "bfloat16",
        4096,
        50257,
        fixed_order=True,
    ),
    Exhibit("Llama 3 vocabulary, sampling", "softmax", "bfloat16", 64, 128256),
    Exhibit("widest row of the FastSoftmax search", "softmax", "float32", 128, 131072),
    Exhibit("the three-pass oracle, shortest to read", "softmax", "float32", 128, 2048, "safe"),
    Exhibit("the two-pass online softmax", "softmax", "float32", 128, 2048, "online"),
    Exhibit("the ladder's first step", "softmax", "float32", 128, 1024, "naive"),
    Exhibit("the ladder's second, a tree", "softmax", "float32", 128, 1024, "tree"),
    Exhibit("the authors' online softmax", "softmax", "float32", 128, 2048, "article_online"),
    Exhibit("scientific data", "softmax", "float64", 4096, 512),
    Exhibit("scientific data, log-likelihoods", "log_softmax", "float64", 4096, 2000),
)


def gallery() -> list[Source]:
    """Return the sources of the gallery, for the default architecture.

    A strategy that no exhibit shows is added at the first exhibit's problem that it can compute, so
    that a new strategy is in the gallery without an entry here.
    """
    arch = arch_named(DEFAULT_ARCH)
    chosen = {}
    for exhibit in EXHIBITS:
        variant = select(exhibit.problem, exhibit.rows, arch, exhibit.choice)
        chosen[variant.name] = variant
    shown = {variant.strategy.name for variant in chosen.values()}
    for kind in all_strategies():
        if kind.name not in shown:
            for exhibit in EXHIBITS:
                found = next(candidates(exhibit.problem, exhibit.rows, arch, kind.name), None)
                if found is not None:
                    chosen[found.name] = found
                    break
    return [render(chosen[name], arch) for name in sorted(chosen)]
