"""The table of candidates, as `softgen explain` and `softgen tune --candidates` print it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softgen.cli import output
from softgen.strategies.variants import Variant

if TYPE_CHECKING:
    from softgen.tuning.explain import Explanation

NONE = "-"
# What a narrow terminal does not get: the times say it.
DISPENSABLE = "/ winner"


def show(found: Explanation) -> None:
    """Print a line a candidate, then why some were not timed."""
    table = found.table
    base = next((c.microseconds for c in table if c.variant == found.winner), None)
    columns: dict[str, list[str]] = {
        "setting": [each.variant.strategy.label for each in table],
        "expected": [f"{each.expected:.2f}" for each in table],
    }
    if found.timed:
        columns["us"] = [short(each.microseconds) for each in table]
    if base is not None:
        columns[DISPENSABLE] = [
            f"{each.microseconds / base:.3f}" if each.microseconds else NONE for each in table
        ]
    columns[""] = [_remark(each.variant, found) for each in table]
    print_fitting(columns, DISPENSABLE)
    for each in table:
        if each.failure:
            output.result(f"{each.variant.strategy.label}: {each.failure}")


def document(found: Explanation) -> list[dict[str, Any]]:
    """Return the table as JSON values."""
    return [
        {
            "variant": each.variant.name,
            "expected": round(each.expected, 4),
            "microseconds": each.timing.microseconds if each.timing else None,
            "p10": each.timing.p10 if each.timing else None,
            "p90": each.timing.p90 if each.timing else None,
            "winner": each.variant == found.winner,
            "best_guess": each.variant == found.guess,
            "failure": each.failure or None,
        }
        for each in found.table
    ]


def print_fitting(columns: dict[str, list[str]], dispensable: str) -> None:
    """Print a table; where it is too wide for the terminal, without the dispensable column."""
    rows = list(zip(*columns.values(), strict=True))
    if output.table_width(list(columns), rows) > output.width():
        columns = {head: cells for head, cells in columns.items() if head != dispensable}
        rows = list(zip(*columns.values(), strict=True))
    output.table(columns, rows)


def short(number: float | None) -> str:
    """Return a time or a rate with four digits; a dash where there is none."""
    if number is None:
        return NONE
    return f"{number:.{3 if number < 10 else 2 if number < 100 else 1}f}"


def _remark(variant: Variant, found: Explanation) -> str:
    words = {"chosen": found.winner, "guess": found.guess}
    return ", ".join(word for word, other in words.items() if variant == other)
