"""Sources to break, and inputs for them."""

from __future__ import annotations

import dataclasses

import numpy as np

from softgen.devices.emulator import run
from softgen.problems import numerics
from softgen.problems.arch import arch_named
from softgen.problems.numerics import Storage
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.online import Online
from softgen.strategies.safe import Safe
from softgen.strategies.variants import Variant
from softgen.strategies.warp import Warp

ARCH = arch_named("sm_90")


def source_of(strategy: str, cols: int, dtype: str = "float32") -> Source:
    """Return a kernel whose knobs do not depend on anybody's idea of the best ones."""
    problem = Problem.of("softmax", dtype, cols)
    settings = {
        "safe": Safe(128),
        "online": Online(4, 1, 128),
        "warp": Warp.covering(problem, min(4, problem.alignment), 8, 1, 128),
    }
    return render(Variant(problem, settings[strategy]))


def broken(source: Source, old: str, new: str) -> Source:
    """Return a copy of `source` with the first `old` of its text replaced by `new`."""
    assert old in source.text, f"{source.name} no longer says {old!r}"
    return dataclasses.replace(source, text=source.text.replace(old, new, 1))


def written(body: str, *, cols: int = 64, block: int = 64, dtype: str = "float32") -> Source:
    """Return a kernel with the text `body`; x, y, rows and kCols are what emitted files call so."""
    variant = Variant(Problem.of("softmax", dtype, cols), Safe(block))
    text = (
        f"constexpr int kCols = {cols};\n"
        'extern "C" __global__ void kernel(const float* x, float* y, long long rows) {\n'
        f"{body}\n}}\n"
    )
    return dataclasses.replace(render(variant), symbol="kernel", text=text)


def input_of(source: Source, rows: int) -> Storage:
    """Return random rows in storage form."""
    problem = source.variant.problem
    values = np.random.default_rng(rows).standard_normal((rows, problem.cols))
    return numerics.encode(values, problem.dtype)


def run_rows(source: Source, rows: int, **options: int | bool) -> Storage:
    """Run `source` on random rows."""
    return run(source, input_of(source, rows), **options)
