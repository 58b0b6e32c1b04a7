"""Choosing a variant by what a caller may name."""

from __future__ import annotations

from typing import Any, cast

import pytest

from softgen.errors import IllegalVariantError, InvalidTypeError, InvalidValueError
from softgen.problems.arch import arch_named
from softgen.problems.problem import Problem
from softgen.strategies.oneflow import oneflow_dispatch
from softgen.strategies.online import Online
from softgen.strategies.safe import Safe
from softgen.strategies.select import select
from softgen.strategies.variants import Variant, best_guess

H200 = arch_named("sm_90")
THOUSAND = Problem.of("softmax", "float32", 1000)


def test_nothing_means_the_best_guess() -> None:
    assert select(THOUSAND, 4096, H200) == best_guess(THOUSAND, 4096, H200)


@pytest.mark.parametrize(
    ("dtype", "cols", "strategy"),
    [
        *(("bfloat16", 4, "tiles"), ("float32", 3, "tiles"), ("float16", 7, "tiles")),
        *(("float32", 4, "warp"), ("bfloat16", 8, "warp"), ("bfloat16", 12, "warp")),
    ],
)
def test_rows_below_16_bytes_are_guessed_to_be_best_as_tiles(
    dtype: str, cols: int, strategy: str
) -> None:
    chosen = best_guess(Problem.of("softmax", dtype, cols), 3_000_000, H200)
    assert chosen.strategy.name == strategy


@pytest.mark.parametrize(("cols", "strategy"), [(127, "tiles"), (128, "warp"), (129, "warp")])
def test_rows_of_single_elements_are_guessed_to_be_best_as_tiles_up_to_256_bytes(
    cols: int, strategy: str
) -> None:
    chosen = best_guess(Problem.of("softmax", "bfloat16", cols), 3_000_000, H200)
    assert chosen.strategy.name == strategy


def test_a_strategy_means_its_best_guess() -> None:
    chosen = select(THOUSAND, 4096, H200, "online")
    assert chosen == best_guess(THOUSAND, 4096, H200, "online")
    assert isinstance(chosen.strategy, Online)


def test_oneflow_is_its_dispatch() -> None:
    for problem, label in (
        (THOUSAND, "oneflowwarp_p2_c32_g32_r1_pad_b128_n67584"),
        (Problem.of("softmax", "float32", 2000), "oneflowblock_p2_st_b128_n67584"),
        (Problem.of("softmax", "float32", 20000), "oneflowblock_p2_b1024_n8448"),
    ):
        chosen = select(problem, 4096, H200, "oneflow")
        assert chosen == Variant(problem, oneflow_dispatch(problem, 4096, H200))
        assert chosen.strategy.label == label
        assert select(problem, 4096, H200, label) == chosen


def test_a_full_name_is_that_variant() -> None:
    chosen = select(THOUSAND, 4096, H200, "softmax_f32_1000_online_p2_u4_b256")
    assert chosen == Variant(THOUSAND, Online(2, 4, 256))


def test_strategies_and_variants_are_taken_as_they_are() -> None:
    setting = Safe(block_size=512)
    assert select(THOUSAND, 4096, H200, setting) == Variant(THOUSAND, setting)
    assert select(THOUSAND, 4096, H200, Variant(THOUSAND, setting)).strategy is setting


def test_a_variant_of_another_problem_names_both() -> None:
    with pytest.raises(InvalidValueError) as caught:
        select(THOUSAND, 4096, H200, "log_softmax_f16_1024_safe_b256")
    message = str(caught.value)
    assert "log_softmax of float16 with 1024 columns" in message
    assert "softmax of float32 with 1000 columns" in message
    assert "softmax_f32_1000_" in message


def test_a_variant_for_aligned_rows_is_refused_for_rows_that_start_anywhere() -> None:
    anywhere = Problem.of("softmax", "float32", 1000, alignment=1)
    with pytest.raises(InvalidValueError, match=r"alignment 4, and the request .* alignment 1"):
        select(anywhere, 4096, H200, "softmax_f32_1000_online_p4_u2_b128")


def test_a_shape_in_the_place_of_a_variant_is_told_where_it_goes() -> None:
    with pytest.raises(InvalidValueError, match="8192x4096 is a shape, which --shape takes"):
        select(THOUSAND, 4096, H200, "8192x4096")


def test_an_unknown_strategy_lists_the_known_ones() -> None:
    with pytest.raises(InvalidValueError, match=r"'teleport'.*online.*safe.*warp.*oneflow"):
        select(THOUSAND, 4096, H200, "teleport")


@pytest.mark.parametrize(
    ("misspelt", "message"),
    [
        ("softmax_f32_1000_online_p4_u2", "'online_p4_u2' is no setting of online, .* b block"),
        ("softmx_f32_1000_online_p4_u2_b128", "unknown function 'softmx'; .* 'softmax'"),
        ("onlin_p4_u2_b128", "unknown variant 'onlin_p4_u2_b128'; .* settings such as online_p4"),
    ],
)
def test_a_misspelt_name_is_told_which_part_is_wrong(misspelt: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        select(THOUSAND, 4096, H200, misspelt)


def test_a_strategy_without_a_legal_setting_says_so() -> None:
    wide = Problem.of("softmax", "float32", 100_000)
    with pytest.raises(InvalidValueError, match=r"'warp' has no .* for softmax_f32_100000"):
        select(wide, 4096, H200, "warp")


def test_illegal_knobs_are_refused() -> None:
    with pytest.raises(IllegalVariantError, match="block_size must be a multiple of 32"):
        select(THOUSAND, 4096, H200, Safe(block_size=100))
    with pytest.raises(IllegalVariantError, match="block_size must be a multiple of 32"):
        select(THOUSAND, 4096, H200, "softmax_f32_1000_safe_b100")


@pytest.mark.parametrize("choice", [7, 1.5, b"warp", ("warp",), Safe])
def test_other_things_are_a_type_error(choice: object) -> None:
    with pytest.raises(InvalidTypeError, match="by a name, a Strategy or a Variant"):
        select(THOUSAND, 4096, H200, cast(Any, choice))
