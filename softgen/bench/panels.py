"""What a plot shows, before it is drawn: the records of each panel, the line of each competitor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from softgen.bench.record import Record, Regime, Status
from softgen.spec.functions.softmax import SOFTMAX

# Fewer widths than this make no line; such shapes share a panel with one place a shape.
LEAST_WIDTHS = 3


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
