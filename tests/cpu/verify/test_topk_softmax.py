"""topk_softmax against float64: drawn widths, counts, groups and types, on the emulator.

More of them on request: `python -m tests.cpu.verify.test_topk_softmax 240`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import pytest

from softgen.devices.emulator import Job
from softgen.problems.arch import arch_named
from softgen.problems.dtypes import DType
from softgen.problems.functions.topk_softmax import MOST_CHOSEN, TopkSoftmax
from softgen.problems.numerics import Storage, encode, other_inputs
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.variants import Variant, candidates
from tests.helpers.emulator_helpers import wrong_of

WIDTHS = (64, 96, 128, 160, 256, 288, 384)
LONG = (1500, 2047, 2048, 5000, 20000)  # also in blocks and clusters
CASES, BATCH = 36, 18
ROWS = 7
STRATEGIES = ("warp", "block", "cluster", "online", "safe")


def drawn(number: int) -> tuple[Problem, Storage]:
    """Return a problem and rows for it, by the number of a case."""
    random = np.random.default_rng(number)
    cols = int(random.choice(WIDTHS) if number % 2 else random.integers(1, 1026))
    if number % 6 == 2:
        cols = int(random.choice(LONG))
    dividing = [g for g in (1, 2, 4, 8, 16, 32) if cols % g == 0]
    groups = dividing[random.integers(len(dividing))]
    groups = groups if groups > 1 and random.integers(2) else 0
    kept = int(random.integers(1, groups + 1)) if groups else 0
    most = min(MOST_CHOSEN, cols // groups * kept if groups else cols)
    k = min(8, most) if random.integers(2) else int(random.integers(1, most + 1))
    sigmoid, bias, norm = (bool(random.integers(2)) for _ in range(3))
    if number % 12 == 2:  # what `online` takes
        sigmoid, bias, norm, groups = False, False, False, 0
    dtype = list(DType)[number % 4]
    problem = Problem.of(TopkSoftmax(k, sigmoid, bias, groups, kept, norm), dtype, cols)
    x = random.normal(size=(ROWS, cols)) * random.choice([0.1, 2, 20])
    x[1] = np.round(x[1])  # ties
    x[2] = 0
    x[3, random.integers(cols, size=cols // 2)] = -np.inf
    x[4, random.integers(cols)] = random.choice([np.nan, np.inf, -np.inf, -0.0])
    x[5] = np.sort(x[5])  # the last threads, and the last blocks, have the largest
    x[6] = -1
    x[6, cols // 2 : cols // 2 + min(900, cols // 3)] = 2  # more ties than a board has places for
    return problem, encode(x, dtype)


def settings(problem: Problem, number: int) -> list[Variant]:
    """Return the best guess of each strategy, and another setting of each."""
    arch = arch_named("sm_90")
    found: list[Variant] = []
    for strategy in STRATEGIES:
        some = list(candidates(problem, ROWS, arch, strategy))
        found += dict.fromkeys((some[0], some[number % len(some)])) if some else ()
    return found


def wrong_in(numbers: Sequence[int]) -> tuple[list[str], list[Variant]]:
    """Return what is wrong in the cases of these numbers, and the variants that ran."""
    cases = [(*drawn(n), n) for n in numbers]
    variants = [(variant, x) for problem, x, n in cases for variant in settings(problem, n)]
    jobs = [Job(render(variant), x, other_inputs(x, variant.problem)) for variant, x in variants]
    return wrong_of(jobs), [variant for variant, _ in variants]


@pytest.mark.parametrize("first", range(0, CASES, BATCH))
def test_drawn_cases(first: int) -> None:
    wrong, variants = wrong_in(range(first, first + BATCH))
    assert not wrong
    assert {variant.strategy.name for variant in variants} == set(STRATEGIES)
    assert {variant.problem.dtype for variant in variants} == set(DType)
    functions = [variant.problem.function for variant in variants]
    for option in ("sigmoid", "bias", "groups", "renormalize"):
        assert {bool(getattr(function, option)) for function in functions} == {False, True}


def test_few_groups_of_many_lanes_each() -> None:
    """2 groups of 16 lanes and 4 of 8: lanes without a group to compare with counted one again."""
    wrong, variants = wrong_in((49, 61, 157, 165, 209))
    assert not wrong
    assert {getattr(variant.problem.function, "groups", 0) for variant in variants} == {2, 4}


def main(cases: int) -> None:
    """Print what is wrong in so many cases."""
    wrong = []
    for first in range(0, cases, BATCH):
        wrong += wrong_in(range(first, min(cases, first + BATCH)))[0]
        print(f"{min(cases, first + BATCH)} of {cases} cases, {len(wrong)} wrong", flush=True)
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
