"""The cooperative strategy on the emulator: right at every layout, and reports on broken ones."""

from __future__ import annotations

import numpy as np
import pytest

from softgen.devices.emulator import build, run
from softgen.problems.dtypes import DType
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.cooperative import Cooperative
from softgen.strategies.variants import Variant
from tests.helpers.emulator_helpers import broken, input_of, report_of
from tests.helpers.single import BOTH, check

# Two warps that work in each block, beside four that help.
BLOCK = 192


def cooperative(
    cols: int = 2000,
    dtype: str = "float32",
    algorithm: str = "softmax",
    *,
    packs: int = 1,
    group: int = 2,
    groups: int = 1,
    stages: int = 8,
    in_flight: int = 2,
    prefetch: int = 2,
    held: int = 0,
    block: int = 0,
) -> Source:
    """Return a kernel whose blocks have a slice of 4 chunks of each row, unless told otherwise."""
    pack = DType(dtype).max_pack
    block = block or (BLOCK - 64 if held else BLOCK)  # two warps help there
    setting = Cooperative(
        pack, packs * pack, block, group, groups, stages, in_flight, prefetch, held
    )
    return render(Variant(Problem.of(algorithm, dtype, cols), setting))


def holding() -> Source:
    """Return a kernel that holds 2 of 8 chunks, loads 4 again and keeps 2 in the ring."""
    return cooperative(4000, stages=3, in_flight=1, held=2)


