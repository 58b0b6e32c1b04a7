"""What a problem may ask of strategies beyond the usual, on the emulator: every one that has it."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import softgen
from softgen.devices.emulator import run_each
from softgen.errors import (
    IllegalVariantError,
    InvalidTypeError,
    InvalidValueError,
)
from softgen.problems.arch import arch_named
from softgen.problems.dtypes import DType
from softgen.problems.hooks.known import SCALE
from softgen.problems.layouts import Rows
from softgen.problems.numerics import check, encode
from softgen.problems.operands import Extent
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.base import Feature, features_of
from softgen.strategies.registry import all_strategies
from softgen.strategies.variants import Variant, candidates, parse_name
from tests.helpers.cli_helpers import ok, refused
from tests.helpers.emulator_helpers import objections, require_seen

pytestmark = pytest.mark.usefixtures("host_built")

ARCH = arch_named("sm_90")
STRATEGIES = {kind.name for kind in all_strategies() if kind.takes and Rows in kind.layouts}
FUNCTIONS = ("softmax", "log_softmax", "logsumexp", "partial", "softmax_lse")


def settings(problem: Problem) -> list[Variant]:
    """Return the best guess, and the last, of every strategy that computes `problem`."""
    found: list[Variant] = []
    for kind in all_strategies():
        if kind.computes(problem):
            every = list(candidates(problem, 64, ARCH, kind.name))
            found += dict.fromkeys(every[:1] + every[-1:])
    return found


def names(variants: list[Variant]) -> set[str]:
    return {variant.strategy.name for variant in variants}


def test_scaled_elements_pass_every_regime() -> None:
    """Every two of a function, a type and a strategy; the verification has all three together."""
    types = list(DType)
    asked = [*((function, 1001) for function in FUNCTIONS), ("softmax", 21), ("softmax", 100)]
    variants: list[Variant] = []
    for turn, (function, cols) in enumerate(asked):
        for number, kind in enumerate(all_strategies(), turn):
            problem = Problem.of(
                *(function, types[number % len(types)], cols),
                hooks=["scale"],
                fixed_order=function == "partial",
            )
            variants += itertools.islice(candidates(problem, 64, ARCH, kind.name), 1)
    for number, (width, setting) in enumerate(
        (
            (1024, "shared_p{0}_b64_y2_s2_n2"),
            (1001, "cluster_p{0}_c{0}_b64_k8_m1"),
            (1001, "split_p{0}_c{0}_b64_m1_rev"),
            (0, "cooperative_p{0}_c{0}_b192_k2_n2_s4_f1_l1"),
            (0, "cooperative_p{0}_c{0}_b128_k2_n2_s2_f1_l1_h1"),
        )
    ):
        for dtype in types[number % 2 :: 2]:
            pack = dtype.max_pack
            stem = f"softmax_{dtype.short}_{width or 256 * pack}_scale_"
            variants.append(parse_name(stem + setting.format(pack)))
    assert names(variants) == STRATEGIES
    assert objections([render(variant) for variant in variants]) == []


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64], ids=lambda dtype: dtype.short)
def test_merged_pairs_pass_every_regime(dtype: DType) -> None:
    widths = (1, 1000) if dtype is DType.FLOAT32 else (7, 1000)
    problems = [Problem.of("merge", dtype, cols) for cols in widths]
    variants = [variant for problem in problems for variant in settings(problem)]
    pack = dtype.max_pack
    variants += [
        parse_name(f"merge_{dtype.short}_{setting}")
        for setting in (
            f"512_shared_p{pack}_b64_y2_s2_n2",
            f"1000_split_p{pack}_c{pack}_b64_m1",
            f"1000_cluster_p{pack}_c{pack}_b64_k8_m1",
        )
    ]
    # One writes elements, the other has the parts of one input.
    assert names(variants) == STRATEGIES - {"cooperative", "tiles"}
    assert objections([render(variant) for variant in variants]) == []


def test_a_pair_that_is_spoiled_spoils_its_row_whatever_it_weighs() -> None:
    """As softgen.merge has it: NaN or infinity in a sum counts where its piece weighs nothing."""
    nan, inf = np.nan, np.inf
    ms = np.array([[1, -200, 2], [1, -200, 2], [-inf, 0, 1], [-inf, -inf, -inf], [nan, 0, 1]])
    ds = np.array([[1, nan, 1], [1, inf, 1], [inf, 1, 1], [0, 0, 0], [nan, 1, 1]])
    given = [each.astype(np.float32) for each in (ms, ds)]
    wanted = softgen.merge(*zip(*(each.T for each in given), strict=True))
    for variant in settings(Problem.of("merge", "float32", 3)):
        found = run_each(render(variant), given[0], others=(given[1],))
        for result, right in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(result, right, variant.name)


def test_mistakes_are_seen() -> None:
    """The factor is left out, is applied to one element only, or the second input is ignored."""
    scaled = Problem.of("softmax", "float32", 1000, hooks=["scale"])
    (variant, *_) = [v for v in settings(scaled) if v.strategy.name == "block"]
    merged = next(v for v in settings(Problem.of("merge", "float32", 1000)))
    wrong = [
        (variant, "values[i] = __fmul_rn(values[i], scale)", "values[i] = values[i]"),
        (variant, "__fmul_rn(values[i], scale)", "__fmul_rn(values[i], 1 / scale)"),
        (merged, "sum_of_piece * exponential", "exponential"),
    ]
    require_seen([(render(of), old, new, ".") for of, old, new in wrong])


def test_a_number_is_passed_by_value_and_scales() -> None:
    problem = Problem.of("softmax", "float32", 300, hooks=["scale"])
    variant = next(v for v in settings(problem) if v.strategy.name == "block")
    source = render(variant)
    assert "const X* x, Y* y, Compute scale, long long rows" in " ".join(source.text.split())
    assert "//   scale: float32 number, finite and 1.18e-38 or more" in source.text
    assert "y = softmax(x), row by row, with scale * x, arithmetic in float32" in source.text
    x = encode(np.random.default_rng(0).standard_normal((5, 300)) * 3, DType.FLOAT32)
    for value in (1.0, 0.001, 1000.0):
        scale = np.array(value, np.float32)
        results = run_each(source, x, others=(scale,))
        assert check(results, (x, scale), problem).ok
        exact = np.exp((x - x.max(-1, keepdims=True)).astype(np.float64) * value)
        exact /= exact.sum(-1, keepdims=True)
        assert np.allclose(results[0], exact, rtol=1e-3 if value > 1 else 2e-5, atol=1e-7)


def test_names_say_the_hooks_and_are_read_back() -> None:
    problem = Problem.of("softmax", "bfloat16", 1001, hooks=["scale"], fixed_order=True)
    for variant in settings(problem):
        assert "_1001_fixed_scale_" in variant.name
        assert parse_name(variant.name) == variant
    assert problem.as_json["hooks"] == ["scale"]
    assert "hooks" not in Problem.of("softmax", "bfloat16", 1001).as_json
    assert problem.operands[-1:] == SCALE.operands(DType.FLOAT32)
    assert problem.operands[-1].extent is Extent.NUMBER
    assert problem.bytes_per_row == 2 * 2 * 1001


def test_strategies_say_what_they_take() -> None:
    asked = features_of(Problem.of("softmax", "float32", 100, hooks=["scale"]))
    assert asked == {Feature.HOOKS}
    assert features_of(Problem.of("merge", "float32", 100)) == {Feature.MORE_INPUTS}
    assert features_of(Problem.of("finish", "float32", 100)) == {Feature.GIVEN_PAIRS}
    variant = parse_name("softmax_f32_1000_scale_recurrence_b128")
    with pytest.raises(IllegalVariantError, match="recurrence does not compute softmax with scale"):
        variant.check(ARCH)


def test_a_name_with_hooks_is_emitted_and_run_with_their_values(tmp_path: Path) -> None:
    name = settings(Problem.of("softmax", "float32", 100, hooks=["scale"]))[0].name
    emitted = ok("emit", "--variant", name, "--out", tmp_path / "kernels").output
    assert f"{name}.cu" in emitted
    named = ("run", "--rows", 4, "--variant", name, "--device", "cpu")
    assert "those of --hook are none" in refused(2, *named)
    assert name in ok(*named, "--hook", "scale=2").output


def test_other_hooks_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"unknown hook 'scal'.*scale"):
        Problem.of("softmax", "float32", 100, hooks=["scal"])
    with pytest.raises(InvalidValueError, match="one hook of a kind at most, got scale, scale"):
        Problem.of("softmax", "float32", 100, hooks=["scale", "scale"])
    with pytest.raises(InvalidTypeError, match="by its name"):
        Problem.of("softmax", "float32", 100, hooks=[1])  # type: ignore[list-item]


def test_lse_of_infinity_and_nan_is_nan_where_it_is_the_result() -> None:
    """Beside other results the sum is NaN for +inf anyway, and lse goes by the maximum."""
    x = np.zeros((3, 33))
    x[0, 3], x[1, 3], x[1, 30], x[2, 3] = np.inf, np.inf, np.nan, np.nan
    for function, of_both in (
        ("softmax_lse", np.inf),
        ("entropy_lse", np.inf),
        ("logsumexp", np.nan),
    ):
        source = softgen.generate(function, "float64", 33, variant="warp")
        *_, lse = run_each(source, encode(x, DType.FLOAT64))
        assert np.array_equal(lse, [np.inf, of_both, np.nan], equal_nan=True)
