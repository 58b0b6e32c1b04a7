"""The plot of `softgen bench`: GB/s over columns, a line a competitor, the limit dashed."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from softgen.bench.heat import heat_figure
from softgen.bench.record import LIMIT, SOFTGEN, Record, Regime, Status
from softgen.bench.suites import GRID
from softgen.disk import outputs
from softgen.errors import InvalidValueError, MissingDependencyError
from softgen.logs import printable
from softgen.problems.functions.softmax import SOFTMAX

WIDTH, PANEL_HEIGHT, FOOT_HEIGHT = 8.6, 3.3, 0.75  # inches; a README shows about 830 pixels
DOTS_PER_INCH = 200
MOST_LABELS = 13  # powers of two along an axis before they touch

# Okabe and Ito's colours, which the colour-blind can tell apart, and greys for softgen's own
# baselines. An opaque white ground reads the same on a light page and on a dark one.
INK = "#222222"
COLOURS = {
    SOFTGEN: "#d55e00",
    "softgen-untuned": "#e9a06b",
    "oneflow": "#999999",
    "torch": "#0072b2",
    "torch.compile": "#56b4e9",
    "triton": "#009e73",
    "cupyx": "#b8a400",
    "quack": "#cc79a7",
    "liger": "#7a5195",
    "flashinfer": "#5b4a3f",
}
MARKERS = "osD^vP*Xhd"
MOST_MARKERS = 30  # of a line, before they run into one another


# Those that have no colour of their own, as steps of a ladder, take these in turn: Paul Tol's muted
# scheme, for the colour-blind too. Their lines are dashed, and dotted when all have been taken.
OTHERS = (
    *("#332288", "#88ccee", "#117733", "#999933", "#cc6677"),
    *("#882255", "#44aa99", "#ddcc77", "#aa4499"),
)
DASHES = ((0, (4, 1.5)), (0, (1, 1)))
# Rates of one shape that differ by more are on a logarithmic axis: one that began at 0 would have
# the slow ones on top of each other at its foot.
LINEAR_WITHIN = 30.0
# Fewer widths than this make no line; such shapes share a panel with one place a shape.
LEAST_WIDTHS = 3

Look = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """One competitor: x positions and GB/s.

    Attributes:
        eager: whether a point was timed by a loop of calls, which the host may slow down.
    """

    peer: str
    points: tuple[tuple[float, float], ...]
    eager: bool


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        places: the label of every x position if x counts shapes; empty if x is the width.
    """

    title: str
    lines: tuple[Line, ...]
    places: tuple[str, ...] = ()


def panels(records: Sequence[Record]) -> list[Panel]:
    """Return the panels for records of any suites, in the order of the records.

    What ran on the CPU is in none: its rate is a thousandth of theirs, and of another memory.
    """
    timed = [r for r in records if r.gigabytes_per_second and r.status is not Status.HOST]
    origins = {record.origin for record in timed}
    together: dict[tuple[str, str, str, str, Regime], list[Record]] = {}
    for record in timed:
        key = (record.origin, record.suite, record.function, record.dtype, record.regime)
        together.setdefault(key, []).append(record)
    return [
        panel
        for (origin, *_), mine in together.items()
        for panel in _of_suite(mine, f" ({origin})" if len(origins) > 1 else "")
    ]


def _of_suite(records: Sequence[Record], where: str) -> Iterator[Panel]:
    widths: dict[int, set[int]] = {}
    for record in records:
        widths.setdefault(record.rows, set()).update([] if record.case else [record.cols])
    function = "" if records[0].function == SOFTMAX.name else f"{records[0].function}, "
    title = f"{records[0].suite}: {function}{records[0].dtype}"
    if records[0].regime is Regime.WARM:
        title += ", between two copies"
    elif records[0].regime is Regime.CHAINED:
        title += ", chained"
    for rows, cols in widths.items():
        if len(cols) >= LEAST_WIDTHS:
            mine = [record for record in records if record.rows == rows]
            yield Panel(f"{title}, {rows} rows{where}", _lines(mine, lambda record: record.cols))
    others = [record for record in records if len(widths[record.rows]) < LEAST_WIDTHS]
    if others:
        places = list(dict.fromkeys(map(_place, others)))
        lines = _lines(others, lambda record: places.index(_place(record)))
        yield Panel(f"{title}, rows x columns{where}", lines, tuple(places))


