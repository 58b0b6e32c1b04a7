"""The heat maps of a search: time over two knobs, a map for each setting of the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from softgen.bench.record import LIMIT, Record
from softgen.strategies.variants import parse_label

AXES = ("block_size", "unroll")  # where a strategy has both: FastSoftmax's search
MOST_MAPS = 8  # of one shape; where there would be more, a cell is the fastest of the other knobs
COLUMNS = 2
WIDTH, MAP_HEIGHT, HEAD = 9.6, 3.0, 0.6  # inches
RATIOS = (1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100)  # that are marked beside the colours

Knobs = dict[str, int | bool]


@dataclass(frozen=True)
class HeatMap:
    """Times over two knobs.

    Attributes:
        title: the shape, and the knobs that do not vary.
        x: the name and the values of the knob along the columns.
        y: those of the knob along the rows; no name if but one varies.
        cells: microseconds by (x, y), those that were timed.
    """

    title: str
    x: tuple[str, tuple[int, ...]]
    y: tuple[str, tuple[int, ...]]
    cells: dict[tuple[int, int], float]


def heat_maps(records: Sequence[Record]) -> list[HeatMap]:
    """Return the maps of every shape and strategy among the records of searches."""
    together: dict[tuple[object, ...], list[tuple[Knobs, Record]]] = {}
    for record in records:
        if record.peer != LIMIT:
            setting = parse_label(record.peer)
            key = (record.origin, record.contest, setting.name)
            together.setdefault(key, []).append((setting.knobs, record))
    return [each for found in together.values() if _timed(found) for each in _of_one(found)]


def _timed(found: Sequence[tuple[Knobs, Record]]) -> bool:
    return any(record.microseconds for _, record in found)


def _of_one(found: Sequence[tuple[Knobs, Record]]) -> list[HeatMap]:
    """Return the maps of one strategy at one shape."""
    values = {name: tuple(sorted({int(knobs[name]) for knobs, _ in found})) for name in found[0][0]}
    x, y = _axes(values)
    rest = [name for name in values if name not in (x, y) and len(values[name]) > 1]
    groups: dict[tuple[int, ...], list[tuple[Knobs, Record]]] = {}
    for knobs, record in found:
        groups.setdefault(tuple(int(knobs[name]) for name in rest), []).append((knobs, record))
    if len(groups) > MOST_MAPS:
        groups, rest = {(): list(found)}, []
    record = found[0][1]
    what = f"{record.peer.partition('_')[0]}, {record.dtype} {record.rows} x {record.cols}"
    what += record.of_function
    maps = []
    for chosen, mine in groups.items():
        cells: dict[tuple[int, int], float] = {}
        for knobs, each in mine:
            at = (int(knobs[x]), int(knobs[y]) if y else 0)
            if each.microseconds:
                cells[at] = min(each.microseconds, cells.get(at, math.inf))
        if cells:
            fixed = ", ".join(f"{n} {v}" for n, v in zip(rest, chosen, strict=True))
            title = f"{what}\n{fixed}" if fixed else what
            maps.append(HeatMap(title, (x, values[x]), (y, values[y] if y else (0,)), cells))
    return maps


def _axes(values: dict[str, tuple[int, ...]]) -> tuple[str, str]:
    """Return the knobs along columns and rows: those of AXES, else the two with most values."""
    if all(len(values.get(name, ())) > 1 for name in AXES):
        return AXES
    ranked = sorted(values, key=lambda name: -len(values[name]))
    second = ranked[1] if len(ranked) > 1 and len(values[ranked[1]]) > 1 else ""
    return ranked[0], second


def heat_figure(records: Sequence[Record]) -> Any:
    """Return the heat maps as a matplotlib Figure.

    A cell has its microseconds, and its colour their ratio to the fastest of its shape.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    found = heat_maps(records)
    lines = -(-len(found) // COLUMNS)
    figure = Figure(
        figsize=(WIDTH, MAP_HEIGHT * lines + HEAD), facecolor="white", layout="constrained"
    )
    axes = figure.subplots(lines, COLUMNS, squeeze=False).ravel()
    fastest: dict[str, float] = {}
    for each in found:
        shape = each.title.partition("\n")[0]
        fastest[shape] = min(*each.cells.values(), fastest.get(shape, math.inf), math.inf)
    ratios = {
        id(each): {
            at: time / fastest[each.title.partition("\n")[0]] for at, time in each.cells.items()
        }
        for each in found
    }
    slowest = max(max(cells.values()) for cells in ratios.values())
    norm = LogNorm(1.0, max(1.01, slowest))
    for each, axis in zip(found, axes, strict=False):
        image = _draw(each, ratios[id(each)], norm, axis)
    for axis in axes[len(found) :]:
        axis.set_visible(False)
    bar = figure.colorbar(image, ax=list(axes), shrink=0.6, pad=0.02)
    bar.set_label("time / fastest", fontsize=8)
    marked = [each for each in RATIOS if each <= slowest]
    bar.set_ticks(marked, labels=[f"{each:g}" for each in marked])
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    bar.ax.tick_params(labelsize=7)
    origins = dict.fromkeys(record.origin for record in records)
    figure.suptitle("; ".join(origins), x=0.01, ha="left", fontsize=7)
    return figure


def _draw(each: HeatMap, ratios: dict[tuple[int, int], float], norm: Any, axis: Any) -> Any:
    (x_name, xs), (y_name, ys) = each.x, each.y
    matrix = [[ratios.get((x, y), math.nan) for x in xs] for y in ys]
    image = axis.imshow(matrix, norm=norm, cmap="viridis_r", aspect="auto", origin="lower")
    for row, y in enumerate(ys):
        for column, x in enumerate(xs):
            if (x, y) in each.cells:
                axis.text(
                    *(column, row, f"{each.cells[x, y]:.3g}"),
                    ha="center",
                    va="center",
                    fontsize=6.5,
                    color="white" if norm(ratios[x, y]) > 0.5 else "black",
                )
    axis.set_xticks(range(len(xs)), xs)
    axis.set_yticks(range(len(ys)) if y_name else [], ys if y_name else [])
    axis.set_xlabel(x_name, fontsize=8)
    axis.set_ylabel(y_name, fontsize=8)
    axis.set_title(f"{each.title}, us", loc="left", fontsize=8, fontweight="bold")
    axis.tick_params(labelsize=7)
    return image
