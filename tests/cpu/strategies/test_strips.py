"""Strips of columns: parts of more than a pair, and pairs that are given."""

from __future__ import annotations

import pytest

from softgen.devices.gpu.compile import compile_offline
from softgen.problems.arch import arch_named
from softgen.problems.layouts import Columns
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.strips import Strips
from softgen.strategies.variants import Variant, candidates
from tests.helpers.emulator_helpers import ARCH, objections, require_seen


def source_of(function: str, dtype: str, inner: int, *knobs: int, pdl: int = 0) -> Source:
    """Return a kernel: knobs are pack, threads across, block, unroll and blocks of a cluster."""
    problem = Problem.of(function, dtype, 301, layout=Columns(inner))
    variant = Variant(problem, Strips(*knobs, pdl=pdl))
    variant.check(ARCH)
    return render(variant)


ENTROPY = source_of("entropy_lse", "float32", 16, 4, 4, 128, 2, 2)
LANES = source_of("entropy", "float32", 8, 4, 2, 32, 2, 1)
GIVEN = source_of("entropy_backward", "float32", 16, 4, 4, 128, 2, 2, pdl=2)
SOURCES = (
    *(ENTROPY, LANES, GIVEN),
    source_of("entropy", "bfloat16", 1024, 8, 128, 512, 2, 1),
    source_of("entropy", "float64", 16, 2, 4, 128, 2, 16),
    source_of("entropy_lse", "float16", 7, 1, 1, 64, 1, 1),
    source_of("cross_entropy_probs", "bfloat16", 16, 8, 1, 128, 2, 2),
    source_of("cross_entropy_probs", "float64", 6, 1, 4, 128, 2, 8),
    source_of("cross_entropy_probs_backward", "bfloat16", 16, 8, 2, 128, 4, 1),
    source_of("finish", "float16", 24, 8, 1, 64, 2, 1),
    source_of("log_finish", "float64", 7, 1, 4, 64, 2, 4),
    source_of("logsumexp_backward", "bfloat16", 24, 4, 2, 128, 8, 2),
)


def test_every_part_and_every_given_pair_is_right_on_hard_rows() -> None:
    assert objections(SOURCES) == []


BROKEN = (
    (ENTROPY, "rebased = relative_to(max_along(of_lane.m), of_lane)", "rebased = of_lane", "off"),
    (ENTROPY, "whole.s += slot.s", "whole.s += 0", "elements are off"),
    (
        ENTROPY,
        "const MaxSumDot slot = relative_to(m, slots[",
        "const MaxSumDot slot = (slots[",
        "off",
    ),
    (ENTROPY, "m = max(m, slots[i * kApart].m)", "m = m", "off"),
    (LANES, "add_along(rebased.s)", "rebased.s", "off|written"),
    (GIVEN, "lse[row + i]", "lse[row]", "elements are off"),
    (GIVEN, "upstream[row + i]", "upstream[row]", "elements are off"),
    (GIVEN, "  if (live) {\n", "  {\n", "out of bounds|past the end"),
    (GIVEN, "const int rank = blockIdx.x % kClusterSize;", "const int rank = 0;", "written"),
)


def test_broken_kernels_are_seen() -> None:
    require_seen(BROKEN)


def test_what_is_given_is_read_once_and_needs_no_slots() -> None:
    assert "walk(x" not in GIVEN.text
    assert GIVEN.text.count("  walk(from,") == 1
    assert GIVEN.variant.launch.static_shared_bytes == 0
    assert "in one pass" in GIVEN.text
    assert "in two passes" in source_of("softmax", "float32", 16, 4, 4, 128, 2, 2).text


@pytest.mark.parametrize("arch", ["sm_90", "sm_80", "sm_120"])
@pytest.mark.parametrize(
    "function", ["entropy_lse", "cross_entropy_probs", "entropy_backward", "logsumexp_backward"]
)
def test_the_widest_steps_spill_nothing(function: str, arch: str) -> None:
    problem = Problem.of(function, "float64", 5000, layout=Columns(64))
    found = list(candidates(problem, 6400, arch_named(arch), "strips"))
    widest = max(found, key=lambda v: v.strategy.knobs["unroll"] * v.strategy.knobs["pack_size"])
    assert compile_offline(render(widest), arch_named(arch)).local_bytes == 0, widest.name
