"""Columns over resident blocks: what threads hold, packs across the end of inner, exchanges."""

from __future__ import annotations

import pytest

from softgen.errors import IllegalVariantError
from softgen.problems.arch import arch_named
from softgen.problems.layouts import Columns
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.select import select
from softgen.strategies.spread import Spread
from softgen.strategies.variants import Variant, best_guess, candidates, parse_name
from tests.helpers.emulator_helpers import ARCH, objections, require_seen

HOOKS = ("scale", "outscale", "zeroempty")


def source_of(
    function: str,
    dtype: str,
    cols: int,
    inner: int,
    *knobs: int,
    again: int = 1,
    shared: int = 0,
    hooks: tuple[str, ...] = (),
    out: str | None = None,
    pdl: int = 0,
) -> Source:
    """Return a kernel: knobs are pack, threads across, block, columns held, blocks, groups."""
    layout = Columns(inner)
    problem = Problem.of(function, dtype, cols, out_dtype=out, hooks=hooks, layout=layout)
    pack, across, block, held, blocks, groups = knobs
    setting = Spread(pack, across, block, held, blocks, groups, 1, again, shared, pdl=pdl)
    variant = Variant(problem, setting)
    variant.check(ARCH)
    return render(variant)


HELD = source_of("softmax", "float32", 200, 16, 4, 4, 64, 4, 4, 1)
AGAIN = source_of("softmax", "float32", 200, 16, 4, 2, 64, 1, 2, 2, again=2)
ODD = source_of("softmax", "bfloat16", 310, 7, 1, 7, 64, 9, 4, 2, pdl=2)
ODD_AGAIN = source_of("softmax", "float64", 310, 7, 1, 7, 32, 4, 3, 3)
BACKWARD = source_of("log_softmax_backward", "bfloat16", 99, 6, 1, 6, 32, 4, 3, 3)
SHARED = source_of("softmax", "float32", 200, 16, 4, 4, 64, 0, 4, 1, shared=4)
SHARED_AGAIN = source_of("softmax", "float32", 3000, 16, 4, 4, 64, 1, 4, 1, again=8, shared=8)
FLAT = source_of("softmax", "float32", 312, 7, 4, 7, 64, 3, 2, 1)
FLAT_AGAIN = source_of("softmax", "float32", 512, 7, 4, 7, 64, 1, 2, 1, again=2, shared=4)
FLAT_BACKWARD = source_of(
    "log_softmax_backward", "bfloat16", 512, 12, 8, 3, 64, 1, 2, 1, again=2, shared=4
)
RELAYED = source_of("softmax", "float32", 700, 63, 4, 63, 128, 2, 10, 1, again=2)
SOURCES = (
    *(HELD, AGAIN, ODD, ODD_AGAIN, BACKWARD, SHARED, SHARED_AGAIN, FLAT, FLAT_AGAIN),
    *(FLAT_BACKWARD, RELAYED),
    # The first tile of the second group has fewer rows than a block.
    source_of("softmax", "float32", 500, 6, 1, 4, 256, 2, 4, 2),
    source_of("log_softmax_lse", "float64", 896, 5, 1, 4, 256, 7, 2, 2, pdl=2),
    source_of("softmax", "float32", 200, 16, 4, 4, 64, 0, 4, 1, shared=4, hooks=HOOKS),
    source_of("softmax", "float64", 310, 7, 1, 7, 32, 4, 3, 3, hooks=HOOKS),
    source_of("softmax", "bfloat16", 600, 8, 8, 1, 64, 1, 2, 1, again=4, shared=2),
    source_of("softmax", "bfloat16", 1400, 64, 8, 8, 128, 1, 11, 1, again=4, shared=4),
    source_of("softmax", "bfloat16", 320, 12, 8, 3, 64, 2, 2, 1, shared=2, out="float32"),
    source_of("softmax", "float64", 720, 3, 2, 3, 32, 2, 2, 1, again=4, shared=8),
    source_of("softmax", "float64", 700, 96, 2, 32, 128, 2, 12, 1, again=2),
    source_of("softmax", "bfloat16", 1600, 63, 8, 63, 64, 1, 3, 1, again=4, shared=6),
    source_of("softmax_lse", "float32", 512, 7, 4, 7, 64, 1, 2, 1, again=2, shared=4),
    source_of("logsumexp", "float32", 512, 7, 4, 7, 64, 1, 2, 1, again=2, shared=4),
    source_of("log_softmax", "float32", 412, 7, 4, 7, 64, 2, 2, 1, shared=4, pdl=2),
    source_of("softmax_backward", "float32", 512, 7, 4, 7, 64, 1, 2, 1, again=2, shared=4),
    source_of("softmax", "float32", 512, 7, 4, 7, 64, 1, 2, 1, again=2, shared=4, hooks=HOOKS),
)


