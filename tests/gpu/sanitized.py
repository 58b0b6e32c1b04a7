"""What compute-sanitizer watches: `python -m tests.gpu.sanitized NAME BLOCKS` launches one kernel.

NAME is a strategy, or "broken_index" or "broken_barrier": kernels with a planted mistake, which
show that the tool sees what it is there for. BLOCKS is the most that a cluster may have.
"""

from __future__ import annotations

import dataclasses
import sys

from softgen.problems.layouts import layout_behind
from softgen.problems.problem import Problem
from softgen.strategies.variants import Variant

# Widths at which each strategy is at home; those of `split` and `cooperative` cut rows often.
COLS = {
    "warp": 1001,
    "block": 5001,
    "shared": 12000,
    "cluster": 20001,
    "cooperative": 131072,
    "split": 50257,
    "online": 5001,
    "safe": 5001,
    "bands": 1000,
    "columns": 1001,
    "spread": 20001,
    "strips": 5001,
    "tiles": 21,
}
ROWS = 5
INNER = {
    "bands": 7,
    "columns": 24,
    "spread": 24,
    "strips": 24,
    "tiles": 3,
}  # of those that know no other layout
MISTAKES = {
    # One element past the last row's end, in an allocation of its own.
    "broken_index": ("safe", "y + row * kCols;", "y + row * kCols + 1;"),
    # Warps read the others' sums before they are there.
    "broken_barrier": ("online", "  __syncthreads();\n", "\n"),
}


def chosen(name: str, blocks: int = 16) -> tuple[Variant, str]:
    """Return a variant with clusters of at most `blocks`, and the text to compile for it."""
    from softgen.problems.arch import arch_named
    from softgen.source.render import render
    from softgen.strategies.variants import candidates

    strategy, good, bad = MISTAKES.get(name, (name, "", ""))
    layout = layout_behind(INNER.get(strategy, 1))
    problem = Problem.of("softmax", "float32", COLS[strategy], layout=layout)
    variant = next(
        variant
        for variant in candidates(problem, ROWS * layout.step, arch_named("sm_90"), strategy)
        if getattr(variant.strategy, "cluster_size", 1) <= blocks
    )
    text = render(variant).text
    assert good in text, f"the mistake {name} cannot be planted"
    return variant, text.replace(good, bad) if good else text


def main(name: str, blocks: int) -> None:
    import cupy

    from softgen.devices.gpu.compile import compile_source
    from softgen.source.render import render

    cupy.cuda.set_allocator(None)  # a pool would hide what lies behind an array
    variant, text = chosen(name, blocks)
    kernel = compile_source(dataclasses.replace(render(variant), text=text))
    rows = ROWS * variant.problem.layout.step
    size = rows * variant.problem.cols
    x = cupy.arange(size, dtype="float32") % 17
    y = cupy.empty(size, "float32")
    for _ in range(2):
        kernel.launch((x.data.ptr, y.data.ptr), rows, cupy.cuda.get_current_stream().ptr)
    cupy.cuda.runtime.deviceSynchronize()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
