"""What became of one launch, against float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softgen.devices.emulator import Results, Work
from softgen.problems.numerics import Accuracy, Storage, check
from softgen.strategies.variants import Variant
from softgen.verify.inputs import rows_of


@dataclass(frozen=True)
class Verdict:
    """What became of one launch: its accuracy, if it gave a result, and what is wrong with it.

    On the emulator also what it did, and whether the compiler took it at all.
    """

    accuracy: Accuracy | None
    objection: str = ""
    work: Work | None = None
    compiled: bool = True


def judged(variant: Variant, inputs: Sequence[Storage], results: Results, how: str = "") -> Verdict:
    """Return the verdict on results; `how` they were computed begins its message."""
    error = variant.strategy.exponent_error(variant.problem)
    accuracy = check(results, inputs, variant.problem, error)
    if accuracy.ok or accuracy.index is None:
        return Verdict(accuracy)
    regime = rows_of(variant)[1][accuracy.index[0]]
    return Verdict(accuracy, f"{how}regime {regime}: {accuracy.message}")
