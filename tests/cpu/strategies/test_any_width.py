"""Kernels whose width is a number of the launch: one text for all widths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from softgen.devices.emulator import build
from softgen.problems.arch import arch_named
from softgen.problems.layouts import AnyWidth, layout_of
from softgen.problems.numerics import check, encode, other_inputs
from softgen.problems.problem import MAX_INT32_COLS, Problem
from softgen.source.render import Source, render
from softgen.strategies.variants import Variant, candidates, parse_name
from tests.helpers.cli_helpers import cli, ok
from tests.helpers.emulator_helpers import objections

WIDTHS = (1, 2, 7, 31, 32, 33, 255, 256, 257, 1000, 4099)


def source_of(function: str, dtype: str, strategy: str, *hooks: str) -> Source:
    problem = Problem.of(function, dtype, MAX_INT32_COLS, hooks=hooks, layout=AnyWidth())
    found = candidates(problem, 64, arch_named("sm_80"), strategy)
    return render(min(found, key=lambda each: abs(each.launch.block_size - 128)))


def test_a_name_is_parsed_back() -> None:
    variant = source_of("softmax", "bfloat16", "online").variant
    assert variant.name.startswith("softmax_bf16_2143289344_anywidth_online_p8_")
    assert parse_name(variant.name) == variant
    assert layout_of("anywidth") == AnyWidth()


def test_the_width_is_the_last_argument_before_the_rows_and_no_constant() -> None:
    source = source_of("softmax", "float32", "safe")
    assert source.variant.parameters == (
        *("const X* x", "Y* y"),
        *("long long cols", "long long rows"),
    )
    assert "constexpr Col kCols" not in source.text
    assert "[rows][cols], contiguous, cols at most 2143289344" in source.text


@pytest.mark.parametrize("strategy", ["online", "safe"])
@pytest.mark.parametrize(
    ("function", "dtype"),
    [("softmax", "bfloat16"), ("softmax_lse", "float32"), ("softmax_backward", "float16")],
)
def test_one_text_computes_each_width(strategy: str, function: str, dtype: str) -> None:
    source = source_of(function, dtype, strategy)
    program = build([source])
    for cols in WIDTHS:
        x = np.random.default_rng(cols).standard_normal((3, cols)) * 5
        stored = encode(x, source.variant.problem.dtype)
        problem = source.variant.problem.launched_on(cols)
        inputs = (stored, *other_inputs(stored, problem))
        for offset in (0, 1):
            results = program.run_each(
                source, stored, others=inputs[1:], x_offset=offset, y_offset=3 * offset, grid=2
            )
            found = check(results, inputs, problem)
            assert found.ok, (cols, offset, found.message)


@pytest.mark.parametrize("strategy", ["online", "safe"])
@pytest.mark.parametrize(
    ("function", "hooks"),
    [
        ("cross_entropy_smooth", ()),
        ("token_log_probs_i32", ()),
        ("softmax", ("scale", "causal", "dropout")),
        ("logsumexp", ("lengthsi64", "sinkf32")),
    ],
)
def test_regimes_with_targets_ids_and_hooks(
    strategy: str, function: str, hooks: tuple[str, ...]
) -> None:
    assert objections([source_of(function, "float32", strategy, *hooks)]) == []


def test_no_row_is_shared_by_parts_whose_size_is_a_constant() -> None:
    problem = Problem.of("softmax_backward", "float32", MAX_INT32_COLS, layout=AnyWidth())
    found: list[Variant] = list(candidates(problem, 64, arch_named("sm_90")))
    assert found
    assert {variant.strategy.knobs.get("parts", 1) for variant in found} == {1}


def test_commands_take_its_name(tmp_path: Path) -> None:
    name = source_of("softmax", "float32", "online").variant.name
    ok("emit", "--variant", name, "--out", tmp_path)
    assert "constexpr Col kCols" not in ok("show", name).stdout
    path = tmp_path / f"{name}.cu"
    assert "1 checked, 0 failed" in ok("verify", "--device", "cpu", "--source", path).stdout
    for given in (("--variant", name), ("--source", path)):
        assert "rows of any width" in cli("run", "--device", "cpu", *given).stderr


def test_no_choice_rests_on_columns_that_may_not_be_there() -> None:
    problem = Problem.of("topk_softmax_k8", "bfloat16", MAX_INT32_COLS, layout=AnyWidth())
    found = candidates(problem, 64, arch_named("sm_90"))
    assert {variant.strategy.name for variant in found} == {"safe"}
