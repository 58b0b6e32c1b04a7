"""What chooses of rows on the GPU, against float64: the drawn cases of the emulator's tests.

More of them on request: `python -m tests.gpu.test_choices 500`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import pytest

from softgen.problems.dtypes import DType
from softgen.problems.functions.sample import CAPACITIES, Sample
from softgen.problems.numerics import Storage, check, other_inputs
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.variants import Variant
from softgen.verify.gpu import compiled
from tests.cpu.verify import test_ranked_log_probs as ranked
from tests.cpu.verify import test_sample as sampled
from tests.cpu.verify import test_topk_softmax as routed

pytestmark = pytest.mark.gpu

KINDS = ("topk_softmax", "ranked_log_probs", "sample")
CASES = 48
FAR = 50  # every so many cases, a row is a vocabulary

Launch = tuple[Source, tuple[Storage, ...]]


def launches(kind: str, number: int) -> list[Launch]:
    """Return the kernels of a case, of every strategy, and what they take."""
    if kind == "ranked_log_probs":
        jobs = ranked.cases(range(number, number + 1), every=True)
        return [(job.source, job.inputs) for job in jobs]
    if kind == "topk_softmax":
        problem, x = routed.drawn(number)
        found = [render(variant) for variant in routed.settings(problem, number)]
        return [(source, (x, *other_inputs(x, problem))) for source in found]
    problem = drawn_sample(number)
    x = sampled.rows_of(problem, number)
    given = (x, *other_inputs(x, problem))
    return [(source, given) for source in sampled.sources_of(problem, number)]


def drawn_sample(number: int) -> Problem:
    """Return what is sampled in a case: filtered in two of three, some rows of vocabularies."""
    random = np.random.default_rng(number)
    cols = int(random.choice(sampled.WIDTHS)) if number % 2 else int(random.integers(1, 1026))
    if number % FAR == 0:
        cols = ranked.VOCABULARIES[number // FAR % 2]
    fitting = [each for each in (0, *CAPACITIES) if each <= cols]
    k = fitting[random.integers(len(fitting))] if number % 3 else 0
    filtered = number % 3 > 0 and not k
    rows, seeds = (bool(random.integers(2)) for _ in range(2))
    return Problem.of(Sample(filtered, rows, seeds, k), list(DType)[number % 4], cols)


def wrong_of(kind: str, numbers: Sequence[int]) -> tuple[list[str], list[Variant]]:
    """Return what is wrong in the cases of these numbers, and the variants that ran."""
    found = [launch for number in numbers for launch in launches(kind, number)]
    run = compiled([source for source, _ in found])
    wrong: list[str] = []
    for source, inputs in found:
        accuracy = check(run(source, inputs, 0, 0), inputs, source.variant.problem)
        wrong += [] if accuracy.ok else [f"{source.name}: {accuracy.message}"]
    return wrong, [source.variant for source, _ in found]


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_cases(kind: str) -> None:
    wrong, variants = wrong_of(kind, range(CASES))
    assert not wrong
    assert len({variant.strategy.name for variant in variants}) >= 4
    assert {variant.problem.dtype for variant in variants} == {*DType}


def main(kind: str, cases: int) -> None:
    """Print what is wrong in so many cases."""
    wrong, ran, names = list[str](), 0, set[str]()
    for first in range(0, cases, CASES):
        more, variants = wrong_of(kind, range(first, min(cases, first + CASES)))
        wrong, ran = wrong + more, ran + len(variants)
        names |= {variant.strategy.name for variant in variants}
    print(f"{kind}: {cases} cases, {ran} launches of {sorted(names)}, {len(wrong)} wrong")
    print(*wrong[:20], sep="\n", flush=True)


if __name__ == "__main__":
    for name in KINDS:
        main(name, int(sys.argv[1]))
