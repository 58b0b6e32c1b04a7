"""Kernels that divide a row's number in 32 bits are launched on no more rows than that holds."""

from __future__ import annotations

from typing import Any

import pytest

from softgen.devices.gpu.launcher import Launcher
from softgen.errors import InvalidValueError
from softgen.problems.arch import arch_named
from softgen.problems.hooks.places import MOST_ROWS
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.variants import Variant, candidates
from tests.helpers.chosen import best_guesses
from tests.helpers.whole import part

H200 = arch_named("sm_90")
LIMIT = "//   rows: int64 number (long long), at most 2147483647 (2^31 - 1); "
NARROW = "static_cast<unsigned int>(row)"


def launch_on(variant: Variant, rows: int) -> Any:
    """Make what a launch is made of; no driver is asked where there are too many rows."""
    operands = len(variant.problem.operands)
    return Launcher(None, operands, variant.launch, rows, 0, 4096).make()


def test_who_cuts_the_number_of_a_row_says_so_and_refuses_more() -> None:
    """Of a third of the verified kernels: the text, its header and the launch agree."""
    limited = 0
    for variant in part(best_guesses(), 3):
        text = render(variant).text
        cuts = NARROW in text
        assert cuts == (LIMIT in text) == (variant.launch.most_rows == MOST_ROWS), variant.name
        limited += cuts
        if cuts and variant.launch.reaches(MOST_ROWS):
            assert variant.launch.grid(MOST_ROWS) > 0
        if cuts:
            with pytest.raises(
                InvalidValueError, match=r"at most 2147483647 rows .*got 2147483648"
            ):
                launch_on(variant, MOST_ROWS + 1)
    assert limited > 100


@pytest.mark.parametrize(
    ("function", "hooks", "limited"),
    [
        ("cross_entropy_backward", (), True),
        ("token_log_probs_backward", (), False),
        ("softmax", ("lengthsi32",), True),
        ("softmax", ("causal",), True),
        ("softmax", ("scale",), False),
        ("cross_entropy", (), False),
        ("cross_entropy_grad", (), False),
        ("softmax", (), False),
    ],
)
def test_which_functions_have_the_limit(
    function: str, hooks: tuple[str, ...], limited: bool
) -> None:
    problem = Problem.of(function, "bfloat16", 64, hooks=hooks)
    (variant, *_) = candidates(problem, 4096, H200)
    assert (variant.launch.most_rows == MOST_ROWS) is limited
    assert (NARROW in render(variant).text) is limited
    assert (LIMIT in render(variant).text) is limited
