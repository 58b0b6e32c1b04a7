"""Numbers that a launch passes by value: each strategy with a hook, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from softgen.devices.gpu.compile import compile_source
from softgen.devices.gpu.device import current_arch
from softgen.problems.layouts import Rows
from softgen.problems.numerics import check, encode
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.base import Feature, Lesson
from softgen.strategies.registry import all_strategies
from softgen.strategies.variants import best_guess, candidates
from softgen.tuning.gate import Gate
from softgen.tuning.measure import Buffers
from softgen.verify.gpu import run_on_storage

pytestmark = pytest.mark.gpu

KINDS = [
    kind.name
    for kind in all_strategies()
    if Feature.HOOKS in kind.takes and Rows in kind.layouts and not issubclass(kind, Lesson)
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("strategy", KINDS)
def test_each_launch_has_its_own_number(strategy: str, dtype: str) -> None:
    widths = {"tiles": 3, "warp": 512, "cluster": 16384, "cooperative": 65536, "split": 65536}
    cols = widths.get(strategy, 4096)
    problem = Problem.of("softmax", dtype, cols, hooks=["scale"])
    kernel = compile_source(render(best_guess(problem, 64, current_arch(), strategy)))
    x = encode(np.random.default_rng(0).standard_normal((64, cols)), problem.dtype)
    for scale in (0.3, 2.0):
        inputs = (x, encode(np.asarray(scale), problem.compute_dtype))
        accuracy = check(run_on_storage(kernel, inputs), inputs, problem)
        assert accuracy.ok, accuracy.message


def test_the_tuners_gate_passes_the_same_number_to_both_kernels() -> None:
    problem = Problem.of("softmax", "float32", 1000, hooks=["scale"])
    gate = Gate(problem, Buffers.allocate(problem, 256))
    for variant in list(candidates(problem, 256, current_arch()))[:4]:
        assert gate.objection(compile_source(render(variant))) is None