def test_every_way_to_hold_and_to_exchange_is_right_on_hard_rows() -> None:
    assert objections(SOURCES) == []


BROKEN = (
    (HELD, "  __syncthreads();\n", "", "race on shared memory"),
    (HELD, "there = there && is_there(found[i])", "there = true", "elements are off"),
    (HELD, "*at = {};", ";", "workspace"),
    (AGAIN, "if (thread == 0) readers[tile] = 0;", "", "workspace"),
    (AGAIN, "behind - kStep; at >= col", "behind - kStep; at > col", "written"),
    (ODD, "if (thread < kUsed) ", "", "out of bounds|written twice|race"),
    (ODD, "thread < kUsed && ", "", "past the end|written"),
    (ODD, "  await_launch_before(x, y, workspace);\n", "", "wait"),
    (ODD_AGAIN, "at >= col; at -=", "at > col; at -=", "written"),
    (BACKWARD, "widen_column(raw_y[c]", "widen_column(raw[c]", "elements are off"),
    (SHARED, "copy_async_wait_for_groups<(", "copy_async_wait_for_groups<1 + (", "copy_async"),
    (SHARED, ") copy_async_end_group();", ") ;", "copy_async"),
    (
        SHARED_AGAIN,
        "* kStride;\n    walk(",
        "* kStride + 1;\n    walk(",
        "elements are off|twice|written",
    ),
    (FLAT, "const bool aligned = ", "const bool aligned = true || ", "misaligned|boundary|aligned"),
    (FLAT, "place % kRowsPerBlock * kPitch", "place % kThreadsAcross", "race|elements are off"),
    (FLAT, "(pack * kPackSize + i) % kRowsPerBlock]", "pack]", "elements are off"),
    (FLAT_AGAIN, "load_elements(from + col * kBand", "load_elements(from + col", "are off"),
    (FLAT_BACKWARD, "stage(from_y + ", "stage(from + ", "elements are off"),
    (RELAYED, "post(answer, answers + first + of_row)", ";", "waits|wait|stuck|polls|forever"),
    (RELAYED, "of_blocks[lane + i * 32] = {};", ";", "workspace"),
    (RELAYED, "answers[of_row] = {};", ";", "workspace"),
)


def test_broken_kernels_are_seen() -> None:
    require_seen(BROKEN)


def test_few_parts_are_read_by_all_blocks_and_many_by_one() -> None:
    assert "answers" not in HELD.text
    assert "answers" in RELAYED.text
    launch = RELAYED.variant.launch
    assert launch.workspace_bytes_per_row == HELD.variant.launch.workspace_bytes_per_row + 7 * 8


