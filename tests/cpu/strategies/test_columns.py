"""Kernels of the layout Columns: names, what is legal, and what happens to broken ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softgen.devices.emulator import Job, build
from softgen.errors import (
    EmulationError,
    IllegalVariantError,
    InvalidTypeError,
    InvalidValueError,
)
from softgen.problems.layouts import ROWS, Columns, layout_behind, layout_of
from softgen.problems.numerics import check, encode, hook_examples
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies import winners
from softgen.strategies.columns import ColumnsInRegisters
from softgen.strategies.select import select
from softgen.strategies.strips import Strips
from softgen.strategies.tiles import Tiles
from softgen.strategies.variants import Variant, best_guess, candidates, parse_name
from tests.helpers.emulator_helpers import (
    ARCH,
    broken,
    input_of,
    objections,
    require_seen,
    wrong_of,
)


def problem_of(cols: int, inner: int, dtype: str = "float32") -> Problem:
    return Problem.of("softmax", dtype, cols, layout=Columns(inner))


def held(cols: int, inner: int, *knobs: int) -> Variant:
    pack, across, block, per_thread, cluster = knobs
    setting = ColumnsInRegisters(pack, across, block, per_thread, 1, cluster)
    return Variant(problem_of(cols, inner), setting)


ALONE = held(48, 32, 4, 4, 32, 6, 1)
DIRECT = held(30, 48, 2, 16, 64, 8, 1)
TOTALS = held(100, 16, 4, 4, 256, 2, 1)
TOTALS_OF_MORE_ROWS = held(21, 2048, 4, 128, 256, 11, 1)
ACROSS_OUTERS = held(9, 3, 1, 32, 64, 5, 1)
CLUSTER = held(100, 8, 4, 2, 64, 2, 2)
CLUSTER_OF_MORE_ROWS = held(12, 20, 4, 32, 64, 3, 2)
STRIPS = Variant(problem_of(45, 24), Strips(2, 4, 64, 2, 2))
STRIPS_OF_A_WARP = Variant(problem_of(10, 32), Strips(4, 8, 32, 4))
TILES = Variant(problem_of(21, 3), Tiles(4, 6, 4, 4, 64))
TILES_OF_A_THREAD = Variant(problem_of(3, 4), Tiles(4, 3, 1, 9, 64))
TILES_OF_ROUNDS = Variant(problem_of(3, 3), Tiles(4, 3, 1, 64, 96))  # two rows a thread
TILES_TURNED = Variant(problem_of(21, 3), Tiles(4, 21, 1, 8, 64, apart=4))
TILES_TURNED_SHARED = Variant(problem_of(20, 3, "bfloat16"), Tiles(8, 10, 2, 6, 64, apart=3))
PACKED = Variant(problem_of(48, 16, "bfloat16"), ColumnsInRegisters(4, 4, 128, 2, 1, packed=True))
PACKED_ALONE = Variant(
    problem_of(48, 16, "float16"), ColumnsInRegisters(8, 2, 32, 3, 1, packed=True)
)
# The last threads have a column less, in registers (3 of 4) or in shared memory.
SHARED = Variant(problem_of(100, 16), ColumnsInRegisters(4, 4, 64, 4, 1, 2, shared_cols=1))
SHARED_ODD = Variant(problem_of(90, 7), ColumnsInRegisters(1, 4, 64, 6, 1, shared_cols=5))
SHARED_PACKED = Variant(
    problem_of(90, 20, "bfloat16"), ColumnsInRegisters(4, 32, 64, 23, 1, 2, False, True, 12)
)
SHARED_LOG = Variant(
    Problem.of("log_softmax", "float16", 100, layout=Columns(24)),
    ColumnsInRegisters(8, 2, 64, 4, 1, packed=True, shared_cols=2),
)
SHARED_WIDENED = Variant(
    problem_of(90, 20, "bfloat16"), ColumnsInRegisters(4, 32, 64, 23, 1, 2, shared_cols=12)
)
SHARED_F64 = Variant(
    problem_of(90, 7, "float64"), ColumnsInRegisters(1, 4, 64, 6, 1, shared_cols=3)
)
SHARED_LOG_F64 = Variant(
    Problem.of("log_softmax", "float64", 100, layout=Columns(24)),
    ColumnsInRegisters(2, 4, 64, 4, 1, 2, shared_cols=2),
)
SHAREDS = (
    *(SHARED, SHARED_ODD, SHARED_PACKED, SHARED_LOG),
    *(SHARED_WIDENED, SHARED_F64, SHARED_LOG_F64),
)
SOFTMAX_BACKWARD = Problem.of("softmax_backward", "float32", 48, layout=Columns(32))
LOG_SOFTMAX_BACKWARD = Problem.of("log_softmax_backward", "bfloat16", 99, layout=Columns(6))
BACKWARD = Variant(SOFTMAX_BACKWARD, ColumnsInRegisters(4, 4, 64, 2, 1, 2))
BACKWARD_OF_STRIPS = Variant(SOFTMAX_BACKWARD, Strips(2, 4, 64, 2, 2))
BACKWARD_OF_TILES = Variant(LOG_SOFTMAX_BACKWARD, Tiles(8, 25, 4, 4, 96))
# Results whose names are those of what others reduce.
PAIRS = Problem.of("partial", "bfloat16", 48, layout=Columns(16))
PACKED_PAIRS = Variant(PAIRS, ColumnsInRegisters(4, 4, 128, 2, 1, packed=True))
HOOKS = ("scale", "outscale", "zeroempty")


def hooked(variant: Variant) -> Variant:
    problem = variant.problem
    of = (problem.function, problem.dtype, problem.cols)
    return Variant(Problem.of(*of, hooks=HOOKS, layout=problem.layout), variant.strategy)


GRADIENTS = (BACKWARD, BACKWARD_OF_STRIPS, BACKWARD_OF_TILES)
ALL = (
    *GRADIENTS,
    *SHAREDS,
    *map(hooked, (ALONE, CLUSTER, STRIPS, TILES, TILES_OF_A_THREAD)),
    *(
        TILES_OF_ROUNDS,
        TILES_TURNED,
        TILES_TURNED_SHARED,
        PACKED,
        PACKED_ALONE,
        PACKED_PAIRS,
    ),
    *(ALONE, DIRECT, TOTALS, TOTALS_OF_MORE_ROWS, ACROSS_OUTERS),
    *(CLUSTER, CLUSTER_OF_MORE_ROWS, STRIPS, STRIPS_OF_A_WARP, TILES, TILES_OF_A_THREAD),
)


def test_every_way_of_exchange_is_right_on_hard_rows() -> None:
    for variant in ALL:
        variant.check(ARCH)
    assert objections([render(variant) for variant in ALL]) == []


@pytest.mark.parametrize(
    ("variant", "old", "new", "seen"),
    [
        (DIRECT, "  __syncthreads();\n", "", "race on shared memory"),
        (TOTALS, "  __syncthreads();\n", "", "race on shared memory"),
        (
            TOTALS,
            "slots[0] + thread",
            "slots[0] + thread + 1",
            "past the end|race|are off",
        ),
        (CLUSTER, "  cluster_wait();", "  ", "barrier"),
        (CLUSTER, "  mbarrier_wait(&barrier);\n", "", "race on shared memory|never"),
        (CLUSTER, "rank * kThreadsAlong + ", "", "written|elements are off"),
        (ALONE, "(tile) % kTiles", "(tile) % (kTiles + 1)", "elements|written"),
        (STRIPS, "col += kUnroll * kStride", "col += kStride", "twice|are off|written"),
        (STRIPS_OF_A_WARP, "live ? kCols : 0", "kCols", "past the end"),
        (TILES, "  __syncthreads();\n", "", "race on shared memory"),
        (
            TILES,
            "slots[along][row] = part;\n  __syncthreads();",
            "slots[along][row] = part;",
            "race",
        ),
        (TILES, "left < kTile ? left : kTile", "kTile", "past the end"),
        (TILES_OF_A_THREAD, "at + c * kSharing", "at + c", "are off|race|twice"),
        (TILES_TURNED, "nth < kOuters", "outer < kOuters", "race|twice"),
        (BACKWARD, "from_y + c *", "from + c *", "elements are off"),
        (BACKWARD_OF_STRIPS, "from_y + (col", "from + (col", "elements are off"),
        (BACKWARD_OF_TILES, "load_tile(y + start", "load_tile(dy + start", "elements are off"),
        (hooked(CLUSTER), "state.enter<kColsPerThread>", "(void)", "elements are off"),
        (hooked(STRIPS), "state.weigh(", "(", "elements are off"),
        (PACKED, "of_a[i] = __hmax2", "__hmax2", "elements are off"),
        (SHARED, "  copy_async_wait();\n", "", "race on shared memory"),
        (
            SHARED,
            "reinterpret_cast<Raw*>(memory) + thread",
            "reinterpret_cast<Raw*>(memory)",
            "race",
        ),
        (SHARED_ODD, "live && (c < kWholeCols || along + c * kStride < kCols)", "live", "past"),
        (SHARED_PACKED, "larger(largest, held[", "larger(raw[0], held[", "elements are off"),
        (SHARED_F64, "memcpy(&again[c * kBlockSize],", "memcpy(&again[0],", "elements are off"),
        (ALONE, "step = kThreadsAcross", "step = 2 * kThreadsAcross", "elements are off"),
        (ACROSS_OUTERS, "row % kInner", "row % kInner + 1", "past the end"),
        (ACROSS_OUTERS, "along + c * kStride < kCols", "true", "past the end|twice"),
    ],
)
def test_a_broken_kernel_is_seen(variant: Variant, old: str, new: str, seen: str) -> None:
    require_seen([(render(variant), old, new, seen)])


def test_a_row_that_is_not_there_is_neither_read_nor_written() -> None:
    source = render(ACROSS_OUTERS)  # 32 rows a block, and 33 rows
    (result,) = build([source]).run_all([Job(source, input_of(source, 33))])
    assert not isinstance(result, EmulationError), result


def test_a_job_of_half_an_outer_index_is_refused() -> None:
    source = render(ALONE)
    with pytest.raises(InvalidValueError, match="takes multiples of 32 rows, got 48 from 0 on"):
        Job(source, input_of(source, 48))


def test_names_are_read_back() -> None:
    for variant in candidates(problem_of(128, 1024, "bfloat16"), 65536, ARCH):
        assert parse_name(variant.name) == variant
    name = "softmax_f32_128_in1024_align1_safe_b256"
    assert parse_name(name).problem.layout == Columns(1024)
    assert parse_name(name).problem.alignment == 1
    with pytest.raises(InvalidValueError, match="unknown strategy 'colums'"):
        parse_name("softmax_f32_128_in1024_colums_p4_w8_b128_c8_m1")


def test_alignment_follows_from_inner() -> None:
    assert problem_of(1001, 16).alignment == 4
    assert problem_of(1024, 77).alignment == 1
    assert Problem.of("softmax", "float16", 3, layout="in6").alignment == 2


def test_one_order_is_all_that_there_is() -> None:
    problem = Problem.of("softmax", "float32", 100, fixed_order=True, layout=Columns(77))
    assert not problem.fixed_order


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Columns(1), InvalidValueError, "inner must be from 2 to 2.*40, got 1"),
        (lambda: Columns(2.0), InvalidTypeError, "inner must be an int, got 2.0"),  # type: ignore[arg-type]
        (lambda: layout_of("rows"), InvalidValueError, "unknown layout 'rows'; known are ''"),
        (lambda: layout_of(3), InvalidTypeError, "a layout is a Layout or its label, got 3"),  # type: ignore[arg-type]
        (lambda: problem_of(2**30, 2**20), InvalidValueError, "cols x inner must be at most 2"),
    ],
)
def test_what_is_no_layout_is_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_a_layout_is_found_by_its_label_and_by_inner() -> None:
    assert layout_of("") is layout_of(ROWS) is layout_behind(1) is ROWS
    assert layout_of("in77") == layout_behind(77) == Columns(77)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("columns_p4_w8_b128_c7_m1", "cols_per_thread must be 8, what 16 threads hold of 128"),
        ("columns_p8_w8_b128_c8_m1", "packs of 8 where rows start on 4 elements"),
        ("columns_p3_w8_b128_c8_m1", "pack_size must be one of"),
        ("columns_p4_w3_b96_c4_m1", "threads_across must be one of"),
        ("columns_p4_w64_b32_c8_m1", "block_size must be a multiple of threads_across"),
        ("columns_p4_w1_b256_c1_m1", "256 threads along an axis of 128"),
        ("columns_p4_w8_b128_c8_m1_k3", "cluster_size must be one of"),
        ("columns_p4_w256_b1024_c32_m2", "a thread would hold 128 registers of elements"),
        ("columns_p4_w256_b256_c8_m1_k16", "bytes of shared memory, of 49152"),
        ("columns_p4_w8_b128_c8_m1_pk", "only 16-bit elements in packs of two or more"),
        ("columns_p4_w8_b128_c8_m1_s8", "shared_cols must be from 0 to 7: a thread has columns in"),
        ("columns_p4_w8_b64_c16_m16_s15", "15872 bytes of shared memory: an SM of sm_90 holds 13"),
        ("columns_p4_w8_b32_c32_m1_s4", "in shared memory where softmax or log_softmax"),
        ("tiles_p4_c1_t128_o1_b128", "1 x 1024 rows of 128 threads are more than 128"),
        ("tiles_p4_c128_t1_o1_b1024_a2", "apart must be a divisor of 1, the outer indices"),
        ("warp_p4_c4_g32_r1_b128", "warp does not compute softmax"),
    ],
)
def test_what_cannot_be_is_refused(label: str, message: str) -> None:
    with pytest.raises(IllegalVariantError, match=message):
        select(problem_of(128, 1024), 65536, ARCH, label)


@pytest.mark.parametrize(
    ("label", "legal"),
    [
        ("tiles_p4_c3_t1_o64_b96", True),  # 192 rows, two for each thread
        ("tiles_p4_c3_t1_o64_b64", False),  # three for each, at other places along inner
        ("tiles_p4_c3_t1_o48_b96", False),  # one and a half
        ("tiles_p4_c2_t2_o32_b96", False),  # of which two threads share each
    ],
)
def test_a_thread_of_tiles_has_whole_rows_at_one_place_along_inner(label: str, legal: bool) -> None:
    problem = problem_of(3, 3)
    if legal:
        select(problem, 65538, ARCH, label)
        return
    with pytest.raises(IllegalVariantError, match="and not so many times a row a thread"):
        select(problem, 65538, ARCH, label)


# Every hook that asks for a place, alone or with others: in packs and one by one, in the lanes of a
# warp and in a cluster, where a thread has a column less than others, and read twice.
HOOKED = (
    "softmax_f32_97_in24_scaleany_mask_causal_columns_p4_w2_b64_c4_m1",
    "softmax_f32_97_in3_scalerow_biasf32any_sinkf32_columns_p1_w1_b32_c4_m1",
    "softmax_bf16_300_in8_softcap_lengthsi64_sinkbf16_zeroempty_columns_p1_w8_b64_c19_m1_k2",
    "softmax_f64_97_in2_outscalerow_dropout_columns_p1_w2_b32_c7_m1",
    "logsumexp_f16_300_in16_biasf16_lengthsi32_sinkf16_strips_p2_w8_b128_u2",
    "softmax_f32_300_in24_scale_mask_dropout_strips_p4_w2_b64_u4",
    "log_softmax_f64_97_in3_softcap_causal_zeroempty_strips_p1_w1_b32_u1_k2",
    "softmax_f32_to_e4m3_97_in8_scalerow_biasf64any_outscalerow_strips_p2_w4_b64_u2",
)


def test_long_axes_have_columns_in_shared_memory() -> None:
    """So that two blocks and more fit an SM, where one would hold all of its registers."""
    for dtype in ("float32", "bfloat16"):
        found = list(candidates(problem_of(32000, 64, dtype), 2048, ARCH, "columns"))
        assert found[0].strategy.knobs["min_blocks"] == 2
        assert found[0].strategy.knobs["shared_cols"] >= 16
    assert not any(
        variant.strategy.knobs["shared_cols"]
        for variant in candidates(problem_of(4096, 4096), 4096, ARCH, "columns")
    )


def test_threads_that_share_rows_hold_eight_registers_of_elements_or_more() -> None:
    """With fewer the exchange is most of the work; threads that share no row have none."""
    fewest: dict[bool, int] = {}
    for cols in (2, 3, 8):
        for variant in candidates(problem_of(cols, 1024), 65536, ARCH, "columns"):
            setting = variant.strategy
            assert isinstance(setting, ColumnsInRegisters)
            held, shares = setting.element_registers(variant.problem), setting.stride > 1
            fewest[shares] = min(held, fewest.get(shares, held))
    assert fewest[False] < fewest[True] == 8


@pytest.mark.parametrize("size", [(128, 1024), (2048, 128), (8192, 8192), (1000, 197)])
def test_float64_has_columns_in_shared_memory_along_any_axis(size: tuple[int, int]) -> None:
    """Its registers alone hold too few elements to load some while it stores others."""
    found = candidates(problem_of(*size, "float64"), 64 * size[1], ARCH, "columns")
    assert next(found).strategy.knobs["shared_cols"] > 0


def test_hooks_that_ask_for_a_place() -> None:
    """Against float64, with empty rows, NaN and rows that hide their maximum."""
    jobs = []
    for name in HOOKED:
        variant = parse_name(name)
        variant.check(ARCH)
        problem = variant.problem
        rows = problem.layout.step * (12 // problem.layout.step + 1)
        x = np.random.default_rng(problem.cols).standard_normal((rows, problem.cols)) * 4
        x[1, 5], x[3], x[2, ::2] = np.nan, -np.inf, -np.inf
        jobs.append(Job(render(variant), encode(x, problem.dtype), hook_examples(problem, rows)))
    assert wrong_of(jobs) == []
    wrong = broken(
        jobs[0].source,
        "state.enter<1>(values + c, col + c * kStride)",
        "state.enter<1>(values + c, col + c)",
    )
    y = build([wrong]).run_each(wrong, jobs[0].x, others=jobs[0].others)
    assert not check(y, jobs[0].inputs, wrong.variant.problem).ok


@pytest.mark.parametrize("strategy", ["tiles", "spread", "bands"])
def test_what_asks_for_a_place_is_refused(strategy: str) -> None:
    problem = Problem.of("softmax", "float32", 300, hooks=["mask"], layout=Columns(3))
    with pytest.raises(InvalidValueError, match=rf"strategy '{strategy}' has no setting"):
        best_guess(problem, 3000, ARCH, strategy)
    assert best_guess(problem, 3000, ARCH).strategy.name in ("columns", "strips")


def test_elements_with_hooks_do_not_stay_packed() -> None:
    name = "softmax_bf16_8192_in8192_scale_columns_p4_w16_b256_c32_m2_k16_pk"
    with pytest.raises(IllegalVariantError, match="stay packed without hooks alone"):
        parse_name(name).check(ARCH)


def test_a_winner_of_rows_is_none_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = [("softmax_f32_128_in1024_columns_p4_w8_b128_c8_m1", 65536, 1.0)]
    monkeypatch.setattr(winners, "_winners", lambda device: shipped)
    assert winners.winner(Problem.of("softmax", "float32", 128), 65536, ARCH) is None
    found = winners.winner(problem_of(128, 1024), 65536, ARCH)
    assert found is not None
    assert found.name == shipped[0][0]
