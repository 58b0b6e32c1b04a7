"""Packs that cross the end of inner: right wherever it is, legal, and the best guess."""

from __future__ import annotations

import pytest

from softgen.errors import IllegalVariantError
from softgen.problems.layouts import Columns
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.bands import Bands, band_packs
from softgen.strategies.select import select
from softgen.strategies.variants import Variant, best_guess, candidates, parse_name
from tests.helpers.emulator_helpers import ARCH, objections, require_seen

HOOKS = ("scale", "outscale", "zeroempty")


def source_of(
    function: str,
    dtype: str,
    cols: int,
    inner: int,
    *knobs: int,
    out: str | None = None,
    hooks: tuple[str, ...] = (),
    pdl: int = 0,
) -> Source:
    """Return a kernel: knobs are pack, threads, block, packs of a thread, blocks of a cluster."""
    layout = Columns(inner)
    problem = Problem.of(function, dtype, cols, out_dtype=out, hooks=hooks, layout=layout)
    pack, across, block, packs, cluster = knobs
    variant = Variant(problem, Bands(pack, across, block, packs, 1, cluster, pdl=pdl))
    variant.check(ARCH)
    return render(variant)


BLOCK = source_of("softmax", "float32", 60, 7, 4, 28, 32, 4, 1)
CLUSTER = source_of("softmax", "float32", 64, 7, 4, 14, 32, 2, 4)
TAIL = source_of("softmax", "bfloat16", 61, 7, 8, 14, 32, 4, 1)  # 3 elements behind whole packs
ALL_LANES = source_of("softmax", "float32", 64, 32, 4, 32, 32, 8, 2)  # none without packs or a row
ROW_RESULTS = source_of("softmax_lse", "float32", 64, 9, 4, 18, 32, 3, 3)
SOURCES = (
    *(BLOCK, CLUSTER, TAIL, ALL_LANES, ROW_RESULTS),
    source_of("softmax", "float32", 1, 6, 4, 3, 32, 1, 1),
    source_of("softmax", "float32", 20, 2, 4, 1, 32, 10, 1),  # one thread has all packs
    source_of("softmax", "float64", 33, 5, 2, 30, 32, 3, 1),
    source_of("softmax", "bfloat16", 65, 3, 8, 27, 32, 1, 1, out="float32"),
    source_of("softmax", "float16", 48, 7, 8, 21, 32, 1, 2, hooks=HOOKS, pdl=2),
    source_of("softmax_backward", "float32", 64, 7, 4, 14, 32, 2, 4),
    source_of("log_softmax_backward", "bfloat16", 99, 6, 8, 27, 32, 3, 1),
    source_of("logsumexp", "float16", 65, 3, 8, 30, 32, 1, 1),
)


def test_packs_across_the_end_of_inner_are_right_on_hard_rows() -> None:
    assert objections(SOURCES) == []


BROKEN = (
    (BLOCK, "  __syncthreads();\n", "", "race on shared memory"),
    (BLOCK, "outer * kRows < rows", "true", "past the end"),
    (BLOCK, "thread < kThreadsAcross && ", "", "written|past the end"),
    (BLOCK, "% sizeof(Raw) == 0", "% 4 == 0", "misaligned|boundary|aligned"),
    (BLOCK, "* kPackSize % kRows", "* kPackSize % (kRows + 1)", "elements are off"),
    (BLOCK, "slots[(first_row + i) % kRows]", "slots[first_row]", "elements are off"),
    (CLUSTER, "rank * kThreadsAcross + ", "", "written|elements are off"),
    (CLUSTER, "  cluster_wait();", "  ", "barrier"),
    (CLUSTER, "  mbarrier_wait(&barrier);\n", "", "race on shared memory|never"),
    (CLUSTER, "pushed + own", "pushed + shared_row", "elements are off"),
    (CLUSTER, "whole = combine_lanes(whole);", ";", "elements are off"),
    (TAIL, "pack + kLast * kStride == kPacks", "false", "elements are off"),
    (ROW_RESULTS, "rank == 0 && ", "", "written"),
)