@pytest.mark.parametrize(
    ("inner", "label", "message"),
    [
        (1024, "spread_p4_w5_b128_c8_k2_n1_m1", "threads_across must be a power of two, or have"),
        (1024, "spread_p4_w8_b128_c5_k2_n1_m1", "cols_per_thread must be from 1 to 4, what 32"),
        (1024, "spread_p4_w8_b128_c1_k2_n1_m1_s8", "cols_per_thread must be from 0 to -4"),
        (1024, "spread_p4_w8_b128_c1_k2_n1_m1_s3", "cols_shared must be a multiple of 4"),
        (1024, "spread_p2_w8_b128_c0_k2_n1_m1_s4", "packs of 16 bytes alone go to shared memory"),
        (1024, "spread_p4_w8_b128_c1_k2_n99_m1", "holds 132 such blocks at once"),
        (1024, "spread_p4_w8_b128_c4_k2_n1_m1_u2", "unroll must be 1, as nothing is loaded again"),
        (1024, "spread_p4_w8_b128_c1_k2_n1_m1_u6", "unroll must be a multiple of 8, or at most 4"),
        (1024, "spread_p4_w64_b1024_c1_k16_n1_m1", "256 threads along an axis of 128"),
        (1024, "spread_p4_w256_b1024_c1_k2_n1_m2", "elements; min_blocks=2 leaves it"),
        (7, "spread_p4_w8_b128_c1_k2_n1_m1_u2", "threads_across must be 7, the packs of a band"),
        (7, "spread_p8_w7_b128_c1_k2_n1_m1", "a pack is at most 16 bytes: 4 elements of float32"),
    ],
)
def test_what_cannot_be_is_refused(inner: int, label: str, message: str) -> None:
    problem = Problem.of("softmax", "float32", 128, layout=Columns(inner))
    with pytest.raises(IllegalVariantError, match=message):
        select(problem, 4 * inner, ARCH, label)


def test_packs_across_the_end_of_inner_make_up_an_outer_index() -> None:
    problem = Problem.of("softmax", "float32", 1001, layout=Columns(7))
    with pytest.raises(IllegalVariantError, match="7007 elements of an outer index are no whole"):
        select(problem, 7, ARCH, "spread_p4_w7_b128_c1_k2_n1_m1_u2")


def test_more_than_an_sm_has_is_refused() -> None:
    problem = Problem.of("softmax", "float32", 1 << 20, layout=Columns(16))
    with pytest.raises(IllegalVariantError, match=r"1 blocks with .* bytes of shared memory each"):
        select(problem, 16, ARCH, "spread_p4_w4_b512_c1_k132_n1_m1_u8_s32")


@pytest.mark.parametrize(
    ("dtype", "cols", "inner", "label"),
    [
        ("float32", 50257, 16, "spread_p4_w4_b512_c3_k132_n1_m1_pdl2"),
        ("float32", 100000, 63, "spread_p4_w63_b512_c12_k132_n1_m1_s12_pdl1"),
        ("bfloat16", 1000000, 12, "spread_p8_w3_b512_c4_k132_n1_m1_s20_pdl1"),
        ("float64", 1000000, 12, "spread_p2_w6_b512_c0_k132_n1_m1_u8_s24_pdl1"),
        ("float32", 131072, 512, "spread_p4_w16_b512_c4_k66_n2_m1_u8_s24_pdl1"),
        ("float32", 100001, 63, "spread_p1_w63_b512_c64_k132_n1_m1_u8_pdl1"),  # no whole packs
    ],
)
def test_long_axes_of_few_rows_are_theirs(dtype: str, cols: int, inner: int, label: str) -> None:
    problem = Problem.of("softmax", dtype, cols, layout=Columns(inner))
    assert best_guess(problem, inner, ARCH).strategy.label == label
    for variant in candidates(problem, inner, ARCH, "spread"):
        assert parse_name(variant.name) == variant


def test_no_pack_goes_to_shared_memory_before_sm_80() -> None:
    problem = Problem.of("softmax", "float32", 1000000, layout=Columns(12))
    found = list(candidates(problem, 12, arch_named("sm_75"), "spread"))
    assert found
    assert not any(variant.strategy.knobs["cols_shared"] for variant in found)


@pytest.mark.parametrize(("dtype", "inner", "pack"), [("float32", 2, 4), ("bfloat16", 4, 8)])
def test_no_pack_is_whole_columns_of_all_rows(dtype: str, inner: int, pack: int) -> None:
    """Lanes of a warp combined their parts, and those within a pack were left apart."""
    problem = Problem.of("softmax", dtype, 13004, layout=Columns(inner))
    with pytest.raises(IllegalVariantError, match=f"a pack of {pack} would have several columns"):
        Spread(pack, 1, 256, 4, 8, 1, 1).check(problem, ARCH)
    found = list(candidates(problem, 64, ARCH, "spread"))
    assert found
    assert objections([render(found[0])]) == []
