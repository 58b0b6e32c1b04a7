"""The table of candidates, as `softgen explain` and `softgen tune --candidates` print it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from softgen.cli import output
from softgen.strategies.variants import Variant

if TYPE_CHECKING:
    from softgen.tuning.explain import Explanation

NONE = "-"


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
        columns["/ winner"] = [
            f"{each.microseconds / base:.3f}" if each.microseconds else NONE for each in table
        ]
    columns[""] = [_remark(each.variant, found) for each in table]
    print_columns(columns, ("", "/ winner"))
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


def print_columns(columns: dict[str, list[str]], below: Sequence[str]) -> None:
    """Print a table of columns by their headings; those of `below` as `output.table` does."""
    output.table(columns, zip(*columns.values(), strict=True), below)


def short(number: float | None) -> str:
    """Return a time or a rate with four digits; a dash where there is none."""
    if number is None:
        return NONE
    return f"{number:.{3 if number < 10 else 2 if number < 100 else 1}f}"


def _remark(variant: Variant, found: Explanation) -> str:
    words = {"chosen": found.winner, "guess": found.guess}
    return ", ".join(word for word, other in words.items() if variant == other)
