"""The plot of scaling over GPUs: times as measured, and lines as predicted.

    python docs/scale/plot.py docs/scale/scaling.csv docs/scale/scaling.png

The table has the columns function, gpus, rows, columns, us_eager and us_graph.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softgen.bench.plot import DOTS_PER_INCH, INK, require_matplotlib
from softgen.bench.scale import H200, WORK, predict
from softgen.disk import outputs

GPUS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
COLOURS = dict(zip(WORK, ("#d55e00", "#0072b2", "#009e73"), strict=True))
WIDTH, HEIGHT = 8.6, 3.6  # inches


def draw(rows: Sequence[dict[str, str]], path: Path) -> None:
    """Write the plot of what was timed as a PNG; MissingDependencyError without matplotlib.

    On the left the columns of one row are those of the table's one-GPU times, over all GPUs; on the
    right each GPU has as many. Which times belong where follows from their columns.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    whole = max(int(row["columns"]) for row in rows if int(row["gpus"]) == 1)
    figure = Figure(figsize=(WIDTH, HEIGHT), facecolor="white", layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, weak in zip(axes, (False, True), strict=True):
        for function, colour in COLOURS.items():
            mine = [row for row in rows if row["function"] == function]
            points = [row for row in mine if _columns(whole, int(row["gpus"]), weak) == _of(row)]
            height = int(mine[0]["rows"])
            lines = [predict(function, height, _columns(whole, n, weak), n, H200) for n in GPUS]
            axis.plot(GPUS, [each.total for each in lines], color=colour, linewidth=1.2)
            found = [(int(row["gpus"]), float(row["us_graph"])) for row in points]
            axis.plot(*zip(*found, strict=True), "o", color=colour, markersize=5, label=function)
        each = f"{whole} columns {'a GPU' if weak else 'in all'}"
        axis.set_title(f"{each}, {rows[0]['rows']} rows", loc="left", fontsize=9, color=INK)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(GPUS, [str(n) for n in GPUS])
        axis.set_xlabel("GPUs", fontsize=8, color=INK)
        axis.tick_params(labelsize=7, colors=INK)
        axis.grid(visible=True, color="#e4e4e4", linewidth=0.6)
    axes[0].set_ylabel("us in a graph; lines are predicted", fontsize=8, color=INK)
    axes[0].legend(frameon=False, fontsize=8, labelcolor=INK)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=DOTS_PER_INCH)
    outputs.write(path, image.getvalue())


def _columns(whole: int, gpus: int, weak: bool) -> int:
    """Return the columns of a row over so many GPUs."""
    return whole * gpus if weak else whole


def _of(row: dict[str, Any]) -> int:
    return int(row["columns"])


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    with source.open(newline="") as file:
        draw(list(csv.DictReader(file)), target)
