"""Rows in shared memory: each way to get them there, on the emulator, and what breaks them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from softgen.devices.emulator import run
from softgen.errors import IllegalVariantError
from softgen.problems.arch import KNOWN, Arch, arch_named
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.shared import ASYNC, BULK, PLAIN, Shared
from softgen.strategies.variants import Variant, candidates, parse_name
from tests.helpers.emulator_helpers import broken, input_of, report_of
from tests.helpers.single import check

H200 = arch_named("sm_90")
KIBI = Problem.of("softmax", "float32", 1024)
WAYS = [(PLAIN, 1), (ASYNC, 1), (BULK, 1), (BULK, 2), (BULK, 3)]


def setting(copy: int, stages: int = 1, block: int = 64, pack: int = 4) -> Shared:
    return Shared(pack, block, copy, stages, 2 if stages > 1 else 0)


def shared(copy: int, stages: int = 1, problem: Problem = KIBI) -> Source:
    return render(Variant(problem, setting(copy, stages, pack=problem.dtype.max_pack)))


def report(source: Source, rows: int = 11) -> str:
    return report_of(source, rows, grid=2)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_way_gives_the_same_bits(dtype: str) -> None:
    problem = Problem.of("log_softmax", dtype, 1040)
    x = input_of(shared(PLAIN, problem=problem), 11)
    first = run(shared(PLAIN, problem=problem), x)
    assert check(first, x, problem).ok
    for copy, stages in WAYS:
        source = shared(copy, stages, problem)
        for in_place in (False, True):
            for grid in (1, 2, 4):
                assert np.array_equal(run(source, x, in_place=in_place, grid=grid), first)


@pytest.mark.parametrize("cols", [1, 3, 5, 1001])
def test_rows_that_start_anywhere(cols: int) -> None:
    problem = Problem.of("softmax", "float32", cols, alignment=1)
    source = render(Variant(problem, setting(PLAIN)))
    x = input_of(source, 5)
    for offsets in ((0, 0), (1, 1), (1, 3), (2, 0)):
        y = run(source, x, x_offset=offsets[0], y_offset=offsets[1])
        assert check(y, x, problem).ok


@pytest.mark.parametrize(("copy", "stages"), WAYS[2:])
def test_a_missing_wait_for_a_bulk_copy_is_a_race(copy: int, stages: int) -> None:
    wait = f"mbarrier_wait({'barrier' if stages == 1 else 'barriers + buffer'}, parity);"
    text = report(broken(shared(copy, stages), wait, "__syncthreads();"))
    assert "copies by bulk_load, with no mbarrier_wait between" in text
    wrong = report(broken(shared(copy, stages), wait, wait.replace("parity", "parity ^ 1")))
    assert "race on shared memory" in wrong


@pytest.mark.parametrize("stages", [2, 3])
def test_a_buffer_that_is_filled_too_early(stages: int) -> None:
    early = broken(shared(BULK, stages), "    source.refill();\n", "")
    reduce = "    LongMaxSum part;\n    walk"
    early = broken(early, reduce, f"    source.refill();\n{reduce}")
    assert re.search("race on shared memory: thread 0 wrote what thread [0-9]+ read", report(early))
    wrong = broken(shared(BULK, stages), "buffer + kStages - 1", "buffer")
    assert "race on shared memory" in report(wrong)


def test_a_single_buffer_needs_a_barrier() -> None:
    source = shared(BULK)
    text = report(broken(source, "      __syncthreads();\n      start();", "      start();"))
    assert re.search("race on shared memory: thread 0 wrote what thread [0-9]+ read", text)


def test_a_missing_wait_for_cp_async_is_a_race() -> None:
    text = report(broken(shared(ASYNC), "    copy_async_wait();\n", ""))
    assert "with no copy_async_wait between" in text


@pytest.mark.parametrize(
    ("broken_setting", "problem", "arch", "message"),
    [
        (setting(3), KIBI, "sm_90", "copy must be 0, 1 or 2"),
        (setting(ASYNC, 2), KIBI, "sm_90", "more than one stage needs copy=2"),
        (setting(BULK, 9), KIBI, "sm_90", "stages must be from 1 to 8"),
        (Shared(4, 64, BULK, 2, 0), KIBI, "sm_90", "2 stages or more, any other has one"),
        (Shared(4, 64, PLAIN, 1, 7), KIBI, "sm_90", "2 stages or more, any other has one"),
        (Shared(4, 64, PLAIN, 1, 0, 2), KIBI, "sm_90", "resident is for a grid that strides"),
        (Shared(4, 64, BULK, 2, 4, 0), KIBI, "sm_90", "resident must be at least 1"),
        (Shared(4, 64, BULK, 2, -4), KIBI, "sm_90", "multiprocessors must not be negative"),
        (Shared(4, 64, BULK, 2, 2**30, 2), KIBI, "sm_90", "must be at most 2147483647"),
        (setting(ASYNC), KIBI, "sm_75", "cp.async needs sm_80, this is sm_75"),
        (setting(BULK), KIBI, "sm_89", "a bulk copy needs sm_90, this is sm_89"),
        (setting(ASYNC, pack=2), KIBI, "sm_90", "between 16-byte boundaries"),
        (
            setting(BULK),
            Problem.of("softmax", "float32", 1024, alignment=2),
            "sm_90",
            "between 16-byte boundaries",
        ),
        (
            setting(PLAIN),
            Problem.of("softmax", "float32", 16384),
            "sm_75",
            "needs 65552 bytes of shared memory, sm_75 has 65536",
        ),
        (setting(PLAIN, block=65), KIBI, "sm_90", "multiple of 32"),
    ],
)
def test_a_broken_rule_says_so(
    broken_setting: Shared, problem: Problem, arch: str, message: str
) -> None:
    with pytest.raises(IllegalVariantError, match=re.escape(message)):
        broken_setting.check(problem, arch_named(arch))


def test_the_input_type_decides_what_fits() -> None:
    for dtype, most in (("float32", 58000), ("bfloat16", 116000)):
        for cols, fits in ((most, True), (most + 1000, False)):
            problem = Problem.of("softmax", dtype, cols)
            assert any(candidates(problem, 4096, H200, "shared")) == fits


@pytest.mark.parametrize("arch", KNOWN.values(), ids=str)
@pytest.mark.parametrize(
    ("dtype", "cols"), [("float32", 20000), ("bfloat16", 30000), ("float64", 10000)]
)
def test_wide_rows_before_clusters(dtype: str, cols: int, arch: Arch) -> None:
    order = [v.strategy.name for v in candidates(Problem.of("softmax", dtype, cols), 4096, arch)]
    if arch.compute_capability >= (9, 0):
        assert order[0] == "cluster"
    else:
        fits = arch.shared_per_block > 80 * 1024 or dtype == "bfloat16"
        assert order[0] == ("shared" if fits else "online")


def test_narrow_rows_are_for_others() -> None:
    assert not list(candidates(Problem.of("softmax", "float32", 1000), 4096, H200, "shared"))
    order = [
        v.strategy.name for v in candidates(Problem.of("softmax", "float32", 8192), 4096, H200)
    ]
    assert order.index("block") < order.index("shared") < order.index("online")


@pytest.mark.parametrize(("cols", "asks"), [(12200, False), (12288, True), (12400, True)])
def test_static_memory_counts_where_the_host_has_to_ask(cols: int, asks: bool) -> None:
    """Rows of 12288 float32 are 48 KB, to which come the parts of the warps."""
    launch = Variant(Problem.of("softmax", "float32", cols), Shared(4, 512, PLAIN, 1, 0)).launch
    assert launch.asks_for_shared == asks


@pytest.mark.parametrize("arch", [H200, H200.with_multiprocessors(78), KNOWN["sm_120"]], ids=str)
def test_a_ring_has_as_many_blocks_as_the_gpu_holds(arch: Arch) -> None:
    found = list(candidates(Problem.of("softmax", "float32", 8192), 4096, arch, "shared"))
    rings = [variant for variant in found if int(variant.strategy.knobs["stages"]) > 1]
    assert rings
    for variant in found:
        assert variant.launch.multiprocessors == (arch.multiprocessors if variant in rings else 0)
    for variant in rings:
        launch = variant.launch
        assert launch.grid(10**6) == launch.most_blocks
        resident = launch.most_blocks // launch.multiprocessors
        assert resident == variant.strategy.knobs["resident"]
        assert launch.most_blocks % launch.multiprocessors == 0
        assert resident * (launch.shared_bytes + 1024) <= arch.shared_per_block + 1024
        assert (resident + 1) * (launch.shared_bytes + 1024) > arch.shared_per_block + 1024


def test_a_ring_of_one_block_an_sm_is_named_without_resident() -> None:
    """And an older name, which counted blocks, launches what it did."""
    assert Shared(4, 64, BULK, 2, 132).label == "shared_p4_b64_y2_s2_n132"
    assert Shared(4, 64, BULK, 2, 132, 2).label == "shared_p4_b64_y2_s2_n132_m2"
    older = parse_name("softmax_f32_1024_shared_p4_b64_y2_s2_n264")
    assert older.launch.most_blocks == Shared(4, 64, BULK, 2, 132, 2).launch(KIBI).most_blocks
