"""What was measured: one record a shape and competitor, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

from softgen.bench.shape import Shape
from softgen.disk import outputs
from softgen.errors import InvalidValueError
from softgen.problems.dtypes import DType
from softgen.problems.functions.base import Function
from softgen.problems.functions.softmax import SOFTMAX
from softgen.problems.problem import MAX_COLS, MAX_ROWS, Problem

LIMIT = "limit"  # the name of the fastest copy, or read, among the competitors
SOFTGEN = "softgen"


class Status(str, Enum):
    """What became of a competitor at a shape."""

    TIMED = "timed"  # by graph replay
    EAGER = "eager"  # by events around a loop of calls: what could not be captured
    HOST = "host"  # by the host's clock: what runs on the CPU
    ABSENT = "absent"  # not installed, or cannot run the shape
    WRONG = "wrong"  # too far from float64, hence not timed


class Regime(str, Enum):
    """Where a competitor finds its input, and what its time is."""

    COLD = "cold"  # in memory: the time is that of the competitor alone
    CHAINED = "chained"  # where its own launch before has put it, over a ring of buffers
    WARM = "warm"  # where a kernel has just put it: the time is that of a chain, see chain.py


@dataclass(frozen=True)
class Machine:
    """Where the figures are from.

    Attributes:
        device: the GPU's name.
        driver: its driver's version.
        versions: the version of every package that took part: "softgen 0.1.0; torch 2.11.0".
    """

    device: str
    driver: str
    versions: str


@dataclass(frozen=True)
class Record:
    """One competitor at one shape; times and rates are None where it was not timed.

    Attributes:
        microseconds: median device time of a call; of a whole chain if `regime` is warm. On the CPU
            the host's time.
        gigabytes_per_second: one read or write of every element of every array, over that time.
        ratio_to_limit: its time divided by that of the fastest copy of the same bytes, or of the
            fastest read where no element is written.
        max_relative_error: against float64, over the rows that were checked; for logarithms
            relative to 1 + their size.
        note: the variant, why it is absent, or what else a reader has to know.
        microseconds_p20: the 20% quantile of the samples whose median is `microseconds`. A sample
            is a mean over the launches of one replay, so they differ less than single launches.
        microseconds_p80: the 80% quantile. Both are None in tables from before there were any.
        case: the axis, the hook or the view, in words; "" for rows of a contiguous array.
    """

    suite: str
    dtype: str
    rows: int
    cols: int
    peer: str
    status: Status
    microseconds: float | None
    gigabytes_per_second: float | None
    ratio_to_limit: float | None
    max_relative_error: float | None
    note: str
    device: str
    driver: str
    versions: str
    regime: Regime
    function: str
    microseconds_p20: float | None = None
    microseconds_p80: float | None = None
    case: str = ""

    @property
    def shape(self) -> tuple[str, str, int, int]:
        """The suite, the type and the size, whoever computed what."""
        return self.suite, self.dtype, self.rows, self.cols

    @property
    def contest(self) -> tuple[tuple[str, str, int, int], str, Regime, str]:
        """What competitors are compared in: a shape, a function, a regime and a case."""
        return self.shape, self.function, self.regime, self.case

    @property
    def of_function(self) -> str:
        """The function, for the end of a phrase; nothing where it is softmax."""
        return "" if self.function == SOFTMAX.name else f" of {self.function}"

    @property
    def writes_elements(self) -> bool:
        """Whether there is a result of one element a column: then the limit is a copy."""
        return Problem.of(self.function, DType.FLOAT32, self.cols).writes_elements  # of any type

    @property
    def origin(self) -> str:
        """The device and the driver: figures of two origins are not compared."""
        return f"{self.device}, driver {self.driver}"

    def as_document(self) -> dict[str, Any]:
        """Return the record for JSON and CSV."""
        return asdict(self) | {"status": self.status.value, "regime": self.regime.value}


@dataclass(frozen=True)
class Finding:
    """What was found of one competitor at one shape.

    Attributes:
        microseconds: the median time; None where it was not timed.
        quantiles: the 20% and the 80% quantile of the times.
    """

    peer: str
    status: Status
    microseconds: float | None = None
    error: float | None = None
    note: str = ""
    quantiles: tuple[float, float] | None = None

    def timed(self, samples: Sequence[float]) -> Finding:
        """Return the finding with the median and the quantiles of its times, two or more."""
        fifths = statistics.quantiles(samples, n=5, method="inclusive")
        return replace(
            self, microseconds=statistics.median(samples), quantiles=(fifths[0], fifths[-1])
        )


def records_of(
    shape: Shape, findings: Sequence[Finding], machine: Machine, regime: Regime = Regime.COLD
) -> list[Record]:
    """Return the records of one shape, with their rates and their ratios to the limit.

    Numbers are rounded to what the clock can tell, here and not where they are written, so that a
    table read back is the same.
    """
    moved = shape.moved_bytes
    limit = next((found.microseconds for found in findings if found.peer == LIMIT), None)
    records = []
    for found in findings:
        time = found.microseconds
        low, high = found.quantiles or (None, None)
        records.append(
            Record(
                suite=shape.suite,
                dtype=shape.dtype.value,
                rows=shape.rows,
                cols=shape.cols,
                peer=found.peer,
                status=found.status,
                microseconds=round(time, 3) if time else None,
                gigabytes_per_second=round(moved / time / 1e3, 1) if time else None,
                ratio_to_limit=round(time / limit, 4) if time and limit else None,
                max_relative_error=_rounded_error(found.error),
                note=found.note,
                **asdict(machine),
                regime=regime,
                function=shape.function.name,
                microseconds_p20=round(low, 3) if low else None,
                microseconds_p80=round(high, 3) if high else None,
                case=str(shape.case) if shape.case else "",
            )
        )
    return records


def _rounded_error(error: float | None) -> float | None:
    # JSON knows no infinity, which is the error of a NaN.
    return None if error is None else float(f"{min(error, 1e300):.3g}")


COLUMNS = tuple(field.name for field in fields(Record))
# Tables from before there was a warm regime lack it: all of theirs is cold.
COLUMNS_WITHOUT_REGIME = COLUMNS[: COLUMNS.index("regime")]
# Older ones lack the function, which is softmax.
COLUMNS_WITHOUT_FUNCTION = COLUMNS[: COLUMNS.index("function")]
# Tables from before quantiles were kept lack them.
COLUMNS_WITHOUT_QUANTILES = COLUMNS[: COLUMNS.index("microseconds_p20")]
# Tables from before there were other axes, hooks and views lack the case: all are plain rows.
COLUMNS_WITHOUT_CASE = COLUMNS[: COLUMNS.index("case")]
_ACCEPTED = (
    COLUMNS,
    COLUMNS_WITHOUT_CASE,
    COLUMNS_WITHOUT_QUANTILES,
    COLUMNS_WITHOUT_FUNCTION,
    COLUMNS_WITHOUT_REGIME,
)
_INTEGERS = {"rows": MAX_ROWS, "cols": MAX_COLS}  # and the most of each
_NUMBERS = (
    "microseconds",
    "gigabytes_per_second",
    "ratio_to_limit",
    "max_relative_error",
    "microseconds_p20",
    "microseconds_p80",
)


def to_csv(records: Iterable[Record]) -> str:
    """Return a table with one line a record, after one of column names."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(record.as_document() for record in records)
    return text.getvalue()


