"""Kernels with a workspace: what they find in it, and what the emulator says of those that err."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from softgen.devices.emulator import Job, build, run
from softgen.errors import EmulationError, InvalidValueError
from softgen.problems.dtypes import DType
from softgen.problems.numerics import encode
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.block import Block
from softgen.strategies.split import Split
from softgen.strategies.variants import Variant, parse_name
from tests.helpers.emulator_helpers import broken, input_of, report_of, run_rows
from tests.helpers.single import check

ROWS = 3
CHUNKS = 4


def split(cols: int = 1000, dtype: str = "float32", reverse: bool = False) -> Source:
    """Return a kernel with chunks of 256 columns."""
    return render(Variant(Problem.of("softmax", dtype, cols), Split(2, 4, 64, 1, reverse)))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("cols", [1000, 1001, 20000])
def test_split_computes_softmax(cols: int, rows: int, reverse: bool) -> None:
    source = split(cols, reverse=reverse)
    x = input_of(source, rows)
    y = run(source, x)
    assert check(y, x, source.variant.problem).ok
    assert np.array_equal(run(source, x, in_place=True), y)


def test_a_pair_of_nan_is_not_mistaken_for_one_that_is_missing() -> None:
    source = split()
    x = input_of(source, ROWS).copy()
    x.view(np.uint32)[1, 7] = 0xFFFFFFFF
    y = run(source, x)
    assert np.isnan(y[1]).all()
    assert np.isfinite(y[[0, 2]]).all()


def test_a_workspace_left_dirty() -> None:
    """Rows of four pairs of 8 bytes, then a counter for each row."""
    text = report_of(broken(split(), "if (thread == 0) written[row] = 0;", ""))
    assert f"the launch left its workspace dirty: 3 of {36 * ROWS} bytes are not zero" in text
    assert f"the first is byte {8 * CHUNKS * ROWS}" in text


def test_a_missing_reset_of_the_pairs() -> None:
    source = split()
    kept = broken(source, "row_parts[i] = {};", "if (row != 1 || i) row_parts[i] = {};")
    text = report_of(kept)
    assert "the launch left its workspace dirty: 8 of 108 bytes are not zero" in text
    assert "the first is byte 32" in text


def test_a_reset_before_others_have_read_leaves_them_spinning() -> None:
    text = report_of(broken(split(), "!= kChunks - 1) return;", "!= 0) return;"))
    assert (
        "a spin that never ends: thread 0 of block 7 waits for a change of workspace[byte" in text
    )
    assert text.count(".cu:") >= 2


def test_a_spin_on_what_a_later_block_writes() -> None:
    source = split()
    late = broken(source, "const long long task = blockIdx.x;", LAST_BLOCK_FIRST)
    text = report_of(late, seconds=20)
    assert "a spin that never ends" in text
    assert "blocks start in order" in text
    assert "spin on workspace[byte" in text


LAST_BLOCK_FIRST = "const long long task = gridDim.x - 1 - blockIdx.x;"


def test_a_spin_that_another_thread_of_the_block_ends() -> None:
    source = split()
    head, _, _ = source.text.partition("  // All zero before the first launch")
    body = (
        "  volatile unsigned int* flag = reinterpret_cast<unsigned int*>(workspace);\n"
        "  if (threadIdx.x == 0) while (*flag == 0) {}\n"
        "  if (threadIdx.x == 63) *flag = 1;\n"
        "  __syncthreads();\n"
        "  if (threadIdx.x == 1) *flag = 0;\n"
        "  if (blockIdx.x == 0) {\n"
        "    for (int i = threadIdx.x; i < kCols; i += kBlockSize) y[i] = x[i];\n"
        "  }\n}\n"
    )
    whole = broken(source, source.text, head + body)
    x = input_of(source, 1)
    assert np.array_equal(run(whole, x), x)


def test_accesses_outside_of_the_workspace() -> None:
    counters = "reinterpret_cast<unsigned int*>(parts + rows * kChunks)"
    text = report_of(broken(split(), counters, f"{counters} + rows"))
    assert "past the end of workspace, whose last element is workspace[byte 107]" in text
    before = report_of(broken(split(), counters, "reinterpret_cast<unsigned int*>(workspace) - 4"))
    assert "before the start of workspace" in before


def test_an_atomic_anywhere_else() -> None:
    text = report_of(broken(split(), "written + row", "reinterpret_cast<unsigned int*>(y)"))
    assert "called an atomic at" in text
    assert "outside of the workspace and of shared memory" in text


def test_atomics_in_shared_memory() -> None:
    source = render(parse_name("topk_softmax_k8_bf16_2048_block_p8_c16_g128_b128_m1_pdl1"))
    x = np.random.default_rng(0).normal(size=(2, 2048))
    job = Job(source, encode(x, DType.BFLOAT16), (np.array(1, np.float32),))
    assert not isinstance(build([source]).run_counted([job])[0], EmulationError)

    def told(old: str, new: str) -> str:
        other = broken(source, old, new)
        (result,) = build([other]).run_counted([dataclasses.replace(job, source=other)])
        assert isinstance(result, EmulationError)
        return str(result)

    barrier = "  __syncthreads();\n  const int count = board.count"
    early = told(barrier, barrier.replace("  __syncthreads();\n", ""))
    assert "race on shared memory" in early
    assert "code address" not in early
    unwritten = told("if (threadIdx.x == 0) board.count = 0;\n  __syncthreads", "__syncthreads")
    assert "index -1 out of bounds" in unwritten
    plain = told("next_of(&board.count)", "board.count++")
    assert "race on shared memory" in plain


def test_the_grid_of_a_kernel_with_a_workspace_is_fixed() -> None:
    wanted = split().variant.launch.grid(2)
    for grid in (2, wanted - 1, wanted + 1, 10 * wanted):
        message = f"grid is {grid}, .* has a workspace, .* is fixed: 2 rows take {wanted}; leave"
        with pytest.raises(InvalidValueError, match=message):
            run_rows(split(), 2, grid=grid)
    assert np.array_equal(run_rows(split(), 2, grid=wanted), run_rows(split(), 2))


def test_the_grid_of_blocks_without_rows_of_their_own_may_be_larger() -> None:
    source = render(parse_name("softmax_f32_100_warp_p4_c4_g32_r1_b128"))
    assert not source.variant.launch.strides
    with pytest.raises(
        InvalidValueError, match=r"grid is 1, .* not stride: 5 rows take 2 or more$"
    ):
        run_rows(source, 5, grid=1)
    assert np.array_equal(run_rows(source, 5, grid=3), run_rows(source, 5))


def test_a_neighbours_element_may_be_loaded_in_place_and_not_used() -> None:
    """In place, where the row before has its results already, its elements arrive as NaN."""
    problem = Problem.of("softmax", "float32", 101, alignment=1)
    source = render(Variant(problem, Block(4, 4, 64, 64, 1)))
    x = input_of(source, 5)
    assert check(run(source, x, in_place=True), x, problem).ok
    outside = "if (col + i < 0 || col + i >= kCols) "
    used = broken(source, outside + "elements[i] = negative_infinity();", "")
    assert np.isnan(run(used, x, in_place=True)).any()


@pytest.mark.parametrize("cols", [1, 2, 3])
def test_rows_shorter_than_a_pack_stay_inside_of_the_array(cols: int) -> None:
    """The pack of such a row may begin before x, or end behind it, although the row is inner."""
    problem = Problem.of("softmax", "float32", cols, alignment=1)
    source = render(Variant(problem, Block(4, 4, 64, 64, 1)))
    x = input_of(source, 5)
    for offset in range(4):
        assert check(run(source, x, x_offset=offset, y_offset=offset), x, problem).ok