def _place(record: Record) -> str:
    return record.case or f"{record.rows} x {record.cols}"


def _lines(records: Sequence[Record], position: Callable[[Record], int]) -> tuple[Line, ...]:
    lines = []
    for peer in dict.fromkeys(record.peer for record in records):
        mine = [record for record in records if record.peer == peer]
        points = sorted((float(position(r)), r.gigabytes_per_second or 0.0) for r in mine)
        eager = any(record.status is Status.EAGER for record in mine)
        lines.append(Line(peer, tuple(points), eager))
    return tuple(lines)


def looks_of(peers: Sequence[str]) -> dict[str, Look]:
    """Return colour, marker and line style of each competitor, no two alike up to 18 others."""
    known = {peer: number for number, peer in enumerate(COLOURS)}
    others = [peer for peer in dict.fromkeys(peers) if peer not in known]
    looks: dict[str, Look] = {}
    for peer in dict.fromkeys(peers):
        if peer in known:
            look: Look = {"color": COLOURS[peer], "marker": MARKERS[known[peer] % len(MARKERS)]}
        else:
            turn, number = divmod(others.index(peer), len(OTHERS))
            look = {"color": OTHERS[number], "marker": MARKERS[number % len(MARKERS)]}
            look["linestyle"] = DASHES[turn % len(DASHES)]
        looks[peer] = look
    return looks


def require_matplotlib() -> None:
    """Raise MissingDependencyError, with the way to install it, where matplotlib is absent."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"matplotlib cannot be imported ({error}), and --plot draws with it; "
            "install it with `pip install '.[bench]'` in the clone of softgen"
        ) from error


def draw(records: Sequence[Record], path: Path) -> None:
    """Write the plot of `records` to `path` as PNG, whole or not at all.

    Raises MissingDependencyError without matplotlib, InvalidValueError if nothing was timed.
    """
    image = io.BytesIO()
    # Matplotlib would write its version into the file.
    figure_of(records).savefig(image, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    outputs.write(path, image.getvalue())


def figure_of(records: Sequence[Record]) -> Any:
    """Return the plot as a matplotlib Figure: one pair of axes a panel, one beneath the other.

    Records of searches give heat maps; InvalidValueError where there are others beside them.
    """
    require_matplotlib()
    records = [_as_it_is(record) for record in records]
    searches = sum(record.suite == GRID for record in records)
    if searches and searches < len(records):
        raise InvalidValueError(
            f"suite {GRID} is drawn as heat maps, in a file of its own; choose by --suite"
        )
    if any(record.microseconds for record in records) and searches:
        return heat_figure(records)
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    found = panels(records)
    if not found:
        raise InvalidValueError("nothing was timed, so there is nothing to plot")
    height = PANEL_HEIGHT * len(found) + FOOT_HEIGHT
    above_foot = ConstrainedLayoutEngine(
        rect=(0, FOOT_HEIGHT / height, 1, 1 - FOOT_HEIGHT / height)
    )
    figure = Figure(figsize=(WIDTH, height), facecolor="white", layout=above_foot)
    axes = figure.subplots(len(found), 1, squeeze=False)[:, 0]
    looks = looks_of([line.peer for panel in found for line in panel.lines if line.peer != LIMIT])
    for panel, axis in zip(found, axes, strict=True):
        _draw_panel(panel, axis, looks)
    figure.text(0.012, 0.09 / height, _origin(records), fontsize=6.5, color=INK, va="bottom")
    return figure


def _as_it_is(record: Record) -> Record:
    """Return a record whose words are drawn as they are.

    Matplotlib takes what stands between two $ for a formula, and warns of control characters.
    """
    words: dict[str, Any] = {
        name: printable(each).replace("$", r"\$")
        for name, each in vars(record).items()
        if type(each) is str
    }
    return replace(record, **words)


def _draw_panel(panel: Panel, axis: Any, looks: dict[str, Look]) -> None:
    widths = sorted({x for line in panel.lines for x, _ in line.points})
    for line in _emphasis_last(panel.lines):
        points = list(line.points) if panel.places else _broken(line, widths)
        axis.plot(*zip(*points, strict=True), **_style(line, looks, bool(panel.places)))
    _label_columns(panel, axis)
    axis.set_title(panel.title, loc="left", fontsize=9, fontweight="bold", color=INK)
    axis.set_ylabel("GB/s", fontsize=8, color=INK)
    rates: dict[float, list[float]] = {}
    for x, rate in (point for line in panel.lines for point in line.points):
        rates.setdefault(x, []).append(rate)
    if any(max(each) > LINEAR_WITHIN * min(each) for each in rates.values()):
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
    else:
        axis.set_ylim(bottom=0)
    axis.tick_params(labelsize=7.5, colors=INK)
    axis.grid(visible=True, color="#e4e4e4", linewidth=0.6)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    handles, labels = axis.get_legend_handles_labels()
    order = [labels.index(_name(line)) for line in panel.lines]
    axis.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        frameon=False,
        fontsize=7.5,
        labelcolor=INK,
    )


def _broken(line: Line, widths: Sequence[float]) -> list[tuple[float, float]]:
    """Return the points of a line, and a gap for each width between them that was not timed."""
    timed = dict(line.points)
    first, last = min(timed), max(timed)
    return [(x, timed.get(x, math.nan)) for x in widths if first <= x <= last]


def _emphasis_last(lines: Sequence[Line]) -> list[Line]:
    """Return the lines so that softgen's is drawn over all others."""
    return sorted(lines, key=lambda line: line.peer == SOFTGEN)