DTYPES = ("float32", "float64", "bfloat16", "float16")
LAYOUTS = {
    "two_rows_deep": {},
    "five_rows_deep": {"group": 3, "groups": 2, "stages": 16, "prefetch": 3},
    "one_block_a_row": {"cols": 2048, "packs": 2, "group": 1, "groups": 4, "stages": 16},
    "loaded_twice": {"stages": 3, "in_flight": 1, "prefetch": 0},
    "loaded_twice_but_for_one": {"stages": 2, "in_flight": 1, "prefetch": 1},
    "just_fits": {"stages": 6},
    "blocks_without_a_column": {"cols": 264, "group": 7, "stages": 3, "in_flight": 1},
    "one_pack": {"cols": 8, "group": 2, "stages": 2, "in_flight": 1},
    "held": {"cols": 4000, "stages": 3, "in_flight": 1, "held": 2},
    "held_in_three_groups": {
        "cols": 8008,
        "packs": 2,
        "group": 3,
        "groups": 3,
        "stages": 3,
        "in_flight": 2,
        "held": 1,
    },
    "held_and_nothing_again": {"cols": 520, "group": 1, "stages": 2, "in_flight": 1, "held": 1},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_layouts(layout: dict[str, int]) -> None:
    """By every type, softmax and log_softmax in turn: every layout and type meets both."""
    given = {"cols": 2000, **layout}
    cols, first = given.pop("cols"), [*LAYOUTS.values()].index(layout)
    turns = enumerate(DTYPES, first)
    sources = [cooperative(cols, dtype, BOTH[turn % 2].name, **given) for turn, dtype in turns]
    program = build(sources)
    for source in sources:
        x = input_of(source, 7)
        y = program.run(source, x)
        assert check(y, x, source.variant.problem).ok, source.name
        assert np.array_equal(program.run(source, x, in_place=True), y), source.name


def test_fewer_rows_than_groups() -> None:
    source = cooperative(groups=4)
    x = input_of(source, 2)
    assert source.variant.launch.grid(2) == 4
    assert check(run(source, x), x, source.variant.problem).ok


@pytest.mark.parametrize("dtype", DTYPES)
def test_held_chunks_of_short_slices(dtype: str) -> None:
    """Of 40 blocks with slices of 33 packs, the last but one has 30 of them and the last none."""
    cols = 1284 * DType(dtype).max_pack
    source = cooperative(cols, dtype, group=40, stages=2, in_flight=1, held=1, block=96)
    x = input_of(source, 3)
    y = run(source, x)
    assert check(y, x, source.variant.problem).ok
    assert np.array_equal(run(source, x, in_place=True), y)


@pytest.mark.parametrize(("stages", "held"), [(8, 0), (3, 0), (3, 1), (3, 2)])
def test_slices_of_minus_infinity(stages: int, held: int) -> None:
    """A lane's packs, a warp's, a chunk, a block's slice and all but one element of a row."""
    source = cooperative(stages=stages, in_flight=1, held=held)
    x = input_of(source, 6)
    for row, (first, last) in enumerate([(0, 4), (0, 128), (256, 512), (0, 1000), (1000, 2000)]):
        x[row, first:last] = -np.inf
    x[5, 1:] = -np.inf
    y = run(source, x)
    assert check(y, x, source.variant.problem).ok
    assert np.isfinite(y).all()


def test_out_in_another_dtype() -> None:
    setting = Cooperative(8, 8, BLOCK, 2, 1, 8, 2, 2)
    problem = Problem.of("softmax", "bfloat16", 2000, out_dtype="float32")
    source = render(Variant(problem, setting))
    x = input_of(source, 3)
    assert check(run(source, x), x, problem).ok


def test_a_chunk_that_is_not_waited_for() -> None:
    assert "race on shared memory" in report_of(
        broken(cooperative(), "    await(next_load);\n", "")
    )


def test_the_wrong_phase_of_a_stage() -> None:
    text = report_of(broken(cooperative(), "n / kStages % 2);", "(n / kStages + 1) % 2);"), rows=9)
    assert "race on shared memory" in text or "never" in text


def test_a_stage_that_is_filled_before_it_is_empty() -> None:
    wait = "if (n >= kStages) mbarrier_wait(&shared.empty[stage], (n / kStages - 1) % 2);"
    text = report_of(broken(cooperative(), wait, ""), rows=9)
    assert "called mbarrier_arrive_expect, but all 1 arrivals of the phase are there" in text


def test_reads_that_a_copy_may_overtake() -> None:
    """An arrival without the fence: one launch in 20 of 128 x 128256 was wrong on an H200."""
    text = report_of(broken(cooperative(), "    fence_async();\n", ""), rows=9)
    assert "with no fence_async between" in text


def test_a_stage_that_is_never_released() -> None:
    text = report_of(broken(cooperative(), "    release(n);\n", ""), rows=9)
    assert "mbarrier_wait" in text


def test_more_bytes_expected_than_copied() -> None:
    expect = "mbarrier_arrive_expect(&shared.full[stage], bytes);"
    text = report_of(broken(cooperative(), expect, expect.replace("bytes)", "bytes + 16)")))
    assert "bytes" in text
    assert "mbarrier" in text


def test_a_slice_that_reaches_past_the_row() -> None:
    text = report_of(
        broken(cooperative(), "left < kSlicePacks ? left : kSlicePacks", "kSlicePacks + 1")
    )
    assert "row" in text


def test_a_pair_that_is_not_posted() -> None:
    post = "if constexpr (kRole == kPoster) post_part"
    never = post.replace("constexpr (kRole == kPoster)", "(kRole == kPoster && portion.rank)")
    text = report_of(broken(cooperative(), post, never))
    assert "spin" in text


def test_parts_that_may_be_overwritten() -> None:
    """The poster's arrival tells the workers that it has read their parts."""
    source = broken(
        cooperative(),
        "mbarrier_init(&shared.combined[i], 2);  // poster and receiver",
        "mbarrier_init(&shared.combined[i], 1);",
    )
    arrival = "if (lane == 0) mbarrier_arrive(&shared.combined[t % kDepth]);"
    assert "race on shared memory" in report_of(broken(source, arrival, ""), rows=9)


def test_a_total_that_is_written_while_it_is_read() -> None:
    wait = "// t - kDepth.\n      mbarrier_wait(&shared.reduced[t % kDepth], t / kDepth % 2);\n"
    assert "race on shared memory" in report_of(broken(cooperative(), wait, "//\n"), rows=9)


def test_a_workspace_that_is_left_dirty() -> None:
    text = report_of(broken(cooperative(), "  mail.total = {};\n", ""))
    assert "left its workspace dirty" in text


HOLD = "    release(next_load);\n    Compute values"
WRITE_HELD = "      worker.write_held(held[i], i, base, factor, row_y);\n"
HOLD_NEXT = "      if (worker.reduced_rows < rows) worker.hold(held[i]);\n"


def is_right(source: Source) -> bool:
    x = input_of(source, 3)
    return check(run(source, x), x, source.variant.problem).ok


def test_the_wrong_held_chunk() -> None:
    assert is_right(holding())
    assert not is_right(broken(holding(), WRITE_HELD, WRITE_HELD.replace("held[i]", "held[0]")))


def test_held_chunks_that_the_next_row_replaces_too_soon() -> None:
    source = broken(holding(), WRITE_HELD + HOLD_NEXT, HOLD_NEXT + WRITE_HELD)
    assert not is_right(source)


def test_a_held_chunk_whose_stage_is_not_released() -> None:
    source = broken(holding(), HOLD, HOLD.replace("    release(next_load);\n", ""))
    assert "mbarrier_wait" in report_of(source)


def test_a_held_chunk_that_is_not_waited_for() -> None:
    packs = "packs_of(next_chunk, portion);\n"
    hold = packs + "    await(next_load);\n"
    assert "race on shared memory" in report_of(broken(holding(), hold, packs))


def test_chunks_that_are_loaded_again_but_held() -> None:
    """The order of loads and of writes have to agree on which chunks come again."""
    again = "kFirstKept - 1 - (i - kChunks)"
    assert not is_right(broken(holding(), again, again.replace("kFirstKept", "kAgain")))
