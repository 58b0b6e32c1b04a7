"""Cross entropy with label smoothing, on the emulator: the mean of a row beside its maximum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softgen.devices.emulator import Job
from softgen.problems.arch import arch_named
from softgen.problems.dtypes import DType
from softgen.problems.layouts import Rows
from softgen.problems.numerics import decode, encode, other_inputs
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.base import Feature
from softgen.strategies.registry import all_strategies
from softgen.strategies.select import select
from tests.helpers.emulator_helpers import right_of

H200 = arch_named("sm_90")
OF_PARTS = [kind for kind in all_strategies() if Feature.PARTS in kind.takes]
STRATEGIES = [kind.name for kind in OF_PARTS if Rows in kind.layouts]
ROWS = 10
PACKED = (
    ("bfloat16", 1001, "block_p8_c8_g1024_b1024_m1_pk"),
    ("float16", 5000, "block_p8_c8_g1024_b1024_m1_pk"),
    ("bfloat16", 33001, "cluster_p8_c40_b128_k8_m1_pk"),
)


def rows_of(problem: Problem) -> Any:
    """Return rows whose elements are large, far apart, alike, hidden, or all but one below."""
    random, cols = np.random.default_rng(problem.cols), problem.cols
    x = random.standard_normal((ROWS, cols))
    largest = {DType.FLOAT16: 65504.0, DType.BFLOAT16: 3.3895e38, DType.FLOAT32: 3.4028e38}
    top = largest.get(problem.dtype, 1.7e308)
    x[1] += 1e4
    x[2] = 1e4
    x[3], x[3, 5] = -1e4, 0
    x[4, 7] = -np.inf  # beside the target
    x[5, 5] = -np.inf  # the target
    x[6] = -np.inf
    x[6, cols // 2] = 0
    x[7], x[7, ::2] = -top, top
    x[8] = np.linspace(-50, 50, cols)
    x[9] = np.linspace(50, -50, cols) + 1e4
    return encode(x, problem.dtype)


def jobs_of(name: str, smoothing: float) -> list[Job]:
    kinds = [("float32", 100), ("bfloat16", 1000), ("float64", 33), ("float16", 20000)]
    kinds += [("float32", 8193), ("bfloat16", 20001)]
    asked = [(dtype, cols, each) for dtype, cols in kinds for each in STRATEGIES]
    found = []
    for dtype, cols, choice in (*asked, *PACKED):
        problem = Problem.of(name, dtype, cols)
        try:
            variant = select(problem, ROWS, H200, choice)
        except Exception:
            continue
        x = rows_of(problem)
        names = [operand.name for operand in problem.inputs[1:]]
        values = dict(zip(names, other_inputs(x, problem), strict=True))
        if "target" in values:
            values["target"] = np.full(ROWS, 5)
            kind = np.dtype(problem.compute_dtype.value)
            values |= {"label_smoothing": np.asarray(smoothing, kind), "z_loss": np.zeros((), kind)}
        found.append(Job(render(variant), x, tuple(values.values())))
    return found


def test_hard_rows_with_probabilities() -> None:
    jobs = jobs_of("cross_entropy_probs", 0.0)
    assert {job.source.variant.strategy.name for job in jobs} == {*STRATEGIES}
    for job, results in right_of(jobs):
        loss = decode(results[0], job.problem.compute_dtype)
        assert np.isposinf(loss[[4, 5, 6]]).all()
        assert np.isfinite(loss[[0, 1, 2, 3, 8, 9]]).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("name", ["cross_entropy_smooth", "cross_entropy_grad_smooth"])
def test_hard_rows(name: str, smoothing: float) -> None:
    jobs = jobs_of(name, smoothing)
    used = {job.source.variant.strategy.name for job in jobs}
    assert used == {*STRATEGIES} - ({"split"} if "grad" in name else set())
    for job, results in right_of(jobs):
        loss = decode(results[-2], job.problem.compute_dtype)
        infinite, nothing = [4, 6] if smoothing else [], [5, 6] if smoothing == 1 else []
        assert np.isposinf(loss[[i for i in infinite if i not in nothing]]).all(), job.source.name
        assert np.isnan(loss[nothing]).all(), job.source.name
        assert np.isfinite(loss[[0, 1, 2, 3, 8, 9]]).all()