def _name(line: Line) -> str:
    return f"{line.peer} (eager)" if line.eager else line.peer


def _style(line: Line, looks: dict[str, Look], places: bool) -> dict[str, Any]:
    """Return how to draw a line; shapes without an order get markers only."""
    style: dict[str, Any] = {
        "label": _name(line),
        "linewidth": 1.1,
        "markersize": 5 if places else 2.8,
        **looks.get(line.peer, {}),
    }
    if line.peer == LIMIT:
        style |= {"color": INK, "linestyle": "--", "marker": "_" if places else ""}
        style |= {"markersize": 14, "markeredgewidth": 1.5}
    if line.peer == SOFTGEN:
        style |= {"linewidth": 2.6, "markersize": 7 if places else 4}
    if places:
        style["linestyle"] = ""
    elif len(line.points) > MOST_MARKERS:
        style["marker"] = ""
    return style


def _label_columns(panel: Panel, axis: Any) -> None:
    if panel.places:
        axis.set_xticks(range(len(panel.places)), panel.places, rotation=30, ha="right")
        return
    from matplotlib.ticker import NullLocator

    axis.set_xscale("log", base=2)
    widths = [x for line in panel.lines for x, _ in line.points]
    powers = range(int(min(widths)).bit_length() - 1, int(max(widths) - 1).bit_length() + 1)
    shown = powers[:: -(-len(powers) // MOST_LABELS)]
    axis.set_xticks([2**power for power in shown], [_short(2**power) for power in shown])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("columns", fontsize=8, color=INK)


def _short(number: int) -> str:
    """Return 65536 as 64K, and what is not a multiple of 1024 as it is."""
    for unit, letter in ((1 << 20, "M"), (1 << 10, "K")):
        if number % unit == 0:
            return f"{number // unit}{letter}"
    return str(number)


def _origin(records: Sequence[Record]) -> str:
    """Return where the figures are from and how they were taken, for beneath the plot."""
    lines = list(dict.fromkeys(f"{r.device}, driver {r.driver}; {r.versions}" for r in records))
    timing = "Median device time by CUDA graph replay over rotating buffers larger than L2;"
    if any(record.writes_elements for record in records):
        lines.append(
            f"{timing} one read and one write of each element counted. limit: the fastest of "
            "several copies of the same bytes in the same run."
        )
    if not all(record.writes_elements for record in records):
        which = dict.fromkeys(r.function for r in records if not r.writes_elements)
        lines.append(
            f"{timing} one read of each element counted for {', '.join(which)}. limit: there the "
            "fastest of several kernels that only read the same bytes in the same run."
        )
    if any(record.regime is Regime.WARM for record in records):
        lines.append(
            "Between two copies: one writes the input just before, one reads the output, and the "
            "time is that of all three."
        )
    if any(record.regime is Regime.CHAINED for record in records):
        lines.append("Chained: each launch reads what the launch before it has written.")
    return "\n".join(wrapped for line in lines for wrapped in textwrap.wrap(line, 170))
