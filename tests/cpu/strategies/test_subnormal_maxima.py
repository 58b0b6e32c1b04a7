"""Rows whose maximum is subnormal: a result that is the maximum is that number, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softgen.problems.arch import arch_named
from softgen.problems.numerics import Storage, decode, encode, other_inputs
from softgen.problems.problem import Problem
from softgen.strategies.select import select
from tests.helpers.chosen import chosen, objections, row_count

H200 = arch_named("sm_90")


def rows_of(problem: Problem) -> Storage:
    """Return rows whose maximum is subnormal: alone, among its like, below 0, behind -inf."""
    rows, cols = row_count(problem), problem.cols
    random = np.random.default_rng(cols)
    size = {"float64": 2e-308, "float16": 6e-5}.get(problem.dtype.value, 1e-38)
    found = random.uniform(-size, size, (rows, cols))
    found[1] = -1 - random.random(cols)
    found[1, cols // 2] = size / 8
    found[2] = -abs(found[2])
    found[3] = -np.inf
    found[3, cols - 1] = -size / 8
    found[4] = np.sort(found[4])
    found[5] = np.sort(found[5])[::-1]
    found[6] = -abs(found[6])
    found[6, cols // 3] = 0.0
    return encode(found, problem.dtype)


def inputs_of(problem: Problem) -> tuple[Storage, ...]:
    x = rows_of(problem)
    return x, *other_inputs(x, problem)


@pytest.mark.parametrize("function", ["partial", "partial_target", "merge"])
def test_the_maximum_is_that_of_the_row(function: str) -> None:
    variants = chosen(function)
    assert len({variant.strategy.name for variant in variants}) >= 4
    assert len({variant.problem.dtype for variant in variants}) == 4
    assert objections(variants, inputs_of) == []


PACKED = (  # best guesses have none
    ("partial", 5000, "block_p8_c40_g128_b128_m1_pk"),
    ("partial_target", 5000, "block_p8_c40_g128_b128_m1_pk"),
    ("partial_target", 8192, "cluster_p8_c32_b128_k2_m10_pk"),
)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_maximum_of_elements_that_stay_packed_is_that_of_the_row(dtype: str) -> None:
    variants = [select(Problem.of(name, dtype, cols), 9, H200, of) for name, cols, of in PACKED]
    realigned = Problem.of("partial", dtype, 5001, fixed_order=True)  # sums widened elements
    variants.append(select(realigned, 9, H200, PACKED[0][-1]))
    assert all(variant.strategy.knobs["packed"] for variant in variants)
    assert objections(variants, inputs_of) == []


def test_the_maximum_is_that_of_the_row_where_a_lane_combines_parts() -> None:
    """A cluster of 64 warps, of whose parts each lane has two; either may be the larger."""
    problem = Problem.of("partial", "float32", 33000)
    variant = select(problem, 9, H200, "cluster_p4_c20_b128_k16_m1")
    assert objections([variant], inputs_of) == []


def test_the_rows_have_subnormal_maxima() -> None:
    for dtype, least in (("float32", 2.0**-126), ("bfloat16", 2.0**-126), ("float64", 2.0**-1022)):
        problem = Problem.of("partial", dtype, 33)
        maxima: Any = decode(rows_of(problem), problem.dtype).max(axis=1)
        assert (abs(maxima) < least).all()
        assert np.count_nonzero(maxima) >= len(maxima) - 1
