"""Columns in a ring of resident blocks: tiles with gaps and without, the exchange, bulk copies."""

from __future__ import annotations

import pytest

from softgen.devices.gpu.compile import compile_offline
from softgen.errors import IllegalVariantError
from softgen.problems.arch import arch_named
from softgen.problems.layouts import Columns
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.ring import Ring
from softgen.strategies.select import select
from softgen.strategies.variants import Variant, best_guess, candidates, parse_name
from softgen.verify.emulated import on_emulator
from softgen.verify.inputs import rows_of
from tests.helpers.emulator_helpers import ARCH, objections, require_seen

HOOKS = ("scale", "outscale", "zeroempty")


def source_of(
    function: str,
    dtype: str,
    cols: int,
    inner: int,
    *knobs: int,
    hooks: tuple[str, ...] = (),
    out: str | None = None,
    pdl: int = 0,
) -> Source:
    """Return a kernel: knobs are threads across, block, columns, blocks, groups, stages, flying."""
    problem = Problem.of(function, dtype, cols, out_dtype=out, hooks=hooks, layout=Columns(inner))
    variant = Variant(problem, Ring(problem.dtype.max_pack, *knobs, pdl=pdl))
    variant.check(ARCH)
    return render(variant)


# Tiles: strips of inner, all of inner, packs across its end. Groups: few blocks, and more than read
# each other. Rings with room for the next tiles, and for one slice alone.
STRIPS = source_of("softmax", "float32", 500, 64, 8, 128, 2, 3, 2, 40, 3)
TIGHT = source_of("softmax", "float32", 500, 64, 8, 128, 2, 3, 2, 14, 3)
WHOLE = source_of("softmax_lse", "bfloat16", 700, 40, 5, 128, 2, 3, 2, 30, 2, pdl=1)
FLAT = source_of("softmax", "float32", 312, 7, 7, 96, 2, 2, 2, 12, 2)
RELAYED = source_of("softmax", "float32", 700, 16, 2, 96, 2, 18, 2, 8, 2)
BACKWARD = source_of("log_softmax_backward", "bfloat16", 500, 64, 4, 160, 2, 3, 4, 24, 3)
ALONE = source_of("softmax_lse", "float32", 64, 64, 8, 96, 2, 1, 4, 18, 2)
SOURCES = (
    *(STRIPS, TIGHT, WHOLE, FLAT, RELAYED, BACKWARD, ALONE),
    # A row for every lane of the exchanger, and more.
    source_of("softmax", "float32", 200, 77, 77, 256, 1, 3, 2, 20, 2),
    source_of("softmax", "bfloat16", 200, 77, 77, 256, 2, 17, 2, 6, 2),
    source_of("log_softmax", "float64", 900, 6, 3, 128, 3, 2, 3, 20, 2),
    source_of("softmax_backward", "bfloat16", 400, 7, 7, 160, 2, 2, 2, 24, 3),
    source_of("log_softmax", "float16", 1000, 24, 3, 128, 2, 2, 2, 17, 2, out="float8_e4m3fn"),
    source_of("softmax", "bfloat16", 1000, 40, 5, 128, 2, 3, 2, 30, 2, out="float32"),
    source_of("softmax", "float32", 1000, 40, 10, 128, 2, 3, 2, 40, 2, hooks=HOOKS),
    source_of("softmax", "bfloat16", 312, 12, 3, 96, 2, 2, 2, 30, 2, hooks=HOOKS),
    source_of("softmax_lse", "float64", 100, 32, 16, 128, 1, 2, 2, 50, 1),
    source_of("softmax", "float32", 5, 64, 16, 128, 2, 2, 2, 6, 2),  # less than a chunk of a slice
)


def test_every_tile_and_every_exchange_is_right_on_hard_rows() -> None:
    assert objections(SOURCES) == []


