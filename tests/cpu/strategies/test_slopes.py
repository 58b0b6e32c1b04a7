"""Gradients of cross entropy with respect to x as it is before a scale and a softcap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softgen.devices.emulator import Job
from softgen.errors import InvalidValueError
from softgen.problems.arch import arch_named
from softgen.problems.numerics import decode, encode, other_inputs
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.select import select
from tests.helpers.emulator_helpers import wrong_of

H200 = arch_named("sm_90")
ROWS = 12
STEMS = ("cross_entropy_grad", "cross_entropy_grad_rows", "cross_entropy_grad_smooth")
HOOKS = (("softcap",), ("scale", "softcap"), ("scaleany",), ("scalerow", "softcap"))
KINDS = (("float32", 100), ("bfloat16", 1001), ("float64", 33), ("float16", 5000))


def job_of(name: str, hooks: tuple[str, ...], dtype: str, cols: int, strategy: str) -> Job:
    problem = Problem.of(name, dtype, cols, hooks=hooks)
    x = np.random.default_rng(cols).standard_normal((ROWS, cols)) * 8
    x[1] = 1000  # where a softcap is flat
    x[2, : cols // 2] = -1000
    stored = encode(x, problem.dtype)
    inputs = dict(
        zip([o.name for o in problem.inputs[1:]], other_inputs(stored, problem), strict=True)
    )
    if "lse" in inputs:
        scale = np.ravel(inputs.get("scale", 1.0))
        every, count = (int(inputs.get(f"scale_{each}", 1)) for each in ("every", "count"))
        scale = scale[np.arange(ROWS) // every % count]
        z = decode(stored, problem.dtype) * scale[:, None]
        if "softcap" in inputs:
            c = float(inputs["softcap"])
            z = c * np.tanh(z / c)
        m = z.max(axis=1)
        lse = m + np.log(np.exp(z - m[:, None]).sum(axis=1))
        inputs["lse"] = lse.astype(problem.compute_dtype.value)
    return Job(render(select(problem, ROWS, H200, strategy)), stored, tuple(inputs.values()))


@pytest.mark.parametrize("name", [*STEMS, "cross_entropy_backward"])
def test_results_are_times_the_derivative(name: str) -> None:
    """Every two of hooks, a type and a strategy are in one kernel."""
    turns = [(hooks, i) for i, hooks in enumerate(HOOKS)]
    asked = [
        (hooks, *kind, ("safe", "online")[(i + j) % 2])
        for hooks, i in turns
        for j, kind in enumerate(KINDS)
    ]
    if name in STEMS:
        asked += [(hooks, ("float32", "bfloat16")[i % 2], 5000, "shared") for hooks, i in turns]
    jobs = [job_of(name, *each) for each in asked]
    assert wrong_of(jobs) == []


@pytest.mark.parametrize("name", [*STEMS, "cross_entropy_backward"])
@pytest.mark.parametrize("hook", ["biasf32", "mask", "causal", "lengthsi64", "sinkf32"])
def test_hooks_whose_derivatives_it_does_not_know_are_refused(name: str, hook: str) -> None:
    with pytest.raises(InvalidValueError, match=f"{hook} means nothing to {name}"):
        Problem.of(name, "float32", 100, hooks=(hook,))


def test_a_strategy_that_has_terms_left_of_its_elements_does_not_take_them() -> None:
    problem: Any = Problem.of("cross_entropy_grad", "bfloat16", 1000, hooks=("softcap",))
    for strategy in ("warp", "block", "cluster"):
        with pytest.raises(Exception, match="no setting worth running"):
            select(problem, ROWS, H200, strategy)
