"""Softmax between two matrix products of PyTorch's: what a dependent launch gains in a model.

    python docs/matmuls/between_matmuls.py [FILE.csv]

A step is softmax(q @ k) @ v. Times are of a step, in us, on the GPU: in a CUDA graph of 50 steps,
and eagerly, where the GPU is held up at first so that the launches queue. All take turns in one
run. Each time is the median of 30; `gap` is a step without its softmax.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch

import softgen

SHAPES = [
    (torch.float32, 8, 1024),
    (torch.float32, 128, 1024),
    (torch.float32, 128, 4096),
    (torch.bfloat16, 128, 4096),
    (torch.bfloat16, 1024, 1024),
    (torch.bfloat16, 4096, 4096),
]
HEAD = 64  # columns of q and v
STEPS, ROUNDS = 50, 30


def steps_of(dtype: torch.dtype, rows: int, cols: int) -> dict[str, Callable[[], Any]]:
    """Return a step with each softmax; all write into the same arrays."""
    q, k = (torch.randn(size, device="cuda", dtype=dtype) for size in ((rows, HEAD), (HEAD, cols)))
    v = torch.randn((cols, HEAD), device="cuda", dtype=dtype)
    x, y = (torch.empty((rows, cols), device="cuda", dtype=dtype) for _ in range(2))
    z = torch.empty((rows, HEAD), device="cuda", dtype=dtype)
    y.fill_(1 / cols)

    def step(softmax: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> None:
            torch.mm(q, k, out=x)
            softmax()
            torch.mm(y, v, out=z)

        return run

    return {
        "gap": step(lambda: None),
        "torch": step(lambda: torch.softmax(x, -1, out=y)),
        "softgen_plain": step(lambda: softgen.softmax(x, out=y, pdl=False)),
        "softgen": step(lambda: softgen.softmax(x, out=y)),
    }


def graph_of(step: Callable[[], Any]) -> Callable[[], Any]:
    """Return the replay of a graph of STEPS steps."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(STEPS):
            step()
    return graph.replay


def queue_of(step: Callable[[], Any]) -> Callable[[], Any]:
    """Return what enqueues STEPS steps."""

    def run() -> None:
        for _ in range(STEPS):
            step()

    return run


def microseconds(runs: dict[str, Callable[[], Any]], hold: bool) -> dict[str, float]:
    """Return the time of a step of each, taking turns; `hold` keeps the GPU back meanwhile."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            run()
            if hold:
                torch.cuda._sleep(8_000_000)  # about 4 ms: longer than STEPS steps take to enqueue
            start.record()
            run()
            stop.record()
            stop.synchronize()
            found[name].append(start.elapsed_time(stop) * 1000 / STEPS)
    return {name: statistics.median(times) for name, times in found.items()}


def main() -> None:
    """Print a table, and write it."""
    lines = []
    for dtype, rows, cols in SHAPES:
        steps = steps_of(dtype, rows, cols)
        for step in steps.values():
            step(), step()
        for where, make in (("graph", graph_of), ("eager", queue_of)):
            times = microseconds(
                {name: make(each) for name, each in steps.items()}, where == "eager"
            )
            lines.append(
                {
                    "device": torch.cuda.get_device_name(),
                    "where": where,
                    "dtype": str(dtype).removeprefix("torch."),
                    "rows": rows,
                    "cols": cols,
                    **{name: f"{time:.3f}" for name, time in times.items()},
                }
            )
            print(lines[-1], flush=True)
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", newline="") as file:
            writer = csv.DictWriter(file, lines[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)


if __name__ == "__main__":
    main()
