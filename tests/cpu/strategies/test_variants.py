"""Names of variants, and which variants there are."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings

from softgen.errors import InvalidValueError
from softgen.problems.arch import Arch, arch_named
from softgen.problems.dtypes import DType
from softgen.problems.problem import Problem
from softgen.strategies.cooperative import Cooperative
from softgen.strategies.online import Online
from softgen.strategies.registry import all_strategies, strategy_named
from softgen.strategies.safe import Safe
from softgen.strategies.variants import Variant, best_guess, candidates, parse_label, parse_name
from softgen.strategies.warp import Warp
from tests.helpers.drawn import archs, problems, row_counts
from tests.helpers.single import BOTH

H200 = arch_named("sm_90")
THOUSAND = Problem.of("softmax", "float32", 1000)


@settings(deadline=None, max_examples=150)
@given(problems, row_counts, archs)
def test_a_name_is_its_variant(problem: Problem, rows: int, arch: Arch) -> None:
    found = list(candidates(problem, rows, arch))
    assert [parse_name(variant.name) for variant in found] == found


def test_names_are_unique_over_thousands() -> None:
    texts: dict[str, Variant] = {}
    for algorithm in BOTH:
        for dtype in DType:
            for out in DType:
                for cols in (1, 31, 1000, 5000):
                    for alignment in (1, None):
                        problem = Problem.of(
                            algorithm, dtype, cols, out_dtype=out, alignment=alignment
                        )
                        for variant in candidates(problem, 64, H200):
                            assert texts.setdefault(variant.name, variant) == variant
                            assert re.fullmatch(r"[a-z][a-z0-9_]{1,120}", variant.name)
    assert len(texts) > 5000


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        (
            Variant(THOUSAND, Warp(4, 32, 32, 1, True, 128)),
            "softmax_f32_1000_warp_p4_c32_g32_r1_pad_b128",
        ),
        (
            Variant(THOUSAND, Warp(4, 40, 25, 2, False, 64)),
            "softmax_f32_1000_warp_p4_c40_g25_r2_b64",
        ),
        (Variant(THOUSAND, Online(2, 4, 96)), "softmax_f32_1000_online_p2_u4_b96"),
        (
            Variant(
                Problem.of("log_softmax", "float16", 64, out_dtype="float64", alignment=2), Safe(32)
            ),
            "log_softmax_f16_to_f64_64_align2_safe_b32",
        ),
    ],
)
def test_spelling(variant: Variant, name: str) -> None:
    assert variant.name == name
    assert parse_name(name) == variant


GOOD = "softmax_f32_1000_warp_p4_c32_g32_r1_pad_b128"
BLOCK = "block_p4_c8_g128_b128_m1"


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "softmax",
        "softmax_f32_1000",
        "softmin_f32_1000_safe_b256",
        "softmax_f8_1000_safe_b256",
        "softmax_f32_01000_safe_b256",
        "softmax_f32_to_f32_1000_safe_b256",
        "softmax_f32_1000_align4_safe_b256",  # 4 is what 1000 columns have anyway
        "softmax_f32_1000_align8_safe_b256",
        "softmax_f32_1000_safe",
        "softmax_f32_1000_safe_b",
        "softmax_f32_1000_safe_b256_b256",
        "softmax_f32_1000_safe_b0256",
        "softmax_f32_1000_safe_b256_u1",
        "softmax_f32_1000_safe_b-256",
        "softmax_f32_1000_online_u2_p4_b128",
        GOOD.replace("_pad", "_pad1"),
        GOOD.replace("_pad_b128", "_b128_pad"),
        GOOD.upper(),
        GOOD + "\n",
        GOOD + ".cu",
        " " + GOOD,
        "softmax_f32_\u0661\u0660_safe_b256",  # Arabic digits
    ],
)
def test_other_names_are_refused(bad: str) -> None:
    with pytest.raises(InvalidValueError, match=r"is not the name of a variant: "):
        parse_name(bad)


def test_a_setting_is_read_back_from_its_label() -> None:
    setting = parse_name(GOOD).strategy
    assert parse_label(setting.label) == setting


@pytest.mark.parametrize("bad", ["safe_b", "safe_b256_p4", "safe_b0256", "safe_", "safe_b256\n"])
def test_other_labels_are_refused(bad: str) -> None:
    with pytest.raises(InvalidValueError, match=r"is no setting of safe, .* b block_size, pdl in"):
        parse_label(bad)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("softmax_f32_1000_best_b256", "unknown strategy 'best'; softgen knows: .*online.*safe"),
        ("softmax_f32_1000_sfe_b256", "unknown strategy 'sfe'; did you mean 'safe'"),
        ("softmx_f32_1000_safe_b256", "unknown function 'softmx'; did you mean 'softmax'"),
        ("ranked_log_probs_top65_f32_99_safe_b256", "_top1 to ranked_log_probs_top64, then"),
        ("sample_k10_f32_99_safe_b256", "sample_filtered, sample_k8, sample_k16, sample_k32"),
        ("topk_softmax_k8_norm_bias_f32_99_safe_b256", "in this order, _sigmoid, _bias"),
        ("softmax_lsee_f32_8_safe_b256", "unknown function 'softmax_lsee'; .* 'softmax_lse'"),
        ("log_sofmax_bf16_to_f32_8_safe_b256", "unknown function 'log_sofmax'; .* 'log_softmax'"),
        ("softmax_f33_1000_safe_b256", "unknown dtype 'f33'; did you mean 'f32'"),
        ("softmax_f32_to_f3_8_safe_b256", "unknown dtype 'f3'; did you mean 'f32'"),
        ("softmax_f32_10k_safe_b256", "'10k' stands where the number of columns should"),
        (f"softmax_f32_1024_scal_{BLOCK}", "modifier 'scal'; did you mean 'scale'"),
        ("softmax_f32_1024_scal_blok_p4", "modifier 'scal'; did you mean 'scale'"),
        (f"softmax_f32_1024_fixd_scale_{BLOCK}", "modifier 'fixd'; did you mean 'fixed'"),
        (f"softmax_f32_1024_align2_what_{BLOCK}", "modifier 'what'; softgen knows: align, fixed"),
        ("softmax_f32_1000_scale_sfe_b256", "unknown strategy 'sfe'; did you mean 'safe'"),
        ("softmax_f32_1000_safe_c256", "'safe_c256' is no setting of safe, .* b block_size"),
        ("softmax_f32_1000_align4_safe_b256", "did you mean 'softmax_f32_1000_safe_b256'?"),
        ("softmax_f32_1001_fixed_align1_safe_b256", "must be in this order: 'align1_fixed'"),
        ("softmax_f32_8_causal_scale_safe_b256", "'causal_scale' .* order: 'scale_causal'"),
        ("softmax_f32_8_scale_in4_strips_p4_w2_b64_u4", "must be in this order: 'in4_scale'"),
        ("softmax_f32_1000_scale", "it names no strategy"),
        ("softmax_f32", "it ends too soon"),
        ("softmax_f32_0_safe_b256", "cols must be from 1"),
        ("softmax_f32_1000_align3_safe_b256", "power of two"),
        ("softmax_f32_1000_align0_safe_b256", "power of two"),
    ],
)
def test_names_whose_parts_are_wrong_say_which(bad: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        parse_name(bad)


def test_an_endless_number_is_refused_like_any_other_name() -> None:
    caught: ValueError | None = None
    try:
        parse_name(f"softmax_f32_{'9' * 5000}_safe_b256")
    except InvalidValueError as error:
        caught = error
    assert caught is not None


@settings(deadline=None, max_examples=60)
@given(problems, row_counts, archs)
def test_the_filter_keeps_one_strategys_candidates_in_order(
    problem: Problem, rows: int, arch: Arch
) -> None:
    everything = list(candidates(problem, rows, arch))
    parts = {
        kind.name: list(candidates(problem, rows, arch, kind.name))
        for kind in all_strategies()
        if kind.tuned
    }
    for name, part in parts.items():
        assert part == [v for v in everything if v.strategy.name == name]
    # Strategies follow each other whole, the one with the best estimate first.
    estimates = [strategy_named(v.strategy.name).estimate(problem, rows, arch) for v in everything]
    assert estimates == sorted(estimates)
    assert sum(map(len, parts.values())) == len(everything)
    assert best_guess(problem, rows, arch) == everything[0]


def test_an_unknown_strategy_lists_the_known_ones() -> None:
    with pytest.raises(
        InvalidValueError,
        match="unknown strategy 'warpp'; .*" + ", ".join(k.name for k in all_strategies()),
    ):
        next(candidates(THOUSAND, 1, H200, "warpp"))


def test_a_best_guess_of_a_strategy_that_has_none() -> None:
    wide = Problem.of("softmax", "float32", 100_000)
    with pytest.raises(InvalidValueError) as caught:
        best_guess(wide, 1, H200, "warp")
    message = str(caught.value)
    assert "'warp'" in message
    assert "softmax_f32_100000" in message
    assert "sm_90" in message
    assert "`softgen list --dtype float32 --cols 100000 --arch sm_90` shows what has" in message


def test_a_best_guess_where_nothing_has_a_setting() -> None:
    wide = Problem.of("softmax", "float32", 4_000_000, layout="sharded")
    with pytest.raises(InvalidValueError) as caught:
        best_guess(wide, 1, H200)
    assert str(caught.value) == (
        "no strategy has a setting for softmax_f32_4000000_sharded on sm_90; take more GPUs, so "
        "that a shard is narrower"
    )


@pytest.mark.parametrize(
    ("label", "options"),
    [
        ("softmax_f32_1000", "--dtype float32 --cols 1000"),
        ("entropy_f32_1000_sharded", "--function entropy --dtype float32 --cols 1000 --sharded"),
        ("softmax_f32_99_in64_scale", "--dtype float32 --cols 99 --hook scale --inner 64"),
        (
            "softmax_f16_to_f32_99_strided2",
            "--dtype float16 --cols 99 --out-dtype float32 --strided 2",
        ),
        ("softmax_f32_1000_align1", "--dtype float32 --cols 1000 --alignment 1"),
        ("softmax_f32_99_fixed", "--dtype float32 --cols 99 --batch-invariant"),
    ],
)
def test_the_options_that_ask_for_a_problem(label: str, options: str) -> None:
    assert parse_name(f"{label}_safe_b128").problem.command_options == options


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("token_log_probs_k2_i32", "token_log_probs_i32_k2"),
        ("token_log_prob_lse_k4", "token_log_probs_lse_k4"),
        ("cross_entropy_grd_i32", "cross_entropy_grad_i32"),
        ("sofmax", "softmax"),
    ],
)
def test_the_function_that_was_meant(given: str, meant: str) -> None:
    message = rf"unknown function '{given}'; did you mean '{meant}'\?"
    with pytest.raises(InvalidValueError, match=message):
        Problem.of(given, "float32", 8)
    with pytest.raises(InvalidValueError, match=message):
        parse_name(f"{given}_f32_8_safe_b128")


def test_check_is_the_strategys() -> None:
    Variant(THOUSAND, Safe(256)).check(H200)
    with pytest.raises(ValueError, match=r"^safe_b33: block_size"):
        Variant(THOUSAND, Safe(33)).check(H200)


def test_a_knob_that_has_its_default_is_not_in_the_name() -> None:
    problem = Problem.of("softmax", "float32", 16777216)
    plain = Variant(problem, Cooperative(4, 8, 768, 132, 1, 11, 1, 2))
    holding = Variant(problem, Cooperative(4, 8, 512, 132, 1, 16, 1, 2, 9))
    assert plain.name == "softmax_f32_16777216_cooperative_p4_c8_b768_k132_n1_s11_f1_l2"
    assert holding.name == "softmax_f32_16777216_cooperative_p4_c8_b512_k132_n1_s16_f1_l2_h9"
    assert [parse_name(v.name) for v in (plain, holding)] == [plain, holding]
    with pytest.raises(InvalidValueError):
        parse_name(plain.name + "_h0")