def test_broken_kernels_are_seen() -> None:
    require_seen(BROKEN)


def test_a_band_is_whole_packs_whatever_inner() -> None:
    for inner, pack, packs in ((77, 4, 77), (6, 8, 3), (32, 4, 8), (3, 8, 3), (12, 8, 3)):
        found = band_packs(Problem.of("softmax", "bfloat16", 64, layout=Columns(inner)), pack)
        assert found == packs
        assert found * pack % inner == 0


@pytest.mark.parametrize(
    ("dtype", "label", "message"),
    [
        (
            "float32",
            "bands_p4_w300_b320_c17_m1_k16",
            "a multiple of 77, the packs of a band, and at most 320",
        ),
        (
            "float32",
            "bands_p4_w0_b320_c16_m1_k16",
            "a multiple of 77, the packs of a band, and at most 320",
        ),
        (
            "float32",
            "bands_p4_w385_b320_c13_m1_k16",
            "a multiple of 77, the packs of a band, and at most 320",
        ),
        (
            "float32",
            "bands_p4_w308_b320_c15_m1_k16",
            "cols_per_thread must be 16, what 4928 threads hold of",
        ),
        ("float32", "bands_p3_w308_b320_c16_m1_k16", "pack_size must be one of"),
        (
            "float32",
            "bands_p8_w308_b320_c8_m1_k16",
            "a pack is at most 16 bytes: 4 elements of float32",
        ),
        ("float32", "bands_p4_w308_b320_c15_m1_k17", "cluster_size must be from 1 to 16"),
        ("float32", "bands_p4_w308_b320_c256_m1", "a thread would hold 1024 registers of elements"),
        ("float32", "bands_p4_w77_b96_c64_m1_k16", "registers of elements; min_blocks=1 leaves it"),
        ("bfloat16", "bands_p8_w616_b640_c4_m1_k16", "bytes of shared memory, of 49152"),
    ],
)
def test_what_cannot_be_is_refused(dtype: str, label: str, message: str) -> None:
    problem = Problem.of("softmax", dtype, 4096, layout=Columns(77))
    with pytest.raises(IllegalVariantError, match=message):
        select(problem, 616, ARCH, label)


@pytest.mark.parametrize(
    ("dtype", "outer", "cols", "label"),
    [
        ("float32", 400, 1000, "bands_p4_w154_b160_c16_m4_k8_pdl1"),
        ("bfloat16", 100, 512, "bands_p4_w154_b160_c16_m4_k4_pdl2"),
        ("float32", 8, 4096, "columns_p1_w32_b256_c32_m3_k16_pdl2"),  # too long for clusters of 8
    ],
)
def test_an_axis_before_an_odd_inner_is_theirs(
    dtype: str, outer: int, cols: int, label: str
) -> None:
    problem = Problem.of("softmax", dtype, cols, layout=Columns(77))
    assert best_guess(problem, outer * 77, ARCH).strategy.label == label
    for variant in candidates(problem, outer * 77, ARCH, "bands"):
        assert parse_name(variant.name) == variant


def test_where_outer_indices_start_within_a_pack_packs_are_smaller_or_others_are_chosen() -> None:
    def packs(cols: int, rows: int) -> set[int]:
        problem = Problem.of("softmax", "float32", cols, layout=Columns(77))
        found = [variant.strategy for variant in candidates(problem, rows, ARCH, "bands")]
        return {setting.knobs["pack_size"] for setting in found}

    assert packs(1000, 10 * 77) == {2, 4}
    assert packs(1002, 10 * 77) == {2}
    assert packs(1001, 10 * 77) == set()
    assert packs(1001, 77) == {2, 4}  # one outer index starts where memory does
    whole = Problem.of("softmax", "float32", 1000, layout=Columns(16))
    assert list(candidates(whole, 160, ARCH, "bands")) == []
