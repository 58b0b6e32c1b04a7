"""Gradients whose upstream is large, as under a GradScaler: p is not flushed before the product."""

from __future__ import annotations

import numpy as np
import pytest

from softgen.problems.numerics import Storage, decode, encode, other_inputs
from softgen.problems.problem import Problem
from tests.helpers.chosen import chosen, objections, row_count

SCALE = 65536.0
SCALED = ("upstream", "entropy_upstream", "out_scale", "kept_scale")


def rows_of(problem: Problem) -> Storage:
    """Return rows whose probabilities fall to 1e-46, in either order and in none, or at once.

    Of those that fall at once all warps but one have a maximum whose term float32 flushes.
    """
    slope = -np.linspace(0, 105, problem.cols)
    shuffled = np.random.default_rng(problem.cols).permutation(slope)
    cliff = np.where(np.arange(problem.cols) == 0, 0.0, -90.0)  # exp(-90) is subnormal
    kinds = (slope, slope[::-1], shuffled, slope + 3, shuffled - 50, cliff, cliff[::-1])
    rows = range(row_count(problem))
    return encode(np.stack([kinds[row % len(kinds)] for row in rows]), problem.dtype)


def inputs_of(problem: Problem) -> tuple[Storage, ...]:
    x = rows_of(problem)
    found = [x, *other_inputs(x, problem)]
    if problem.function.name == "log_softmax_backward":  # x is dy, which would hide its sum
        y = decode(x, problem.dtype)
        y = y - np.log(np.exp(y).sum(axis=1, keepdims=True))
        dy = np.zeros_like(y)
        dy[:, 0] = SCALE
        return encode(dy, problem.dtype), encode(y, problem.dtype)
    for i, operand in enumerate(problem.inputs):
        if operand.name in SCALED:
            found[i] = encode(decode(found[i], operand.dtype) * SCALE, operand.dtype)
        elif operand.name == "label_smoothing":  # it would hide the least
            found[i] = np.zeros_like(found[i])
    return tuple(found)


GRADIENTS = (
    *("cross_entropy_grad", "cross_entropy_grad_rows"),
    *("cross_entropy_backward", "cross_entropy_backward_shard"),
    *("logsumexp_backward", "entropy_backward", "log_softmax_backward"),
    *("token_log_probs_backward", "token_log_probs_backward_entropy"),
)


@pytest.mark.parametrize("function", GRADIENTS)
def test_a_gradient_is_as_exact_as_with_a_small_upstream(function: str) -> None:
    variants = chosen(function)
    assert len({variant.problem.dtype for variant in variants}) == 4
    assert objections(variants, inputs_of) == []


@pytest.mark.parametrize("hook", ["outscale", "outscalerow", "dropout"])
def test_a_softmax_that_is_multiplied_is_as_exact_as_one_that_is_not(hook: str) -> None:
    variants = chosen("softmax", hook)
    assert len(variants) >= 4
    assert objections(variants, inputs_of) == []
