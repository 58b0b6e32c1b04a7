"""16-bit elements that stay packed: legal where they can, and right on every regime."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from softgen.errors import IllegalVariantError
from softgen.problems.arch import arch_named
from softgen.problems.dtypes import DType
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.block import Block
from softgen.strategies.cluster import Cluster
from softgen.strategies.sliced import Sliced
from softgen.strategies.variants import Variant, candidates, parse_name
from tests.helpers.emulator_helpers import objections, require_seen, run_rows
from tests.helpers.single import BOTH
from tests.helpers.whole import WHOLE, part

H200, A100, T4 = (arch_named(name) for name in ("sm_90", "sm_80", "sm_75"))
HALVES = (DType.FLOAT16, DType.BFLOAT16)
WIDE = Problem.of("softmax", "bfloat16", 128256)
CLUSTER = Cluster(8, 64, 128, 16, 9, False, packed=True)

# Packs that end with the row, that end in it, and rows that start anywhere; one warp has no column.
WIDTHS = (512, 456, 461)


def setting(kind: type[Sliced], problem: Problem) -> Sliced:
    """Return 16 elements a thread of two warps or blocks, in packs of 8 or 2."""
    pack = 8 if problem.alignment > 1 or problem.fixed_order else 2
    if kind is Block:
        return Block(pack, 16, 64, 64, 1, packed=True)
    return Cluster(pack, 16, 32, 2, 1, False, packed=True)


def test_packed_elements_pass_every_regime() -> None:
    problems = [
        Problem.of(list(BOTH)[(number + turn) % 2], dtype, cols, out_dtype=out)
        for number, cols in enumerate(WIDTHS)
        for turn, (dtype, out) in enumerate(
            (dtype, out) for out in (None, DType.FLOAT32) for dtype in HALVES
        )
    ]
    problems += [dataclasses.replace(p, fixed_order=True) for p in problems if p.alignment == 1]
    kinds: list[type[Sliced]] = [Block, Cluster]  # which take turns, but where rows start anywhere
    variants = [
        Variant(problem, setting(kind, problem))
        for number, problem in enumerate(problems)
        for kind in (kinds if problem.alignment == 1 else part(kinds, 2, number // 2 % 2))
    ]
    for variant in variants:
        variant.check(H200)
    assert objections([render(variant) for variant in variants]) == []
    assert len(variants) == (32 if WHOLE else 24)


@pytest.mark.parametrize(
    ("correct", "wrong"),
    [
        ("m = __hmax2(m, pair)", "m = pair"),
        ("max(__bfloat162float(m.x), __bfloat162float(m.y))", "__bfloat162float(m.x)"),
        ("sum += sum_in_place(values, base_of(m))", "sum = sum_in_place(values, base_of(m))"),
        ("static_cast<unsigned int>(rows >> 48)", "static_cast<unsigned int>(rows >> 1)"),
        ("store_slice(raw, whole.m,", "store_slice(raw, part.m,"),
    ],
)
@pytest.mark.parametrize("kind", [Block, Cluster])
def test_a_wrong_step_is_told(kind: type[Sliced], correct: str, wrong: str) -> None:
    problem = Problem.of("softmax", "bfloat16", 512)
    source = render(Variant(problem, setting(kind, problem)))
    require_seen([(source, correct, wrong, ".")])


@pytest.mark.parametrize(
    ("correct", "wrong"),
    [
        ("{far ? 1 : kLog2E,", "{kLog2E,"),
        ("far ? -m : -(m * kLog2E)", "-(m * kLog2E)"),
        ("!(fabsf(m) < kFar)", "true"),
        ("store_slice(raw, whole.m,", "store_slice(raw, 0,"),
    ],
    ids=["far scale", "far offset", "all far", "no offset"],
)
def test_what_one_fma_needs(correct: str, wrong: str) -> None:
    problem = Problem.of("softmax", "bfloat16", 461, fixed_order=True)
    source = render(Variant(problem, setting(Cluster, problem)))
    require_seen([(source, correct, wrong, ".")])


def test_packed_and_widened_elements_agree_to_a_step() -> None:
    names = [f"softmax_f16_512_block_p8_c16_g64_b64_m1{packed}" for packed in ("", "_pk")]
    one, other = (run_rows(render(parse_name(name)), 5) for name in names)
    # Results that were rescaled from a warp's maximum may be rounded the other way.
    difference = np.abs(one.view(np.int16).astype(int) - other.view(np.int16).astype(int))
    assert difference.max() <= 1
    assert (difference == 0).mean() > 0.99


@pytest.mark.parametrize(
    ("strategy", "problem", "message"),
    [
        (
            Block(4, 32, 32 * 4, 128, 1, packed=True),
            Problem.of("softmax", "float32", 4096),
            "only 16-bit elements in packs of two or more, computed in float32, can stay packed, "
            "not packs of 4 float32 in float32",
        ),
        (
            Block(1, 32, 128, 128, 1, packed=True),
            Problem.of("softmax", "float16", 4096),
            "not packs of 1 float16 in float32",
        ),
        (
            Cluster(8, 32, 128, 2, 1, False, packed=True),
            Problem.of("softmax", "float16", 8192, out_dtype="float64"),
            "not packs of 8 float16 in float64",
        ),
    ],
)
def test_what_cannot_stay_packed(strategy: Sliced, problem: Problem, message: str) -> None:
    with pytest.raises(IllegalVariantError, match=re.escape(message)):
        strategy.check(problem, H200)


def test_turing_has_no_instruction_for_it() -> None:
    problem = Problem.of("softmax", "bfloat16", 4096)
    variant = Variant(problem, Block(8, 32, 128, 128, 1, packed=True))
    variant.check(A100)
    with pytest.raises(IllegalVariantError, match="needs sm_80, sm_75 has none"):
        variant.check(T4)
    assert "# any architecture from sm_80 on" in render(variant).text
    assert not any(v.strategy.knobs.get("packed") for v in candidates(problem, 4096, T4))


def test_packing_leaves_room_for_more_blocks() -> None:
    CLUSTER.check(WIDE, H200)
    with pytest.raises(IllegalVariantError, match="hold 64 registers of elements"):
        Cluster(8, 64, 128, 16, 9, False).check(WIDE, H200)


def test_most_blocks_of_packed_elements_are_timed_and_two_fewer() -> None:
    """At bfloat16 4096 x 128256 7 took 495.2 us, 9 took 498.7 and 6 took 507.9."""
    blocks: dict[bool, set[int]] = {True: set(), False: set()}
    for variant in candidates(WIDE, 4096, H200, "cluster"):
        setting = variant.strategy
        assert isinstance(setting, Cluster)
        if (setting.block_size, setting.cluster_size) == (128, 16):
            blocks[setting.packed].add(setting.min_blocks)
    assert blocks == {True: {7, 9}, False: {1, 6}}


def test_the_name_says_it() -> None:
    variant = Variant(WIDE, CLUSTER)
    assert variant.name == "softmax_bf16_128256_cluster_p8_c64_b128_k16_m9_pk"
    assert parse_name(variant.name) == variant
    chosen = next(candidates(WIDE, 64, H200))
    assert chosen.name == f"{variant.name}_pdl2"


def test_only_16_bit_results_are_timed_packed() -> None:
    wider = Problem.of("softmax", "bfloat16", 4096, out_dtype="float32")
    narrow = Problem.of("softmax", "bfloat16", 4096)
    assert not any(v.strategy.knobs.get("packed") for v in candidates(wider, 4096, H200))
    assert any(v.strategy.knobs.get("packed") for v in candidates(narrow, 4096, H200, "block"))
