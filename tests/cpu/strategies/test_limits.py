"""What results never pass: loss >= 0, log p <= 0, lse >= max, entropy >= 0, sums >= 1, p <= 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from softgen.call.merge import merge
from softgen.devices.emulator import Job, Results
from softgen.problems.dtypes import DType
from softgen.problems.numerics import Storage, decode, encode, other_inputs
from softgen.problems.operands import Limit
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.block import Block
from softgen.strategies.cluster import Cluster
from softgen.strategies.online import Online
from softgen.strategies.variants import Variant
from tests.helpers.emulator_helpers import outcomes

FUNCTIONS = (
    "cross_entropy",
    "cross_entropy_grad",
    "cross_entropy_backward",
    "token_log_probs_lse",
    "token_log_probs_entropy",
    "entropy_lse",
    "logsumexp",
    "partial",
    "partial_target",
    "softmax_lse",
    "log_softmax_lse",
)
HALVES = (DType.FLOAT16, DType.BFLOAT16)
PACKED = (Block(8, 16, 64, 64, 1, packed=True), Cluster(8, 16, 32, 2, 1, False, packed=True))
ROWS = 64


def sources() -> list[Source]:
    """Return kernels that make the exponents of 16-bit elements by one FMA, and online's others."""
    variants = []
    for turn, function in enumerate(FUNCTIONS):
        for dtype in HALVES:
            problem = Problem.of(function, dtype, 512)
            variants.append(Variant(problem, Online(8, 1, 64)))
            if problem.function.reduces:
                packed = PACKED[(turn + HALVES.index(dtype)) % 2]
                variants.append(Variant(problem, packed))
        variants.append(Variant(Problem.of(function, DType.FLOAT32, 512), Online(4, 1, 64)))
        variants.append(Variant(Problem.of(function, DType.BFLOAT16, 1), Online(1, 1, 64)))
    return [render(variant) for variant in variants]


def sure(problem: Problem) -> Storage:
    """Return rows with one element far above the rest: random ones of 16 bits, of all sizes."""
    draw = np.random.default_rng(0)
    largest = draw.standard_normal(ROWS) * 2.0 ** draw.integers(-3, 13, ROWS)
    x = largest[:, None] - 300 * (1 + draw.random((ROWS, problem.cols)))
    x[::3] = -np.inf
    x[np.arange(ROWS), draw.integers(0, problem.cols, ROWS)] = largest
    return encode(x, problem.dtype)


def rest_of(problem: Problem, x: Storage) -> tuple[Storage, ...]:
    """Return the inputs beside x: the largest element's column, upstream above 0, no smoothing."""
    inputs = dict(zip((o.name for o in problem.inputs[1:]), other_inputs(x, problem), strict=True))
    largest = decode(x, problem.dtype).argmax(axis=1)
    for name in ("target", "ids"):
        if name in inputs:
            inputs[name] = largest + int(inputs.get("first", 0))
    for name in ("z_loss", "label_smoothing"):
        if name in inputs:
            inputs[name] = np.zeros_like(inputs[name])
    if "upstream" in inputs:
        inputs["upstream"] = abs(inputs["upstream"])
    return tuple(inputs.values())


def passing(source: Source, inputs: Sequence[Storage], results: Results) -> list[str]:
    """Return which results of a kernel pass their limit, and the gradients of targets above 0."""
    problem, wrong = source.variant.problem, []
    top = decode(inputs[0], problem.dtype).max(axis=1)
    for operand, result in zip(problem.results, results, strict=True):
        got = decode(result, operand.dtype)
        right = {
            Limit.AT_LEAST_ZERO: got >= 0,
            Limit.AT_MOST_ZERO: got <= 0,
            Limit.AT_LEAST_ONE: got >= 1,
            Limit.UP_TO_ONE: (got >= 0) & (got <= 1),
            Limit.AT_LEAST_MAXIMUM: got.ndim == 1 and got >= top,
        }.get(operand.limit, ~np.isnan(got))
        if operand.name == "dx":  # p - 1
            right = got[np.arange(ROWS), inputs[1]] <= 0
        if not np.all(right):
            bad = np.count_nonzero(~right)
            wrong.append(f"{source.name}: {operand.name} in {bad} of {ROWS} rows")
    return wrong


def test_a_sure_row_passes_no_limit() -> None:
    kernels = sources()
    inputs = [sure(source.variant.problem) for source in kernels]
    jobs = [Job(s, x, rest_of(s.variant.problem, x)) for s, x in zip(kernels, inputs, strict=True)]
    wrong = []
    for job, results, told in outcomes(jobs):
        assert results is not None, told
        wrong += passing(job.source, job.inputs, results)
        wrong += [told] if told else []
    assert wrong == []


def test_merged_pairs_pass_no_limit() -> None:
    draw = np.random.default_rng(0)
    pairs = []
    for _ in range(3):
        m = (draw.standard_normal(1000) * 100).astype(np.float32)
        m[draw.random(1000) < 0.2] = -np.inf
        pairs.append((m, np.where(np.isinf(m), np.float32(0), np.float32(1))))
    m, d = merge(*pairs)
    assert (d >= np.isfinite(m)).all()
    assert (d == 1).any()