def write_csv(path: Path, records: Iterable[Record], *, done: bool = True) -> None:
    """Write the table of `records` to a path that a user named.

    Unless `done`, a table of more will follow: then nothing is written where that would be a second
    one, as into a pipe.
    """
    if done or outputs.is_replaced(path):
        outputs.write(path, to_csv(records).encode())


def read_csv(path: Path) -> list[Record]:
    """Return the records of a file that `softgen bench --csv` wrote.

    Raises InvalidValueError, naming the file and the line, for anything else.
    """
    try:
        reader = csv.reader(io.StringIO(path.read_text()))
        # A cell in quotes may hold the ends of several lines.
        lines = [(reader.line_num, line) for line in reader]
    except OSError as error:
        raise InvalidValueError(f"cannot read {path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidValueError(
            f"{path} is no CSV; give a file that `softgen bench --csv` wrote"
        ) from error
    columns = tuple(lines[0][1]) if lines else ()
    if columns not in _ACCEPTED:
        raise InvalidValueError(
            f"{path} is not a table of `softgen bench --csv`: its first line must be "
            f"{','.join(COLUMNS_WITHOUT_REGIME)}, and may end with ,regime or ,regime,function or "
            f",{','.join(COLUMNS[len(COLUMNS_WITHOUT_REGIME) :])}"
        )
    records = []
    for number, line in lines[1:]:
        if len(line) != len(columns):
            raise InvalidValueError(
                f"{path}: line {number} has {len(line)} fields, its header {len(columns)}; give a "
                "whole file of `softgen bench --csv`"
            )
        try:
            records.append(_record(dict(zip(columns, line, strict=True))))
        except ValueError as error:
            raise InvalidValueError(f"{path}, line {number}: {error}") from error
    return records


def _record(cells: dict[str, str]) -> Record:
    values: dict[str, Any] = dict(cells)
    values["status"] = Status(cells["status"])
    values["regime"] = Regime(cells.get("regime", Regime.COLD))
    values["function"] = Function.of(cells.get("function", SOFTMAX)).name
    for name, most in _INTEGERS.items():
        values[name] = int(cells[name])
        if not 1 <= values[name] <= most:
            raise ValueError(f"{name} must be from 1 to {most}, got {cells[name]}")
    for name in _NUMBERS:
        values[name] = _figure(name, cells[name]) if cells.get(name) else None
    return Record(**values)


def _figure(name: str, cell: str) -> float:
    # Nothing that was measured is nan or inf, and JSON has no way to write them.
    figure = float(cell)
    if not (math.isfinite(figure) and figure >= 0):
        raise ValueError(f"{name} must be a finite number, 0 or more, got {cell}")
    return figure


def timed_calls(path: Path) -> list[dict[str, Record]]:
    """Return what was timed on a GPU in a file: for each call the records by competitor."""
    found: dict[object, dict[str, Record]] = {}
    for record in read_csv(path):
        if record.microseconds and record.status is not Status.HOST:
            found.setdefault(record.contest, {})[record.peer] = record
    return list(found.values())
