"""Kernels that choose: what is broken in one is seen."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from softgen.devices.emulator import Job, run_each
from softgen.errors import EmulationError
from softgen.problems.arch import DEFAULT_ARCH, arch_named
from softgen.problems.numerics import check, encode, other_inputs
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.choice import Choice
from softgen.strategies.safe import Safe
from softgen.strategies.select import select
from softgen.strategies.variants import Variant, candidates, parse_name
from softgen.strategies.warp import Warp
from tests.helpers.emulator_helpers import broken, objections, right_of, wrong_of

ARCH = arch_named(DEFAULT_ARCH)
K8 = "topk_softmax_k8"
ROUTER = "topk_softmax_k8_sigmoid_bias_g8of4_norm"


@pytest.mark.parametrize(
    ("name", "dtype", "cols", "choice", "old", "new"),
    [
        ("topk_softmax_k8", "bfloat16", 256, "warp", "+ kLastColumn - col", "+ kLastColumn + col"),
        ("topk_softmax_k8", "bfloat16", 256, "warp", "keys[0] == largest", "lane == 0"),
        ("topk_softmax_k8", "bfloat16", 256, "warp", "next < kKept", "next < kKept - 1"),
        ("topk_softmax_k8", "bfloat16", 256, "warp", "sort_keys<kPiece, kStep / 2>(keys)", ""),
        (
            "topk_softmax_k8",
            "float32",
            256,
            "warp",
            "return number_bits ^ (number_bits >> 31 & 0x7fffffff);",
            "return number_bits;",
        ),
        ("topk_softmax_k8", "float32", 256, "warp", "- whole.first == 0", "- whole.first == 1"),
        (
            "topk_softmax_k40",
            "float32",
            256,
            "warp",
            "i = lane * kPlaces + first",
            "i = lane",
        ),
        (K8, "float32", 1000, "block", "rank == kChosen - 1", "rank == kChosen - 2"),
        (K8, "float32", 1000, "block", "values[i] >= bound", "values[i] > bound"),
        (K8, "float32", 1000, "block", "board.d[lane] * exponential", "exponential"),
        (K8, "float32", 1000, "block", "if (part.d != part.d) part.first = part.d;", ""),
        (K8, "float32", 4096, "block", "if (count <= kMostFound) return true;", "return true;"),
        (
            K8 + "_sigmoid",
            "float32",
            1000,
            "block",
            "if (is_bad && ",
            "if (false && ",
        ),
        (K8, "float32", 4096, "cluster", "slots[of].found[i]", "slots[of].found[0]"),
        (K8, "float32", 4096, "cluster", "found[before + i]", "found[i]"),
        (K8, "float32", 4096, "cluster", "block < of", "block <= of"),
        (K8, "float32", 4096, "cluster", "all < kChosen", "all < kChosen - 4"),
        (K8, "float32", 4096, "cluster", "push(keys[i], slot", "push(nothing(), slot"),
        (K8, "float32", 4096, "cluster", "& -128) + i", "& -128) + 128 + i"),
        (K8, "float32", 4096, "online", "(!is_chosen(least, board))", "(is_chosen(least, board))"),
        (K8, "float32", 4096, "online", "of_thread.d * exponential", "exponential"),
        (
            "topk_softmax_k64",
            "float32",
            4096,
            "block",
            "found = board.count;\n",
            "found = kMany;\n",
        ),
        (K8, "float32", 4096, "cluster", "slot.d * exponential", "exponential"),
        (K8, "float32", 4096, "cluster", "first + column_at(chunk", "column_at(chunk"),
        (K8, "float32", 300, "safe", "number >= bound", "number > bound"),
        (K8, "float32", 300, "safe", "mine && before < kChosen", "mine && before < kChosen - 1"),
        (K8, "float32", 300, "safe", "mine = start == 0 && i", "mine = i"),
        (K8, "float32", 300, "safe", "board.found[i] = nothing();", ";"),
        (K8, "float32", 300, "safe", "before += __shfl_xor_sync(0xffffffff, before, step);", ""),
        (ROUTER, "float32", 256, "warp", "second = max(second, min(first, other));", ""),
        (ROUTER, "float32", 256, "warp", "__fadd_rn(score, bias)", "score"),
        (ROUTER, "float32", 256, "warp", "& before);", "& !before);"),
        (ROUTER, "float32", 256, "warp", "__syncwarp();\n  const Key own", "const Key own"),
        (ROUTER, "float32", 256, "warp", "taken(found + i) > own", "taken(found + i) >= own"),
        (K8, "float32", 256, "warp", "(count > kFound) return false;", "(false) return false;"),
        (ROUTER, "float32", 256, "warp", "min(shift, Compute(0))", "0"),
        (ROUTER, "float32", 256, "safe", "rank < kKeptGroups", "rank <= kKeptGroups"),
        ("topk_softmax_backward_k8", "float32", 256, "warp", "col + i == id", "i == id"),
        (
            "topk_softmax_backward_k8",
            "float32",
            256,
            "online",
            "-__fmul_rn(factor, total)",
            "-factor",
        ),
        ("topk_softmax_backward_k6_norm", "float32", 256, "warp", " - mean", ""),
        ("topk_softmax_backward_k1_sigmoid", "float32", 256, "warp", "1 + expf(value)", "2"),
    ],
)
def test_what_is_broken_is_seen(
    name: str, dtype: str, cols: int, choice: str, old: str, new: str
) -> None:
    source = render(select(Problem.of(name, dtype, cols), 64, ARCH, choice))
    assert objections([broken(source, old, new)])


# Of slots of 2 packs, and of rows that begin anywhere.
SLOTS = f"{K8}_f32_5000_online_p1_u2_b128"
ENDS = f"{K8}_f32_4099_online_p4_u2_b128"
MANY_PACKS = f"{K8}_f32_8000_online_p1_u1_b1024"
OF_RAW = f"{K8}_bf16_4096_online_p8_u4_b128"
RANKED_RAW = "ranked_log_probs_top8_bf16_4096_online_p8_u2_b128"
RANKED = "ranked_log_probs_top8_f32_4099_online_p4_u2_b128"
OF_PACKS = f"{K8}_bf16_256_warp_p8_c64_g4_r1_b128_pk"
OF_FEW_PACKS = f"{K8}_bf16_64_warp_p8_c8_g8_r1_b128_pk"


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (OF_PACKS, "__hmax2_nan(top, pairs[i])", "top"),
        (OF_PACKS, "__hmax2_nan(Pair{a.x, b.x}, Pair{a.y, b.y})", "Pair{a.x, b.x}"),
        (OF_PACKS, "__hmax2_nan(top, pairs[i])", "__hmax2(top, pairs[i])"),
        (OF_PACKS, "p * (kStep * 0x10001u)", "p * kStep"),
        (OF_PACKS, "- (step << 16)", "- (step << 17)"),
        (OF_PACKS, "i * 0x20002u", "i * 0x10001u"),
        (OF_PACKS, "bits ^ (signs_of(bits) & 0x7fff7fff)", "bits"),
        (OF_PACKS, "partners[i] = keys[N - 1 - i];", "partners[i] = keys[N / 2 + i];"),
        (OF_PACKS, "later ? mine[i + half] : mine[i]", "mine[i]"),
        (OF_PACKS, "row_x + col, pack", "row_x + lane * kPackSize, pack"),
        (OF_PACKS, "exp2f(-terms.rounded)", "0.9f"),
        (OF_PACKS, "rows - 1;  // all lanes", "row;  // all lanes"),
        (OF_PACKS, "store_word(words, to);", "store_word(words, to + kWide);"),
        (OF_FEW_PACKS, "exchanged(keys[N - 1 - i], kAlike)", "exchanged(keys[i], kAlike)"),
        (OF_FEW_PACKS, "order_keys(both);", ""),
        (OF_FEW_PACKS, "later ? last_of(", "!later ? last_of("),
        (OF_FEW_PACKS, "(p * kLanes + lane) * kPackSize", "p * kLanes * kPackSize"),
        (SLOTS, "slots[i] >= bound", "slots[i] > bound"),
        (SLOTS, "highest >= bound ? first", "highest > bound ? first"),
        (SLOTS, "slots[packs / kPacksOfSlot * kBlockSize]", "slots[0]"),
        (MANY_PACKS, "if (packs % kPacksOfSlot) most", "if (false) most"),
        (SLOTS, "slots + threadIdx.x", "slots"),
        (SLOTS, "if (place < kBlockSize) hits", "hits"),
        (SLOTS, "if (found <= kBlockSize) {", "if (true) {"),
        (SLOTS, "visit.packs += kUnroll", "visit.packs += 1"),
        (SLOTS, "const Col pack = slot % kBlockSize", "const Col pack = 0"),
        (SLOTS, "slot / kBlockSize * kPacksOfSlot", "0"),
        (SLOTS, "+ nth * kBlockSize", "+ nth"),
        (SLOTS, "i < found * kPacksOfSlot", "i < found"),
        (SLOTS, "+ i % kPacksOfSlot", "+ 0"),
        (SLOTS, "if (threadIdx.x == 0) hits.count = 0;", "hits.count = 0;"),
        (SLOTS, "__syncthreads();  // all have read the count", ""),
        (ENDS, "thread < head", "thread < 0"),
        (ENDS, "tail + thread < kCols", "tail + thread < 0"),
        (OF_RAW, "high_of(pairs[i / 2]) : low_of", "low_of(pairs[i / 2]) : low_of"),
        (RANKED_RAW, "__hgt2(pair, of_id)", "__hge2(pair, of_id)"),
        (RANKED_RAW, "low_of(pair_count) + high_of(pair_count)", "low_of(pair_count)"),
        (RANKED, "above += value > logit", "above += value >= logit"),
        (RANKED, "above += value[0] > logit", "above += value[0] >= logit"),
        (RANKED, "larger_of_warp += __shfl_xor_sync(0xffffffff, larger_of_warp, step);", ""),
    ],
)
def test_what_is_broken_in_merges_and_slots_is_seen(name: str, old: str, new: str) -> None:
    assert objections([broken(render(parse_name(name)), old, new)])


@pytest.mark.parametrize(
    "setting", ["99_lengthsi64_online_p4_u4_b128", "1003_causal_online_p4_u2_b128"]
)
def test_slots_of_rows_that_end_early_and_begin_anywhere(setting: str) -> None:
    """The emulator tells of slots that are looked at and that no thread wrote."""
    assert objections([render(parse_name(f"ranked_log_probs_top8_f32_{setting}"))]) == []


@pytest.mark.parametrize("cols", [64, 96, 160, 256, 384])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_all_settings_of_packs_choose_the_same(dtype: str, cols: int) -> None:
    problem = Problem.of(K8, dtype, cols)
    settings = {
        dataclasses.replace(variant.strategy, evict_first=False, pdl=0, block_size=128)
        for variant in candidates(problem, 64, ARCH, "warp")
        if isinstance(variant.strategy, Warp)
    }
    x = np.random.default_rng(cols).normal(size=(9, cols))
    x[0], x[1, 1::2], x[2, cols // 3], x[3] = np.round(x[0]), -np.inf, np.nan, x[3] * 1e-39
    x[4], x[5], x[6, ::3] = -np.sort(-x[4]), -0.0, -0.0
    x[5, 1::2] = 0.0
    given = encode(x, problem.dtype)
    rest = other_inputs(given, problem)
    variants = [Variant(problem, setting) for setting in sorted(settings, key=str)]
    found = right_of([Job(render(variant), given, rest) for variant in variants])
    ids = {results[1][[0, 1, 4, 5, 6, 7, 8]].tobytes() for _, results in found}
    assert len(ids) == 1
    assert any(setting.chooses_packs(problem) for setting in settings)


@pytest.mark.parametrize(
    ("k", "dtype", "lanes", "choice"),
    [
        (8, "bfloat16", 4, Choice(4, listed=8, places=2, wide=2, found=0)),
        (8, "bfloat16", 1, Choice(1, listed=8, places=8, wide=4, found=0)),
        (8, "bfloat16", 16, Choice(16, listed=8, places=1, wide=1, found=0)),
        (6, "float64", 2, Choice(2, listed=8, places=4, wide=2, found=0)),
        (8, "bfloat16", 32, Choice(32, listed=0, places=1, wide=1, found=0)),
        (20, "bfloat16", 4, Choice(4, listed=0, places=5, wide=1, found=0)),
        (8, "float32", 32, Choice(32, listed=0, places=1, wide=1, found=32)),
        (20, "float32", 32, Choice(32, listed=0, places=1, wide=1, found=0)),
    ],
)
def test_who_has_what_of_a_choice(k: int, dtype: str, lanes: int, choice: Choice) -> None:
    problem = Problem.of(f"topk_softmax_k{k}", dtype, 64)
    assert Choice.of(problem, Warp.covering(problem, 2, lanes)) == choice


@pytest.mark.parametrize("sigmoid", ["", "_sigmoid"])
@pytest.mark.parametrize("scale", [-2.5, 0.0])
def test_a_gradient_of_weights_by_a_scale_of_0_and_below(scale: float, sigmoid: str) -> None:
    """By 0 all weights are 0, and so is what they have of x."""
    problem = Problem.of(f"topk_softmax_backward_k8{sigmoid}_norm", "float32", 33)
    source = render(Variant(problem, Safe(64)))
    x = np.random.default_rng(8).standard_normal((9, 33)).astype(np.float32)
    weights, ids, upstream, of_weights = other_inputs(x, problem)
    rest: tuple[Any, ...] = (weights * (scale / of_weights), ids, upstream, np.float32(scale))
    found = run_each(source, x, others=rest)
    if scale:
        accuracy = check(found, (x, *rest), problem)
        assert accuracy.ok, accuracy.message
    else:
        assert not found[0].any()  # nor is any NaN


def test_zeros_of_both_signs_in_packs() -> None:
    source = render(parse_name(OF_PACKS))
    problem = source.variant.problem
    x = np.full((2, 256), -0.0)
    x[:, 1::2] = 0.0
    given = encode(x, problem.dtype)
    rest = other_inputs(given, problem)

    def ids(one: Source) -> list[int]:
        return list(run_each(one, given, others=rest)[1][0])

    assert ids(source) == list(range(8))
    assert ids(broken(source, "__hadd2(pair, Pair{})", "pair")) != list(range(8))


@pytest.mark.parametrize(
    "name",
    [
        f"{K8}_sigmoid_bias_norm_f32_256_warp_p4_c8_g32_r1_b128_pdl3",
        f"{K8}_bias_f32_256_warp_p4_c8_g32_r1_b128_pdl3",
        f"{K8}_sigmoid_bias_f32_4000_block_p4_c32_g128_b128_m1_pdl1",
        f"{K8}_sigmoid_bias_norm_f32_4000_cluster_p4_c12_b128_k4_m1_pdl1",
        f"{K8}_bias_f32_300_safe_b256_pdl1",
        f"{K8}_sigmoid_bias_g8of4_norm_f64_256_safe_b256_pdl1",
    ],
)
def test_what_is_hidden_is_not_chosen_for_its_bias(name: str) -> None:
    """Where three columns are shown these are first, and the lowest that are hidden follow."""
    source = render(parse_name(name))
    cols, kind = source.variant.problem.cols, source.variant.problem.dtype.value
    x, shown = np.full((1, cols), -np.inf, kind), [4, 9, 20]
    x[0, shown] = [1, -2, 3]
    bias = np.linspace(1, 9, cols, dtype=kind)
    bias[shown] = 0
    weights, ids = run_each(source, x, others=(bias, np.array(1, kind)))
    assert ids[0].tolist() == [20, 4, 9, 0, 1, 2, 3, 5]
    assert (weights[0, :3] > 0).all()
    assert (weights[0, 3:] == 0).all()


def test_a_bias_for_what_is_not_there() -> None:
    columns = np.arange(4000)
    bias = np.where((columns >= 1400) & (columns < 1500), 2, -1).astype(np.float32)
    x = np.full((2, 4000), -np.inf, np.float32)
    x[:, [7, 1400, 3999]] = [[1, 0, 3]]
    rest = (bias, np.array(1, np.float32))

    def verdict(source: Source) -> bool:
        made = run_each(source, x, others=rest)
        return check(made, (x, *rest), source.variant.problem).ok

    of_blocks = render(parse_name(f"{K8}_sigmoid_bias_f32_4000_cluster_p4_c12_b128_k4_m1_pdl1"))
    assert verdict(of_blocks)
    of_block = render(parse_name(f"{K8}_sigmoid_bias_f32_4000_block_p4_c32_g128_b128_m1_pdl1"))
    assert verdict(of_block)
    with pytest.raises(EmulationError, match="past the end of choice_bias"):
        verdict(broken(of_block, "col < kCols ? compared", "true ? compared"))


@pytest.mark.parametrize(
    "name",
    [
        # The same threads of both blocks have one, and weights are of x at columns that are chosen.
        f"{K8}_sigmoid_bias_f32_4096_cluster_p4_c16_b128_k2_m1_pdl1",
        f"{K8}_norm_bf16_4096_cluster_p8_c16_b128_k2_m1_pdl1",
        # More threads have one than the board has places.
        f"{K8}_sigmoid_f32_4096_block_p4_c4_g1024_b1024_m1_pdl1",
        # Fewer threads have one than are chosen.
        "topk_softmax_k64_sigmoid_bias_f32_100_safe_b32",
        "topk_softmax_k64_bias_f32_100_safe_b32",
    ],
)
def test_rows_of_nan(name: str) -> None:
    source = render(parse_name(name))
    problem = source.variant.problem
    x = np.random.default_rng(0).normal(size=(4, problem.cols))
    x[0], x[1, :: problem.cols // 2], x[2, 1:] = np.nan, np.nan, np.nan
    given = encode(x, problem.dtype)
    assert wrong_of([Job(source, given, other_inputs(given, problem))]) == []


@pytest.mark.parametrize("choice", ["block", "online", "safe"])
def test_bounds_of_numbers_that_are_none_in_float32(choice: str) -> None:
    problem = Problem.of(K8, "float64", 2000)
    x = np.full((4, 2000), -1e300)
    some = np.random.default_rng(0).permutation(2000)[:40]
    x[:, some] = np.array([[1e-39], [1e-50], [1e40], [1e-300]]) * -np.arange(1.0, 41)
    source = render(select(problem, 4, ARCH, choice))
    assert wrong_of([Job(source, x, other_inputs(x, problem))]) == []


@pytest.mark.parametrize("choice", ["warp", "safe"])
@pytest.mark.parametrize("name", ["topk_softmax_k8", "topk_softmax_k8_g8of1"])
def test_zeros_of_both_signs_nan_of_both_signs_and_groups_that_tie(name: str, choice: str) -> None:
    problem = Problem.of(name, "float32", 256)
    x = np.full((5, 256), -1, np.float32)
    x[0, 100:110] = [0.0, -0.0] * 5
    x[1, 99], x[1, 3] = np.uint32(0xFFC00001).view(np.float32), 9
    x[2, [5, 40]], x[2, 41:60] = 7, 6  # two groups with the same largest
    x[3, [250, 40]] = 7
    x[4] = -np.inf
    x[4, 200] = -0.0
    source = render(select(problem, 64, ARCH, choice))
    rest = other_inputs(x, problem)

    def verdict(text: str, new: str) -> bool:
        made = run_each(broken(source, text, new) if text else source, x, others=rest)
        return check(made, (x, *rest), problem).ok

    assert verdict("", "")
    assert not verdict("__fadd_rn(number, 0)", "number")
    if choice == "warp" and "_g" in name:
        assert not verdict("(other == scores[p] && before)", "false")
