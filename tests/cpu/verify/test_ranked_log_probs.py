"""ranked_log_probs beside NumPy in float64: drawn widths, counts, types and hooks, on the emulator.

`python -m tests.cpu.verify.test_ranked_log_probs 500` takes as many cases, some of vocabularies.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from softgen.devices.emulator import Job, build
from softgen.errors import EmulationError
from softgen.problems.arch import arch_named
from softgen.problems.dtypes import DType, Integer
from softgen.problems.functions.ranked_log_probs import RankedLogProbs
from softgen.problems.functions.token_log_probs import MOST_IDS
from softgen.problems.functions.topk_softmax import MOST_CHOSEN
from softgen.problems.numerics import Storage, check, encode, other_inputs
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.select import select
from softgen.strategies.variants import candidates
from tests.helpers.emulator_helpers import broken

ARCH = arch_named("sm_90")
CASES, ROWS = 12, 6
HOOKS: tuple[tuple[str, ...], ...] = (
    *((), ("scale",), ("scalerow",), ("mask",), ("softcap",), ("lengths",)),
    *(("scale", "biasf32"), ("scaleany", "causal")),
)
STRATEGIES = ("warp", "block", "safe", "cluster", "online")
VOCABULARIES = (128256, 151937)


def drawn(number: int, far: bool = False) -> tuple[Problem, Storage]:
    """Return a problem and rows for it, by the number of a case; with `far` some are wide."""
    random = np.random.default_rng(number)
    cols = int(random.integers(1, 1026))
    if far and number % 50 == 0:
        cols = VOCABULARIES[number // 50 % len(VOCABULARIES)]
    k = (1, 20, int(random.integers(1, MOST_CHOSEN + 1)))[random.integers(3)]
    count = (1, 1, 2, int(random.integers(1, MOST_IDS + 1)))[random.integers(4)]
    of = RankedLogProbs((Integer.INT64, Integer.INT32)[number % 2], count, min(k, cols))
    hooks = HOOKS[random.integers(len(HOOKS))] if number % 3 else ()
    dtype = list(DType)[number % 4]
    problem = Problem.of(of, dtype, cols, hooks=hooks)
    x = random.normal(size=(ROWS, cols)) * random.choice([0.1, 2, 20])
    x[1] = np.round(x[1])  # ties
    x[2] = 0
    x[3, random.integers(cols, size=cols // 2)] = -np.inf
    x[4, random.integers(cols)] = random.choice([np.nan, np.inf, -np.inf, -0.0])
    return problem, encode(x, dtype)


def cases(numbers: range, every: bool = False) -> list[Job]:
    """Return what is launched of those cases: of two strategies, or of all, a setting each."""
    found = []
    for number in numbers:
        problem, x = drawn(number, far=every)
        for strategy in STRATEGIES if every else STRATEGIES[number % 2 :: 2]:
            if some := list(candidates(problem, ROWS, ARCH, strategy)):
                source = render(some[number // 4 % len(some)])
                found.append(Job(source, x, other_inputs(x, problem)))
    return found


def message(job: Job, result: Any) -> str:
    """Return what is wrong with the results of a launch, or ""."""
    if isinstance(result, EmulationError):
        return str(result)
    accuracy = check(result[0], job.inputs, job.source.variant.problem)
    return "" if accuracy.ok else f"{job.source.name}: {accuracy.message}"


# Rows of which many elements are equal, and those that have no probabilities.
TIES = np.round(np.random.default_rng(0).normal(size=(6, 300)) * 4) / 4
ODD = np.zeros((6, 300))
ODD[0, 7], ODD[1, 7], ODD[2], ODD[3] = np.nan, np.inf, -np.inf, -np.inf
ODD[3, [250, 9]] = 1, 2
TIES_IDS = np.random.default_rng(1).integers(0, 300, (6, 9))
ODD_IDS = np.array([[7, 0], [7, 0], [7, 0], [250, 3], [-100, 0], [300, 299]]).repeat(5, 1)[:, 1:]
K = 20
KNOWN = RankedLogProbs(count=9, k=K)
CHOICES = {
    "warp": "warp",
    "block": "block_p4_c4_g96_b96_m1",
    "cluster": "cluster_p4_c4_b64_k2_m1",
    "packed": "cluster_p4_c4_b64_k2_m1_pk",
    "safe": "safe",
}
BREAKS = (
    ("warp", "value > logit", "value >= logit"),
    ("warp", "step = kLanes / 2", "step = kLanes / 4"),
    ("warp", "result == result ?", "true ?"),
    ("warp", "bad ? i :", "kLanes < 0 ? i :"),
    ("block", "counts[part][k]", "counts[0][k]"),
    ("cluster", "larger_of_blocks[rank][k], &b", "larger_of_blocks[0][k], &b"),
    ("cluster", "add_larger(larger_of_blocks", "add_larger(larger_of_warps"),
    ("packed", "low_of(pair_count) + high_of(pair_count)", "2 * low_of(pair_count)"),
    ("cluster", "all < kChosen", "all < 1"),
    ("cluster", "peaks.of_row + rank * kPeaksOfBlock", "peaks.of_row"),
    ("cluster", "if (i < count) push(keys[i]", "if (i < count) push(keys[0]"),
    ("safe", "values[0] > logits[k]", "values[0] > logits[0]"),
    ("safe", "id = first + k < kIds ? first + k : 0", "id = k"),
)


@pytest.fixture(scope="module")
def launches() -> dict[Any, tuple[Job, Any]]:
    """Return all launches by what they are of: built together, which takes half the time."""
    jobs: dict[Any, Job] = dict(enumerate(cases(range(CASES))))
    sources = {}
    for name, choice in CHOICES.items():
        problem = Problem.of(KNOWN, "bfloat16" if name == "packed" else "float32", 300)
        sources[name] = render(select(problem, 6, ARCH, choice))
    named: dict[Any, Any] = {**sources, **{b: broken(sources[b[0]], *b[1:]) for b in BREAKS}}
    for each, source in named.items():
        dtype = source.variant.problem.dtype
        jobs[each, "ties"] = Job(source, encode(TIES, dtype), (TIES_IDS,))
        jobs[each, "odd"] = Job(source, encode(ODD, dtype), (ODD_IDS,))
    program = build([job.source for job in jobs.values()])
    results = program.run_counted(list(jobs.values()))
    return dict(zip(jobs, zip(jobs.values(), results, strict=True), strict=True))


def test_drawn_cases(launches: Any) -> None:
    wrong = [message(*launches[name]) for name in launches if isinstance(name, int)]
    assert len(wrong) > CASES
    assert not any(wrong), wrong


@pytest.mark.parametrize("choice", CHOICES)
def test_as_numpy_has_it(choice: str, launches: Any) -> None:
    _, (found, _) = launches[choice, "ties"]
    m = TIES.max(axis=1, keepdims=True)
    lse = m + np.log(np.exp(TIES - m).sum(axis=1, keepdims=True))
    best = np.argsort(-TIES, axis=1, kind="stable")[:, :K]
    picked = np.take_along_axis(TIES, TIES_IDS, axis=1)
    ranks = (TIES[:, None] > picked[:, :, None]).sum(axis=2)
    top = np.take_along_axis(TIES, best, axis=1)
    for mine, right in zip(found, (picked - lse, top - lse, best, ranks, lse[:, 0]), strict=True):
        np.testing.assert_allclose(mine, right, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("choice", CHOICES)
def test_rows_without_probabilities_and_ids_that_are_no_columns(choice: str, launches: Any) -> None:
    _, ((log_probs, best, columns, ranks, lse), _) = launches[choice, "odd"]
    assert np.isnan(log_probs[:3]).all()
    assert np.isnan(best[:3]).all()
    assert (ranks[:3] == -1).all()
    assert (columns[:3] == np.arange(K)).all()
    assert list(columns[3, :4]) == [9, 250, 0, 1]  # the rest are the lowest columns of -inf
    assert list(np.isneginf(best[3, :4])) == [False, False, True, True]
    assert list(ranks[3]) == [1] * 4 + [2] * 5
    assert np.isneginf(log_probs[3, -1])
    assert np.isnan(log_probs[4:, 0]).all()
    assert list(ranks[4, ::8]) == list(ranks[5, ::8]) == [-1, 0]
    assert list(columns[4]) == list(range(K))
    assert list(lse[1:3]) == [np.inf, -np.inf]


@pytest.mark.parametrize("break_", BREAKS, ids=lambda each: each[1])
def test_what_is_broken_is_seen(break_: tuple[str, str, str], launches: Any) -> None:
    assert any(message(*launches[break_, rows]) for rows in ("ties", "odd"))


def main(count: int) -> None:
    """Print what is wrong in so many cases; exit with 1 if something is."""
    wrong: list[str] = []
    for first in range(0, count, 40):
        end = min(first + 40, count)
        jobs = cases(range(first, end), every=True)
        found = build([job.source for job in jobs]).run_counted(jobs)
        wrong += filter(None, map(message, jobs, found))
        print(f"{end} of {count} cases, {len(wrong)} wrong", flush=True)
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
