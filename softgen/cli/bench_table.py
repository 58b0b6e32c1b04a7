"""The tables of `softgen bench`: a line a shape, and why a competitor is missing from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from softgen.cli import output
from softgen.logs import printable
from softgen.problems.dtypes import DType

if TYPE_CHECKING:
    from softgen.bench.record import Record


def own(record: Record) -> bool:
    """Whether a record is of a kernel of softgen's."""
    from softgen.bench.roster import others

    return record.peer not in others()


def show(records: Sequence[Record]) -> None:
    """Print for each device the ratios to the limit, and what to know of single competitors."""
    for number, origin in enumerate(dict.fromkeys(record.origin for record in records)):
        if number:
            output.result("")
        output.result(origin)
        _show_one([record for record in records if record.origin == origin])


def _show_one(records: Sequence[Record]) -> None:
    """Print the report on the records of one device."""
    lines = ratios(records)
    if output.table_width(lines[0], lines[1:]) <= output.width():
        output.table(lines[0], lines[1:])
    else:
        suites = dict.fromkeys(record.suite for record in records)
        if len(suites) == 1:  # otherwise it is a column
            output.result(f"suite {next(iter(suites))}")
        for heads, *rows in narrow(lines, output.width()):
            output.table(heads, rows)
            output.result("")
    output.result(
        f"time over that of {_limit_of(records)} (limit, in us); ~ is eager, ^ on the CPU, "
        "- is absent"
    )
    for line in remarks(records):
        output.result(line)


def _limit_of(records: Sequence[Record]) -> str:
    """Return what the times are compared with."""
    writing = {record.writes_elements for record in records}
    if False not in writing:
        return "the fastest copy"
    if True not in writing:
        return "the fastest read"
    return "the fastest copy, or read where one number a row is written"


def ratios(records: Sequence[Record]) -> list[list[str]]:
    """Return headings and a line for each contest: the ratio to the limit of every competitor.

    The last column is softgen's time over that of the fastest other library. The function has a
    column where it is not softmax everywhere, and the regime where it is not cold everywhere.
    """
    from softgen.bench.record import LIMIT, SOFTGEN, Regime

    peers = [peer for peer in dict.fromkeys(r.peer for r in records) if peer != LIMIT]
    functions = ["function"] if any(record.of_function for record in records) else []
    regimes = ["regime"] if any(record.regime is not Regime.COLD for record in records) else []
    cases = ["case"] if any(record.case for record in records) else []
    heads = ["suite", "dtype", "rows", "cols", *functions, *regimes, *cases]
    named = map(printable, peers)  # here, as `narrow` breaks headings and may do it at no letter
    table = [[*heads, LIMIT, *named, f"{SOFTGEN} / best peer"]]
    for contest in dict.fromkeys(record.contest for record in records):
        found = {r.peer: r for r in records if r.contest == contest}
        shape, function, regime, case = contest
        limit = found[LIMIT].microseconds if LIMIT in found else None
        others = [r.microseconds for r in found.values() if r.microseconds and _competes(r)]
        mine = found[SOFTGEN].microseconds if SOFTGEN in found else None
        best = f"{mine / min(others):.2f}" if mine and others else "-"
        cells = [_cell(found.get(peer)) for peer in peers]
        where = [*map(str, shape), *([function] if functions else [])]
        where += [regime.value] if regimes else []
        where += [case] if cases else []
        table.append([*where, f"{limit:.2f}" if limit else "-", *cells, best])
    return table


def narrow(lines: Sequence[Sequence[str]], width: int) -> list[list[list[str]]]:
    """Return the tables that show what `ratios` returned in `width` columns, headings first.

    A shape is one word, a heading is broken at its hyphen, and the competitors go on in a second
    table, or a third, behind the shapes again.
    """
    heads, *rows = lines
    first = heads.index("limit")
    short = {dtype.value: dtype.short for dtype in DType}
    keys = [["shape", *(f"{short.get(row[1], row[1])} {row[2]}x{row[3]}" for row in rows)]]
    if len({row[0] for row in rows}) > 1:
        keys.append(["suite", *(row[0] for row in rows)])
    keys += [[heads[n], *(row[n] for row in rows)] for n in range(4, first)]
    used = sum(output.column_width(head, cells) + output.GAP for head, *cells in keys)

    tables, left = [list(keys)], width - used
    for number in range(first, len(heads)):
        broken = re.sub(r"(-|\.| /) ?", r"\1\n", heads[number])
        column = [broken, *(row[number] for row in rows)]
        needed = output.column_width(broken, column[1:])
        if needed > left and len(tables[-1]) > len(keys):
            tables.append(list(keys))
            left = width - used
        tables[-1].append(column)
        left -= needed + output.GAP
    return [[list(line) for line in zip(*columns, strict=True)] for columns in tables]


def _competes(record: Record) -> bool:
    """Whether a record is of another library's kernel on the GPU."""
    from softgen.bench.record import LIMIT, Status

    return not (record.peer == LIMIT or record.status is Status.HOST or own(record))


def _cell(record: Record | None) -> str:
    from softgen.bench.record import Status

    if record is None or record.status is Status.ABSENT:
        return "-"
    if record.status is Status.WRONG:
        return "WRONG"
    ratio = f"{record.ratio_to_limit:.2f}" if record.ratio_to_limit else "?"
    return {Status.EAGER: "~", Status.HOST: "^"}.get(record.status, "") + ratio


def remarks(records: Sequence[Record]) -> list[str]:
    """Return why competitors are absent, wrong or eager, each reason once, with its count.

    Reasons that differ in numbers only are one, told by its first.
    """
    from softgen.bench.record import Status

    found: dict[tuple[str, str, str, str], list[str]] = {}
    for record in records:
        if record.status != Status.TIMED:
            kind = re.sub(r"\d[\d.e-]*", "#", record.note)
            key = (record.peer, record.status.value, record.of_function, kind)
            found.setdefault(key, []).append(record.note)
    return [
        f"{peer}: {status} at {output.count(len(notes), 'shape')}{of_function}: {notes[0]}"
        + (", and alike" if len(set(notes)) > 1 else "")
        for (peer, status, of_function, _), notes in found.items()
    ]
