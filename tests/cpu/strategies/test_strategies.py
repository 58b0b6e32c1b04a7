"""Each strategy's rules, candidates and launch shapes, and how strategies are found."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softgen.errors import IllegalVariantError, InvalidValueError
from softgen.problems.arch import KNOWN, MAX_GRID, Arch, arch_named
from softgen.problems.dtypes import DType
from softgen.problems.layouts import Columns
from softgen.problems.problem import Problem
from softgen.source.render import strategy_template
from softgen.strategies.base import TRIGGERS, TRIGGERS_FIRST, WAITS, Strategy
from softgen.strategies.cluster import Cluster
from softgen.strategies.launch import Launch
from softgen.strategies.online import Online
from softgen.strategies.registry import all_strategies, strategy_named
from softgen.strategies.safe import Safe
from softgen.strategies.shared import PLAIN, Shared
from softgen.strategies.split import Split
from softgen.strategies.variants import candidates, parse_name
from softgen.strategies.warp import Warp
from tests.helpers.cli_helpers import copy_package
from tests.helpers.drawn import archs, problems, row_counts
from tests.helpers.single import BOTH

ROOT = Path(__file__).parents[3]
H200 = arch_named("sm_90")
THOUSAND = Problem.of("softmax", "float32", 1000)
KIBI = Problem.of("softmax", "float32", 1024)
ANYWHERE = Problem.of("softmax", "float32", 1024, alignment=1)
HALVES = Problem.of("softmax", "float16", 4096)
HALVES_TO_FLOAT = Problem.of("softmax", "float16", 4096, out_dtype="float32")
HALVES_TO_DOUBLE = Problem.of("softmax", "float16", 4096, out_dtype="float64")
DOUBLES = Problem.of("softmax", "float64", 512)
CHOSEN = Problem.of("topk_softmax_k8", "float32", 10240)
NAMES = [kind.name for kind in all_strategies()]

WARP = Warp(4, 32, 32, 1, False, 128)  # legal for 1024 columns of float32

BROKEN: list[tuple[Strategy, Problem, str]] = [
    (replace(WARP, pack_size=3), KIBI, "pack_size must be one of (1, 2, 4, 8, 16)"),
    (replace(WARP, pack_size=0), KIBI, "pack_size must be one of (1, 2, 4, 8, 16)"),
    (replace(WARP, pack_size=8), KIBI, "a pack is at most 16 bytes: 4 elements of float32"),
    (WARP, ANYWHERE, "the group must cover 1027 columns, it covers 1024"),
    (replace(WARP, thread_group_width=33), KIBI, "thread_group_width must be a power of two up to"),
    (replace(WARP, thread_group_width=0), KIBI, "thread_group_width must be a power of two up to"),
    (replace(WARP, rows_per_access=3), KIBI, "rows_per_access must be 1, 2 or 4"),
    (replace(WARP, cols_per_thread=30), KIBI, "must be a positive multiple of pack_size"),
    (replace(WARP, cols_per_thread=0), KIBI, "must be a positive multiple of pack_size"),
    (replace(WARP, cols_per_thread=-4), KIBI, "must be a positive multiple of pack_size"),
    (replace(WARP, padding=True), KIBI, "padding needs a group wider than 1024 columns"),
    (WARP, THOUSAND, "without padding a group must cover just 1000 columns, not 1024"),
    (replace(WARP, cols_per_thread=36), KIBI, "must cover just 1024 columns, not 1152"),
    (replace(WARP, cols_per_thread=28), KIBI, "the group must cover 1024 columns, it covers 896"),
    (replace(WARP, block_size=48), KIBI, "block_size must be a multiple of 32 from 32 to 1024"),
    (replace(WARP, block_size=0), KIBI, "block_size must be a multiple of 32 from 32 to 1024"),
    (replace(WARP, block_size=1056), KIBI, "block_size must be a multiple of 32 from 32 to 1024"),
    (Warp(4, 256, 4, 1, False, 128), KIBI, "hold 256 registers of elements; at most 160 do not"),
    (Warp(4, 64, 16, 4, False, 128), KIBI, "hold 256 registers of elements; at most 160 do not"),
    (Warp(4, 64, 16, 1, False, 1024), KIBI, "hold 64 registers of elements; at most 32 do not"),
    (Warp(2, 128, 4, 1, False, 128), DOUBLES, "hold 256 registers of elements; at most 160"),
    (Online(5, 1, 128), KIBI, "pack_size must be one of (1, 2, 4, 8, 16)"),
    (Online(16, 1, 128), HALVES, "a pack is at most 16 bytes: 8 elements of float16"),
    (Online(4, 1, 128), DOUBLES, "a pack is at most 16 bytes: 2 elements of float64"),
    (Online(4, 9, 128), KIBI, "unroll must be from 1 to 8"),
    (Online(4, 0, 128), KIBI, "unroll must be from 1 to 8"),
    (Online(4, 1, 100), KIBI, "block_size must be a multiple of 32 from 32 to 1024"),
    (Online(4, 1, 2048), KIBI, "block_size must be a multiple of 32 from 32 to 1024"),
    (Online(8, 4, 1024), HALVES_TO_FLOAT, "hold 32 registers of elements; at most 24 do not spill"),
    (Online(2, 4, 1024), DOUBLES, "hold 16 registers of elements; at most 8 do not spill"),
    (Online(8, 4, 128), HALVES_TO_DOUBLE, "hold 64 registers of elements; at most 32 do not spill"),
    (Safe(0), KIBI, "block_size must be a multiple of 32 from 32 to 1024"),
    (Safe(-32), KIBI, "block_size must be a multiple of 32 from 32 to 1024"),
    (Safe(33), KIBI, "block_size must be a multiple of 32 from 32 to 1024"),
    (Safe(1056), KIBI, "block_size must be a multiple of 32 from 32 to 1024"),
    (Shared(8, 1024, PLAIN, 1, 0), HALVES_TO_DOUBLE, "leaves room for 512 threads"),
    (
        Split(8, 64, 128, 1, True),
        HALVES_TO_DOUBLE,
        "hold 128 registers of float64; at most 64 do not spill on sm_90",
    ),
    (
        Cluster(4, 44, 128, 2, 1, False),
        CHOSEN,
        "a thread holds at most 40 elements that a block chooses from, not 44",
    ),
]


@pytest.mark.parametrize(("strategy", "problem", "message"), BROKEN, ids=lambda value: repr(value))
def test_a_broken_rule_names_what_is_accepted(
    strategy: Strategy, problem: Problem, message: str
) -> None:
    with pytest.raises(IllegalVariantError, match=re.escape(message)) as caught:
        strategy.check(problem, H200)
    assert str(caught.value).startswith(f"{strategy.label}: ")
    assert isinstance(caught.value, ValueError)
    assert not strategy.is_legal(problem, H200)


@pytest.mark.parametrize(
    ("strategy", "problem"),
    [
        (WARP, KIBI),
        (replace(WARP, padding=True), THOUSAND),
        (Warp(1, 32, 32, 1, False, 128), ANYWHERE),
        (Warp(4, 160, 32, 1, False, 128), Problem.of("softmax", "float32", 5120)),
        (Warp(4, 32, 32, 1, False, 1024), KIBI),
        (Warp(8, 128, 32, 1, False, 32), HALVES),
        (Warp(2, 64, 8, 1, False, 256), DOUBLES),
        (Warp(4, 4, 1, 4, False, 128), Problem.of("softmax", "float32", 4)),
        (Online(4, 4, 1024), KIBI),
        (Online(8, 2, 1024), HALVES_TO_FLOAT),
        (Online(8, 2, 256), HALVES_TO_DOUBLE),
        (Online(8, 4, 1024), HALVES),
        (Online(2, 4, 512), DOUBLES),
        (Online(2, 2, 1024), DOUBLES),
        (Online(4, 4, 1024), ANYWHERE),
        (Safe(32), KIBI),
        (Safe(1024), ANYWHERE),
        (Shared(8, 512, PLAIN, 1, 0), HALVES_TO_DOUBLE),
        (Shared(2, 1024, PLAIN, 1, 0), DOUBLES),
        (Split(8, 32, 128, 1, True), HALVES_TO_DOUBLE),
        (Cluster(4, 40, 128, 2, 1, False), CHOSEN),
        (
            Cluster(8, 64, 128, 2, 1, False, packed=True),
            Problem.of("topk_softmax_k8", "bfloat16", 16384),
        ),
    ],
    ids=repr,
)
def test_the_last_setting_before_a_rule_is_legal(strategy: Strategy, problem: Problem) -> None:
    strategy.check(problem, H200)
    assert strategy.is_legal(problem, H200)


def test_fewer_registers_make_fewer_settings_legal() -> None:
    small = replace(H200, registers_per_multiprocessor=32768)
    assert Online(8, 4, 1024).is_legal(HALVES, H200)
    assert not Online(8, 4, 1024).is_legal(HALVES, small)
    assert not Warp(4, 32, 32, 1, False, 1024).is_legal(KIBI, small)


@pytest.mark.parametrize(
    ("arch", "name", "legal"),
    [
        # Spilled 8 to 344 bytes with one more block an SM, or in blocks twice as large.
        ("sm_90", "softmax_bf16_to_f32_50257_cluster_p8_c56_b128_k8_m5", True),
        ("sm_90", "softmax_bf16_to_f32_50257_cluster_p8_c56_b128_k8_m6", False),
        ("sm_90", "softmax_bf16_to_f32_151937_cluster_p8_c80_b128_k16_m4", True),
        ("sm_90", "softmax_bf16_to_f32_151937_cluster_p8_c80_b128_k16_m5", False),
        ("sm_90", "softmax_bf16_20001_cluster_p8_c80_b128_k2_m4", True),
        ("sm_90", "softmax_bf16_20001_cluster_p8_c80_b128_k2_m5", False),
        ("sm_90", "softmax_f32_20001_cluster_p4_c40_b128_k4_m6", True),
        ("sm_90", "softmax_f32_20001_cluster_p4_c40_b128_k4_m7", False),
        ("sm_90", "softmax_bf16_50257_cluster_p8_c56_b128_k8_m7", True),
        ("sm_120", "softmax_bf16_50257_cluster_p8_c56_b128_k8_m6", True),
        ("sm_120", "softmax_bf16_50257_cluster_p8_c56_b128_k8_m7", False),
        ("sm_90", "softmax_f32_to_f64_2097152_split_p4_c32_b128_m1_rev", True),
        ("sm_120", "softmax_f32_to_f64_2097152_split_p4_c16_b128_m1_rev", True),
        ("sm_120", "softmax_f32_to_f64_2097152_split_p4_c32_b128_m1_rev", False),
        ("sm_90", "softmax_f16_to_f64_16777216_cooperative_p8_c8_b512_k132_n1_s28_f1_l2", True),
        ("sm_90", "softmax_f16_to_f64_16777216_cooperative_p8_c8_b640_k132_n1_s28_f1_l2", False),
        ("sm_90", "softmax_f64_1000001_online_p2_u2_b1024", True),
        ("sm_120", "softmax_f64_1000001_online_p1_u1_b1024", True),
        ("sm_120", "softmax_f64_1000001_online_p2_u1_b1024", False),
        # Won on an H200, with as many registers as they have to have.
        ("sm_90", "softmax_bf16_151937_cluster_p8_c80_b128_k16_m7_ef_pk", True),
        ("sm_90", "softmax_bf16_128256_cluster_p8_c64_b128_k16_m9_pk", True),
        ("sm_90", "softmax_bf16_32000_cluster_p8_c64_b128_k4_m6", True),
    ],
)
def test_settings_are_legal_up_to_where_they_spill(arch: str, name: str, legal: bool) -> None:
    variant = parse_name(name)
    assert variant.strategy.is_legal(variant.problem, KNOWN[arch]) is legal


@settings(deadline=None, max_examples=150)
@given(problems, row_counts, archs)
def test_candidates_are_legal_and_unique_and_never_missing(
    problem: Problem, rows: int, arch: Arch
) -> None:
    found = list(candidates(problem, rows, arch))
    assert found
    assert len(set(found)) == len(found)
    for variant in found:
        variant.check(arch)
        assert variant.problem is problem
    assert {"online", "safe"} <= {variant.strategy.name for variant in found}


@settings(deadline=None, max_examples=150)
@given(problems, row_counts, archs)
def test_a_warp_covers_the_row(problem: Problem, rows: int, arch: Arch) -> None:
    for setting in Warp.candidates(problem, rows, arch):
        assert isinstance(setting, Warp)
        covered = setting.cols_per_thread * setting.thread_group_width
        spare = covered - problem.cols - setting.overhang(problem)
        # Less than one pack a lane is wasted, and nothing at all without padding.
        assert 0 <= spare < setting.pack_size * setting.thread_group_width
        assert setting.padding == (covered > problem.cols)
        words = problem.compute_dtype.itemsize // 4
        held = setting.cols_per_thread * setting.rows_per_access * words
        assert setting.all_registers(problem) == held <= 64


@pytest.mark.parametrize("name", ["online", "safe"])
@pytest.mark.parametrize("cols", [1, 31, 2**31 - 1, 2**31 + 1, 3_000_000_000, 2**40])
def test_some_strategies_take_any_width(name: str, cols: int) -> None:
    for dtype in DType:
        for arch in KNOWN.values():
            problem = Problem.of("softmax", dtype, cols, alignment=1)
            assert next(candidates(problem, 1, arch, name)).strategy.name == name


@pytest.mark.parametrize(
    ("dtype", "cols", "strategy", "first"),
    [
        ("float32", 1000, "warp", Warp(4, 32, 32, 1, True, 128)),
        ("float32", 1024, "warp", Warp(4, 32, 32, 1, False, 128)),
        ("float16", 1024, "warp", Warp(8, 32, 32, 1, False, 128)),
        ("float32", 2048, "online", Online(4, 4, 128)),
        ("float32", 131072, "online", Online(4, 4, 1024)),
        ("bfloat16", 32000, "online", Online(8, 2, 1024)),
        ("float32", 4096, "safe", Safe(256)),
        ("float32", 4097, "safe", Safe(1024)),
    ],
)
def test_first_choices_that_were_measured(
    dtype: str, cols: int, strategy: str, first: Strategy
) -> None:
    problem = Problem.of("softmax", dtype, cols)
    chosen = next(candidates(problem, 4096, H200, strategy)).strategy
    assert replace(chosen, pdl=0) == first


@pytest.mark.parametrize(
    ("strategy", "rows", "pdl"),
    [
        *(("block", 128, TRIGGERS_FIRST), ("block", 256, TRIGGERS_FIRST), ("block", 257, TRIGGERS)),
        *(("block", 4096, TRIGGERS), ("block", 4097, WAITS), ("online", 128, WAITS)),
    ],
)
def test_short_candidates_let_the_next_launch_go(strategy: str, rows: int, pdl: int) -> None:
    """A row is read and written in 8 KB: up to 2 MB at once, up to 32 MB before the stores."""
    problem = Problem.of("softmax", "float32", 1024)
    found = list(candidates(problem, rows, H200, strategy))
    assert {variant.strategy.pdl for variant in found} == {pdl}
    assert {v.strategy.pdl for v in candidates(problem, rows, arch_named("sm_80"), strategy)} == {0}


@pytest.mark.parametrize("kind", [Warp, Online])
@settings(deadline=None, max_examples=60)
@given(problem=problems, rows=row_counts, arch=archs)
def test_the_best_guess_comes_first(
    kind: type[Warp] | type[Online], problem: Problem, rows: int, arch: Arch
) -> None:
    scores = [
        setting.rank(problem, rows, arch)
        for setting in kind.candidates(problem, rows, arch)
        if isinstance(setting, Warp | Online)
    ]
    assert scores == sorted(scores)


@pytest.mark.parametrize("rows", [8, 4096])
@pytest.mark.parametrize(
    ("strategy", "problem"),
    [
        ("block", KIBI),
        ("cluster", Problem.of("softmax", "bfloat16", 32000)),
        ("cluster", Problem.of("softmax", "bfloat16", 32000, layout="sharded")),
        ("columns", Problem.of("softmax", "float32", 1000, layout=Columns(64))),
        ("columns", Problem.of("softmax", "float64", 1000, layout=Columns(64))),
        ("bands", Problem.of("softmax", "float32", 1000, layout=Columns(77))),
    ],
)
def test_a_setting_with_more_blocks_on_an_sm_comes_before_one_with_fewer(
    strategy: str, problem: Problem, rows: int
) -> None:
    blocks: dict[Strategy, int] = {}
    several = 0
    for variant in candidates(problem, rows, H200, strategy):
        setting: Any = variant.strategy
        alike = replace(setting, min_blocks=1)
        several += alike in blocks
        assert setting.min_blocks < blocks.get(alike, 2**31), variant.name
        blocks[alike] = setting.min_blocks
    assert several


@settings(deadline=None, max_examples=100)
@given(problems, st.integers(1, 2**40), archs)
def test_grids_reach_every_row_within_cudas_limits(problem: Problem, rows: int, arch: Arch) -> None:
    for variant in candidates(problem, rows, arch):
        launch = variant.launch
        grid = launch.grid(rows)
        assert 1 <= grid <= MAX_GRID == 2**31 - 1
        per_step = launch.cluster_size * launch.blocks_per_row
        steps, rest = divmod(grid, per_step)
        assert rest == 0
        assert steps * launch.rows_per_block >= rows or steps == launch.most_blocks // per_step
        assert (steps - 1) * launch.rows_per_block < rows
        assert launch.block_size == variant.strategy.knobs["block_size"]
        assert 32 <= launch.block_size <= 1024
        assert launch.shared_bytes <= arch.shared_per_block
        assert launch.static_shared_bytes <= 48 * 1024  # what a block gets without opting in


def test_launch_shapes() -> None:
    warp = Warp(2, 2, 4, 4, False, 128).launch(Problem.of("softmax", "float32", 8))
    assert (warp.block_size, warp.rows_per_block, warp.shared_bytes) == (128, 128, 0)
    assert [warp.grid(rows) for rows in (0, 1, 128, 129, 2**37)] == [1, 1, 1, 2, 2**30]
    online = Online(2, 1, 256).launch(DOUBLES)
    assert (online.block_size, online.rows_per_block, online.shared_bytes) == (256, 1, 128)
    safe = Safe(1024).launch(KIBI)
    assert (safe.block_size, safe.rows_per_block, safe.shared_bytes) == (1024, 1, 128)
    assert safe.grid(2**31) == 2**31 - 1


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (Launch(128, 1, 0), "rows blocks, or fewer: blocks stride over the rows"),
        (Launch(128, 4, 0, strides=False), "ceil(rows / 4) blocks"),
        (Launch(128, 1, 0, cluster_size=4, strides=False), "rows * 4 blocks"),
        (
            Launch(128, 4, 0, most_blocks=264),
            "ceil(rows / 4) blocks, at most 264: blocks stride over the rows",
        ),
        (
            Launch(128, 1, 0, cluster_size=2, most_blocks=264),
            "rows * 2 blocks, at most 264, a multiple of 2: blocks stride over the rows",
        ),
        (
            Launch(128, 1, 0, blocks_per_row=16, most_blocks=128, cooperative=True),
            "a multiple of 16 blocks, at most rows * 16, all resident",
        ),
    ],
)
def test_a_grid_in_words(launch: Launch, words: str) -> None:
    assert launch.grid_rule == words


@pytest.mark.parametrize("name", NAMES)
def test_what_every_strategy_must_have(name: str) -> None:
    kind = strategy_named(name)
    assert re.fullmatch("[a-z]+", name), "variants.parse_name splits names at the underscores"
    assert (ROOT / "templates" / strategy_template(name)).is_file()
    assert kind.summary
    fields = dataclasses.fields(kind)
    shorts = [field.metadata["short"] for field in fields]
    assert len(set(shorts)) == len(shorts)
    assert all(re.fullmatch("[a-z]+", short) for short in shorts)
    assert all(len(field.metadata["meaning"]) > 10 for field in fields)


def test_knobs_are_the_fields_in_order() -> None:
    assert list(WARP.knobs.items()) == [
        ("pack_size", 4),
        ("cols_per_thread", 32),
        ("thread_group_width", 32),
        ("rows_per_access", 1),
        ("padding", False),
        ("block_size", 128),
        ("evict_first", False),
        ("packed", False),
        ("pdl", 0),
    ]


def test_an_unknown_strategy_lists_the_known_ones() -> None:
    with pytest.raises(
        InvalidValueError,
        match="unknown strategy 'wrap'; .*: " + ", ".join(k.name for k in all_strategies()),
    ):
        strategy_named("wrap")


TWICE = '''
"""A strategy that a newcomer added."""

from collections.abc import Iterator
from dataclasses import dataclass

from softgen.problems.arch import Arch
from softgen.problems.problem import Problem
from softgen.strategies.base import Strategy, knob
from softgen.strategies.launch import Launch


@dataclass(frozen=True)
class Twice(Strategy):
    """Safe, under another name."""

    name = "twice"
    summary = "twice as safe"

    block_size: int = knob("b", "threads in a block")
    careful: bool = knob("care", "whether to take care")

    def check(self, problem: Problem, arch: Arch) -> None:
        self.require_block(self.block_size)

    def launch(self, problem: Problem) -> Launch:
        return Launch(self.block_size, 1, self.block_size // 8)

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        yield cls(64, True)
        yield cls(96, False)

    @classmethod
    def estimate(cls, problem: Problem, rows: int, arch: Arch) -> float:
        return 0.5
'''

USE_TWICE = """
import softgen
from softgen.problems.arch import arch_named
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.variants import best_guess, candidates, parse_name