BROKEN = (
    # What the copies and their barriers are about.
    (TIGHT, "    fence_async();\n", "", "fence"),
    (STRIPS, "kLineBytes, &shared.full", "kLineBytes - 16, &shared.full", "expects|waits|wait"),
    (WHOLE, "bytes = packs * static_cast", "bytes = 16 + packs * static_cast", "waits|wait|expect"),
    (WHOLE, "to, from, packs * static", "to, from, 16 + packs * static", "expects|past the end"),
    (
        TIGHT,
        "if (n >= kStages) mbarrier_wait",
        "if (n > kStages) mbarrier_wait",
        "of the phase are there",
    ),
    (TIGHT, "(n / kStages - 1) % 2", "(n / kStages) % 2", "of the phase are there"),
    (STRIPS, "    mbarrier_wait(&shared.full", "    // mbarrier_wait(&shared.full", "race|copied"),
    (
        TIGHT,
        "mbarrier_init(&shared.empty[i], kWorkerWarps)",
        "mbarrier_init(&shared.empty[i], 1)",
        "race|arriv|copies",
    ),
    (
        FLAT,
        "  return reinterpret_cast<unsigned long long>(from) % sizeof(Raw) == 0;",
        "  return true;",
        "boundary|aligned|misaligned|multiple",
    ),
    # Who waits for whom.
    (STRIPS, "    mbarrier_wait(&shared.combined", "    // mbarrier_wait(&shared.combined", "race"),
    (STRIPS, "    mbarrier_wait(&shared.reduced", "    // mbarrier_wait(&shared.reduced", "race"),
    (
        STRIPS,
        "__syncwarp();\n    if (thread % 32 == 0) mbarrier_arrive(&shared.reduced",
        "if (thread % 32 == 0) mbarrier_arrive(&shared.reduced",
        "race",
    ),
    (STRIPS, "kDepth = 1 + (kAhead + kChunks - 1) / kChunks", "kDepth = 1", "race|wait|waits|off"),
    (STRIPS, "there = there && is_there(slots[i])", "there = true", "elements are off"),
    # What is where.
    (STRIPS, "tile % kStrips * kTileRows", "tile % kStrips", "boundary|aligned|off|twice|multiple"),
    (STRIPS, "at / kThreadsAcross * kInner +", "at / kThreadsAcross * kTileRows +", "written|off"),
    (STRIPS, "row_of(i) * kPitch + thread / 32", "row_of(i) * kPitch", "race|off"),
    (FLAT, "* kPackSize + i) % kTileRows", "* kPackSize) % kTileRows", "uninitialised"),
    (FLAT, "thread < kUsed && ", "", "written|race|off"),
    (BACKWARD, "(stage * 2 + 1) * kChunkPacks", "(stage * 2) * kChunkPacks", "race|off|copies"),
    (WHOLE, "portion.rank == 0 && ", "", "written"),
    # What is left in the workspace.
    (STRIPS, "parts[i] = {};", ";", "workspace"),
    (STRIPS, "if (lane == 0) mail.readers[tile] = 0;", "", "workspace"),
    (RELAYED, "of_blocks[i * 32] = {};", ";", "workspace"),
    (RELAYED, "mail.answers[tile * kTileRows + row] = {};", ";", "workspace"),
    (
        RELAYED,
        "if (lane == 0) post(of_row, mail.answers",
        "if (lane == 1) post(of_row, mail.parts",
        "wait|waits|stuck|workspace",
    ),
)


def test_broken_kernels_are_seen() -> None:
    require_seen(BROKEN)


