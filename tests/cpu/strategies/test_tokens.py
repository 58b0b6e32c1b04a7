"""token_log_probs and its gradient on the emulator: several ids a row, hooks, what goes wrong."""

from __future__ import annotations

import re

import numpy as np
import pytest

from softgen.devices.emulator import run_each
from softgen.errors import InvalidValueError
from softgen.problems.arch import arch_named
from softgen.problems.exact import hooked
from softgen.problems.functions.base import Function
from softgen.problems.numerics import check, decode, encode, hook_examples
from softgen.problems.operands import Extent
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.select import select
from softgen.strategies.variants import candidates, parse_name
from tests.helpers.emulator_helpers import best_of_each, broken, objections

ARCH = arch_named("sm_90")


def test_several_ids_by_every_strategy() -> None:
    """In every regime, with ids that are no column, and twice the same."""
    forward = best_of_each(Problem.of("token_log_probs_entropy_i32_k3", "float32", 5000))
    assert set(forward) == {"block", "cluster", "shared", "split", "online", "safe"}
    back = best_of_each(
        Problem.of("token_log_probs_backward_entropy_k9", "bfloat16", 33, alignment=1)
    )
    assert set(back) == {"warp", "online", "safe"}
    narrow = best_of_each(Problem.of("token_log_probs_k2", "float16", 33))["warp"]
    assert objections([*forward.values(), *back.values(), narrow]) == []


def test_more_ids_than_threads_hold() -> None:
    """Of short rows too; gradients find the ids by regions of the row."""
    problems = [
        Problem.of("token_log_probs_entropy_i32_k64", "float32", 5000),
        Problem.of("token_log_probs_k17", "bfloat16", 9),
        Problem.of("token_log_probs_backward_entropy_k64", "bfloat16", 5001),
        Problem.of("token_log_probs_backward_i32_k63", "float64", 300),
        Problem.of("token_log_probs_backward_k17", "float16", 33, alignment=1),
        Problem.of("token_log_probs_backward_k64", "float32", 7),
    ]
    found = [source for problem in problems for source in best_of_each(problem).values()]
    assert len(found) >= 18
    assert objections(found) == []


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("token_log_probs_backward_entropy_k2", "warp"),
        ("token_log_probs_backward_entropy_k2", "online"),
        ("entropy_backward", "safe"),
        ("logsumexp_backward", "online"),
    ],
)
def test_a_gradient_takes_the_hooks_of_its_function(name: str, strategy: str) -> None:
    """It is that with respect to what the hooks leave of x, and lse is of that."""
    problem = Problem.of(name, "float32", 65, hooks=("scalerow", "mask"))
    x = encode(np.random.default_rng(0).standard_normal((6, 65)) * 3, problem.dtype)
    of_hooks = hook_examples(problem, len(x))
    unknown = [np.zeros(1)] * (len(problem.inputs) - 1 - len(of_hooks))
    entered = hooked(problem, [decode(x, problem.dtype), *unknown, *of_hooks])[0]
    entered[np.isneginf(entered).all(axis=1)] = 0  # hidden: what is given of it matters not
    with np.errstate(all="ignore"):
        others = problem.function.other_inputs(entered)
    given = [encode(v, o.dtype) for v, o in zip(others, problem.inputs[1:], strict=False)]
    inputs = (x, *given, *of_hooks)
    found = run_each(best_of_each(problem)[strategy], x, others=inputs[1:])
    assert check(found, inputs, problem).message == ""


@pytest.mark.parametrize(
    ("name", "choice", "old", "new"),
    [
        ("token_log_probs", "online", "(logit[0] - m) - log_of_sum", "(logit[0] - m) + log_of_sum"),
        ("token_log_probs", "online", "id >= 0 && id < kCols", "id < kCols"),
        ("token_log_probs_k2", "warp", "row * 2 + i", "row * 2"),
        ("token_log_probs_backward", "warp", "col + i == id ?", "i == id ?"),
        ("token_log_probs_backward", "online", "state.base - state.base", "0"),
        ("token_log_probs_backward", "online", "known || state.upstream == 0", "true"),
        ("token_log_probs_backward_entropy", "safe", "max(values[i], Compute(-1024))", "values[i]"),
        ("token_log_probs_k64", "online", "first < 64", "first < 56"),
        ("token_log_probs_k17", "online", "first + k < 17 ? ", "k < 1 ? "),
        ("token_log_probs_backward_k64", "online", "state.low |= bit", ""),
        ("token_log_probs_backward_k64", "warp", "col + i == id ?", "i == id ?"),
    ],
)
def test_what_only_ids_get_wrong_is_seen(name: str, choice: str, old: str, new: str) -> None:
    source = render(select(Problem.of(name, "float32", 100), 64, ARCH, choice))
    assert objections([broken(source, old, new)])


def test_functions_of_several_ids_have_names() -> None:
    for name in ("token_log_probs_lse_i32_k64", "token_log_probs_backward_entropy_k2"):
        function = Function.of(name)
        assert function.name == name
        kind = function.operands(*[Problem.of(name, "float32", 8).dtype] * 3)
        assert kind[1].width == int(name.rpartition("_k")[2])
        variant = next(candidates(Problem.of(name, "bfloat16", 1000), 64, ARCH))
        assert parse_name(variant.name) == variant
    for name in ("token_log_probs_k65", "token_log_probs_k1", "token_log_probs_k02", "entropy_k2"):
        with pytest.raises(InvalidValueError, match=f"unknown function '{name}'"):
            Function.of(name)


def test_hooks_that_mean_nothing_are_refused() -> None:
    for name, hook in (
        ("token_log_probs", "sinkf32"),
        ("entropy_backward", "sinkf32"),
        ("token_log_probs_backward", "zeroempty"),
    ):
        with pytest.raises(
            InvalidValueError, match=f"{hook} means nothing to {name}; leave it out"
        ):
            Problem.of(name, "float32", 100, hooks=(hook,))


def test_a_file_says_how_wide_ids_are() -> None:
    source = best_of_each(Problem.of("token_log_probs_k3", "float32", 1000))["online"]
    assert re.search(r"//   ids: int64 \[rows\]\[3\], contiguous", source.text)
    results = [o for o in source.variant.problem.operands if o.result]
    assert [(o.extent, o.shape(7, 1000)) for o in results] == [(Extent.ROW, (7, 3))]
