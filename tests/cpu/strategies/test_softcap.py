"""softcap of numbers far from 0: a small error of an element is a large one of a result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softgen.devices.emulator import Job, build
from softgen.errors import EmulationError
from softgen.problems.arch import arch_named
from softgen.problems.dtypes import DType
from softgen.problems.numerics import encode
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.select import select
from tests.helpers.emulator_helpers import outcomes

ARCH = arch_named("sm_90")
ROWS, COLS = 300, 300
CAPS = (1.0, 50.0, 300.0, 1000.0, 1025.0, 3000.0, 10000.0)


def rows_of(cap: float) -> list[Any]:
    """Return rows on both sides of the cap, around 0, and whose elements are near each other."""
    random = np.random.default_rng(int(cap))
    near = cap * random.uniform(0.5, 3, (ROWS, 1)) + random.uniform(-40, 40, (ROWS, COLS))
    shape = (ROWS, COLS)
    return [near, random.uniform(-2 * cap, 2 * cap, shape), random.standard_normal(shape) * cap]


@pytest.mark.parametrize("choice", ["warp", "online", "safe"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_results_are_within_the_bound(dtype: str, choice: str) -> None:
    problem = Problem.of("softmax", dtype, COLS, hooks=["softcap"])
    source = render(select(problem, ROWS, ARCH, choice))
    jobs = [
        Job(source, encode(x, problem.dtype), (encode(cap, problem.compute_dtype),))
        for cap in (CAPS if choice == "warp" else CAPS[2:4])
        for x in rows_of(cap)
    ]
    for job, _, told in outcomes(jobs):
        assert told == "", f"softcap {job.inputs[1]}"


@pytest.mark.parametrize("cap", [1e-310, 5e-324, 0.5, 1e3, 1.7e308])
def test_what_is_not_finite_and_caps_of_any_size(cap: float) -> None:
    """exp(x) of elements that are within the cap: of the largest ones a result is 0 or 1."""
    problem = Problem.of("logsumexp", "float64", 1, hooks=["softcap"])
    source = render(select(problem, ROWS, ARCH, "safe"))
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, -3.0, 1e300, 19.0, -1.7e308])
    job = Job(source, x[:, None].copy(), (np.asarray(cap),))
    (result,) = build([source]).run_counted([job])
    assert not isinstance(result, EmulationError), result
    wanted = (np.longdouble(cap) * np.tanh(x.astype(np.longdouble) / cap)).astype(np.float64)
    np.testing.assert_allclose(result[0][0], wanted, rtol=2.3e-16, atol=1e-300)


def test_the_slack_of_a_row_is_that_of_two_elements() -> None:
    """A result goes by the difference of two, each of which may be off."""
    from softgen.problems.exact import slack

    x = np.array([[1.0, -300.0, -np.inf]])
    of = {
        dtype: slack(Problem.of("softmax", dtype, 3, hooks=["softcap"]), x)
        for dtype in (DType.FLOAT32, DType.FLOAT64)
    }
    assert np.ravel(of[DType.FLOAT64]).tolist() == [300 * 2.0**-52]
    assert np.ravel(of[DType.FLOAT32]).tolist() == [300 * 4.25 * 2.0**-23]