@pytest.mark.parametrize("source", [STRIPS, WHOLE, FLAT, BACKWARD], ids=lambda source: source.name)
def test_each_element_moves_once_in_and_once_out(source: Source) -> None:
    """A line of a strip is one bulk copy, and a chunk without gaps; a store takes a pack."""
    problem, strategy = source.variant.problem, source.variant.strategy
    assert isinstance(strategy, Ring)
    rows = len(rows_of(source.variant)[1])
    tiles = rows // strategy.rows_shared(problem)
    packs = rows * problem.cols // strategy.pack_size
    if strategy.whole(problem):
        of_slice = strategy.slice_lines(problem) * strategy.threads_across
        left = [packs // tiles - rank * of_slice for rank in range(strategy.group_size)]
        copies = sum(-(-min(each, of_slice) // strategy.chunk_packs) for each in left)
    else:
        copies = problem.cols
    found = [verdict.work for verdict in on_emulator([source])[0] if verdict.work]
    work = max(found, key=lambda each: each.copies)  # not where arrays begin within a pack
    assert work.copies == len(problem.element_inputs) * tiles * copies
    numbers = rows * problem.function.name.endswith("_lse")
    assert work.accesses == packs + numbers


def test_few_parts_are_read_by_all_blocks_and_many_by_one() -> None:
    assert "answers" not in STRIPS.text
    assert "answers" in RELAYED.text
    assert STRIPS.variant.launch.workspace_bytes_per_row == 3 * 8 + 4
    assert RELAYED.variant.launch.workspace_bytes_per_row == 19 * 8 + 4


@pytest.mark.parametrize(
    ("inner", "label", "message"),
    [
        (64, "ring_p2_w8_b128_c2_k3_n2_s40_f3", "packs must be of 16 bytes"),
        (64, "ring_p4_w8_b64_c2_k3_n2_s40_f3", "block_size must be above 64"),
        (64, "ring_p4_w33_b96_c2_k3_n2_s40_f3", "32 threads compute, and a line takes 33"),
        (64, "ring_p4_w5_b128_c2_k3_n2_s40_f3", "the 20 rows of a tile must divide inner"),
        (64, "ring_p4_w8_b128_c2_k3_n99_s40_f3", "holds 132 such blocks at once"),
        (64, "ring_p4_w8_b128_c0_k3_n2_s40_f3", "cols_per_thread must be positive"),
        (64, "ring_p4_w8_b128_c2_k3_n2_s40_f0", "in_flight must be positive"),
        (64, "ring_p4_w8_b128_c2_k3_n2_s13_f3", "stages must be at least 14: a slice is 11"),
        (64, "ring_p4_w8_b128_c2_k3_n2_s120_f3", "the ring needs 25.* bytes of shared memory"),
        (64, "ring_p4_w8_b1024_c3_k3_n2_s4_f3", "registers of elements"),
        (7, "ring_p4_w8_b128_c2_k3_n2_s40_f3", "threads_across must be 7, the packs of a band"),
    ],
)
def test_what_cannot_be_is_refused(inner: int, label: str, message: str) -> None:
    problem = Problem.of("softmax", "float32", 500, layout=Columns(inner))
    with pytest.raises(IllegalVariantError, match=message):
        select(problem, 4 * inner, ARCH, label)


def test_what_need_not_be_held_is_refused() -> None:
    problem = Problem.of("logsumexp", "float32", 500, layout=Columns(64))
    with pytest.raises(IllegalVariantError, match="ring does not compute logsumexp"):
        select(problem, 256, ARCH, "ring_p4_w8_b128_c2_k3_n2_s40_f3")


def test_bulk_copies_need_sm_90() -> None:
    problem = Problem.of("softmax", "float32", 500, layout=Columns(64))
    with pytest.raises(IllegalVariantError, match="bulk copies need sm_90, not sm_80"):
        select(problem, 256, arch_named("sm_80"), "ring_p4_w8_b128_c2_k3_n2_s40_f3")


LONG = (
    ("softmax", "float32", 131072, 512, 512),
    ("softmax", "bfloat16", 131072, 512, 512),
    ("softmax", "float32", 32000, 64, 2048),
    ("softmax_lse", "bfloat16", 8192, 8192, 8192),
    ("log_softmax", "bfloat16", 4096, 77, 616),
    ("softmax", "float64", 4096, 77, 616),
    ("softmax", "float16", 1000000, 12, 12),
    ("softmax_backward", "bfloat16", 8192, 8192, 8192),
    ("log_softmax_backward", "float64", 8192, 8192, 8192),
)


@pytest.mark.parametrize(("function", "dtype", "cols", "inner", "rows"), LONG)
def test_candidates_have_their_names_and_spill_nothing(
    function: str, dtype: str, cols: int, inner: int, rows: int
) -> None:
    problem = Problem.of(function, dtype, cols, layout=Columns(inner))
    found = list(candidates(problem, rows, ARCH, "ring"))
    assert found
    for variant in found:
        assert parse_name(variant.name) == variant
    for variant in (found[0], found[len(found) // 2], found[-1]):
        assert compile_offline(render(variant), ARCH).local_bytes == 0, variant.name


def test_it_is_no_first_guess_before_it_is_timed() -> None:
    for function, dtype, cols, inner, rows in LONG:
        problem = Problem.of(function, dtype, cols, layout=Columns(inner))
        assert best_guess(problem, rows, ARCH).strategy.name != "ring"