problem = Problem.of("softmax", "float32", 1000)
first = best_guess(problem, 1, arch_named("sm_75"))
assert first.name == "softmax_f32_1000_twice_b64_care", first.name
assert parse_name(first.name) == first
print(*(v.name for v in candidates(problem, 1, arch_named("sm_90"), "twice")))
print(softgen.generate("softmax", "float32", 1000, variant="twice").text)
"""


def run_in(folder: Path, *arguments: str) -> str:
    command = [sys.executable, *arguments]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_new_strategy_is_one_file_and_one_template(tmp_path: Path) -> None:
    copy_package(tmp_path)
    (tmp_path / "softgen" / "strategies" / "twice.py").write_text(TWICE)
    templates = tmp_path / "templates" / "strategies"
    shutil.copy(templates / "safe.cu.j2", templates / "twice.cu.j2")
    names, _, text = run_in(tmp_path, "-c", USE_TWICE).partition("\n")
    of_twice = "softmax_f32_1000_twice_b64_care_pdl1 softmax_f32_1000_twice_b96_pdl1"
    assert names.split() == of_twice.split()
    assert "// Strategy twice: twice as safe." in text
    assert "constexpr bool kCareful = true;" in text
    listed = run_in(tmp_path, "-m", "softgen", "list", "--cols", "1000", "--json")
    assert '"softmax_f32_1000_twice_b96_pdl' in listed


def test_algorithms_share_candidates() -> None:
    for dtype in DType:
        settings_of = [
            [v.strategy for v in candidates(Problem.of(algorithm, dtype, 1000), 64, H200)]
            for algorithm in BOTH
        ]
        assert settings_of[0] == settings_of[1]
