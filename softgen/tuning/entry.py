"""One tuned choice: what it is for, what won, what every candidate took; and its JSON form."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from softgen.errors import InvalidValueError, SoftgenError
from softgen.problems.problem import Problem, rows_bucket, whole_number
from softgen.source.render import render
from softgen.source.store import source_of
from softgen.strategies.registry import strategy_named
from softgen.strategies.variants import Variant

SCHEMA = 2


class Key(NamedTuple):
    """What a stored choice is for.

    Attributes:
        problem: the compile-time part of the request.
        rows: the number of rows, rounded up to a power of two.
        environment: device, compiler, driver and strategies that were added, as pairs.
    """

    problem: Problem
    rows: int
    environment: tuple[tuple[str, str | int], ...]

    @classmethod
    def of(cls, problem: Problem, rows: int, environment: dict[str, str | int]) -> Key:
        """Return the key of `rows` rows in `environment`."""
        return cls(problem, rows_bucket(rows), tuple(sorted(environment.items())))

    @property
    def file_name(self) -> str:
        """Readable, and unique by a digest of the whole key."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return (
            f"{self.problem.label}_rows{self.rows}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
            ".json"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the key as JSON values."""
        return {
            "problem": self.problem.as_json,
            "rows": self.rows,
            "environment": dict(self.environment),
        }


class Timing(NamedTuple):
    """Device time of one candidate in microseconds: median and the 10th and 90th percentile."""

    variant: str
    microseconds: float
    p10: float
    p90: float

    @classmethod
    def of(cls, variant: str, samples: Sequence[float]) -> Timing:
        """Return the median and the percentiles of one sample or more."""
        import statistics  # 5 ms that a first call does not spend

        if len(samples) == 1:
            return cls(variant, samples[0], samples[0], samples[0])
        deciles = statistics.quantiles(samples, n=10, method="inclusive")
        return cls(variant, statistics.median(samples), deciles[0], deciles[-1])

    def times(self, factor: float) -> Timing:
        """Return the times of so many times the rows, as they grow with the rows."""
        return self._replace(
            microseconds=factor * self.microseconds, p10=factor * self.p10, p90=factor * self.p90
        )


@dataclass(frozen=True)
class Entry:
    """A stored choice.

    Attributes:
        key: what it is for.
        winner: the chosen variant.
        timings: of every candidate that was timed, fastest first; of all rows, also where fewer
            were timed because memory is short.
        failures: why candidates were not timed, by variant name.
        code: the digest of the winner's text without comments and blank lines, of its options and
            its launch; today's unless it is given.
        rows: how many rows the timings are of: at most those of the key, its bucket. Entries of
            earlier versions do not say it, and have those of the key.
    """

    key: Key
    winner: Variant
    timings: tuple[Timing, ...]
    failures: tuple[tuple[str, str], ...] = ()
    code: str = ""
    rows: int = 0

    def __post_init__(self) -> None:
        if not self.rows:
            object.__setattr__(self, "rows", self.key.rows)
        if not self.code:
            object.__setattr__(self, "code", render(self.winner).code_sha256)

    @property
    def is_current(self) -> bool:
        """Whether softgen emits the code that was timed for the winner today."""
        try:
            return self.code == source_of(self.winner).code_sha256
        except SoftgenError:  # of a strategy or function that was added, and fails today
            return False

    @property
    def microseconds(self) -> float | None:
        """The winner's median time; None where an imported entry lacks it."""
        name = self.winner.name
        return next((t.microseconds for t in self.timings if t.variant == name), None)

    def to_json(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        return {
            "schema": SCHEMA,
            "key": self.key.to_json(),
            "winner": {
                "strategy": self.winner.strategy.name,
                "parameters": self.winner.strategy.knobs,
            },
            "timings": [timing._asdict() for timing in self.timings],
            "failures": dict(self.failures),
            "code": self.code,
            "rows": self.rows,
        }


def problem_from_json(data: dict[str, Any]) -> Problem:
    """Return the problem that `Problem.as_json` wrote."""
    fields = dict(data)
    return Problem.of(fields.pop("function"), fields.pop("dtype"), fields.pop("cols"), **fields)


def entry_from_json(data: Any) -> Entry:
    """Return the entry that `Entry.to_json` wrote; raise InvalidValueError for anything else."""
    try:
        if data["schema"] != SCHEMA:
            raise InvalidValueError(f"schema {data['schema']!r}, this softgen reads {SCHEMA}")
        problem = problem_from_json(data["key"]["problem"])
        fixed = data["key"]["problem"].get("fixed_order", False)
        if type(fixed) is not bool:
            raise InvalidValueError(f"fixed_order must be true or false, got {fixed!r}")
        rows = whole_number("rows of a key", data["key"]["rows"])
        if rows < 1:
            raise InvalidValueError(f"rows of a key must be at least 1, got {rows}")
        environment = tuple(sorted(data["key"]["environment"].items()))
        for name, value in environment:
            if type(value) is not int and not _is_text(value):  # keys are hashed, devices printed
                raise InvalidValueError(f"{name} must be a text or a number, got {value!r}")
        kind = strategy_named(data["winner"]["strategy"])
        if not kind.tuned:
            raise InvalidValueError(f"the strategy {kind.name} is never tuned")
        parameters = data["winner"]["parameters"]
        for field in kind.fields():
            value = parameters.get(field.name, field.default)
            if value is not field.default and type(value).__name__ != field.type:  # True is no 1
                raise InvalidValueError(f"{field.name} must be {field.type}: {parameters}")
        winner = Variant(problem, kind(**parameters))
        return Entry(
            Key(problem, rows, environment),
            winner,
            tuple(_timing_from_json(timing) for timing in data["timings"]),
            _failures_from_json(data["failures"]),
            _code_from_json(data),
            _rows_from_json(data),
        )
    except SoftgenError as error:
        raise InvalidValueError(str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidValueError(f"not an entry of softgen's cache ({error!r})") from error


def _timing_from_json(data: Any) -> Timing:
    timing = Timing(**data)
    for name in ("microseconds", "p10", "p90"):
        value = getattr(timing, name)
        # Rates are found by dividing by it; and Python reads NaN and Infinity from JSON.
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise InvalidValueError(f"{name} must be a positive number, got {value!r}")
    if not _is_text(timing.variant):
        raise InvalidValueError(f"variant must be a name, got {timing.variant!r}")
    return timing


def _failures_from_json(data: Any) -> tuple[tuple[str, str], ...]:
    for name, reason in data.items():
        if not _is_text(name) or not _is_text(reason):
            raise InvalidValueError(f"a failure must be a text, got {name!r}: {reason!r}")
    return tuple(data.items())


def _code_from_json(data: Any) -> str:
    """Return the digest; an earlier version had another one, of files."""
    code = data.get("code") or "of an earlier version"
    if not _is_text(code):
        raise InvalidValueError(f"code must be a text, got {code!r}")
    return str(code)


def _rows_from_json(data: Any) -> int:
    """Return how many rows were timed; 0 where an earlier version did not say it."""
    rows, most = data.get("rows", 0), int(data["key"]["rows"])
    if type(rows) is not int or not 0 <= rows <= most:
        raise InvalidValueError(f"rows must be a number up to {most}, got {rows!r}")
    return rows


def _is_text(value: Any) -> bool:
    """Whether `value` is a str that can be written; JSON can hold half of a surrogate pair."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)
