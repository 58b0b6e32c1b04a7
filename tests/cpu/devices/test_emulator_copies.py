"""Asynchronous copies, barriers with phases and cooperative grids on the emulator."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from softgen.devices.emulator import run
from softgen.errors import InvalidValueError
from softgen.problems.arch import Arch
from softgen.problems.problem import Problem
from softgen.source.render import Source
from softgen.strategies.base import Strategy, knob
from softgen.strategies.launch import Launch
from softgen.strategies.variants import Variant
from tests.helpers.emulator_helpers import broken, input_of, report_of

COLS = 256


@dataclass(frozen=True)
class Hand(Strategy):
    """A kernel written by hand, with any launch."""

    name = "hand"
    summary = "for tests"

    block_size: int = knob("b", "threads in a block")
    most_blocks: int = knob("g", "largest grid")
    dynamic: int = knob("d", "bytes of dynamic shared memory")
    cooperative: bool = knob("co", "whether all blocks are alive together")
    workspace: int = knob("w", "bytes of workspace for each row")

    def check(self, problem: Problem, arch: Arch) -> None:
        """Accept everything."""

    def launch(self, problem: Problem) -> Launch:
        """Return the launch that the fields ask for."""
        return Launch(
            self.block_size,
            rows_per_block=1,
            static_shared_bytes=0,
            dynamic_shared_bytes=self.dynamic,
            most_blocks=self.most_blocks,
            cooperative=self.cooperative,
            workspace_bytes_per_row=self.workspace,
        )

    @classmethod
    def candidates(cls, problem: Problem, rows: int, arch: Arch) -> Iterator[Strategy]:
        """Yield nothing."""
        return iter(())

    @classmethod
    def estimate(cls, problem: Problem, rows: int, arch: Arch) -> float:
        """Be the last choice."""
        return 9.0


def by_hand(
    body: str,
    *,
    block: int = 64,
    most_blocks: int = 2**31 - 1,
    dynamic: int = 0,
    cooperative: bool = False,
    workspace: int = 0,
    cols: int = COLS,
) -> Source:
    """Return a kernel with the text `body`."""
    hand = Hand(block, most_blocks, dynamic, cooperative, workspace)
    parameters = "const float* x, float* y, long long rows"
    if workspace:
        parameters += ", unsigned char* workspace"
    text = (
        f"constexpr int kCols = {cols};\nconstexpr int kBytes = {4 * cols};\n"
        f'extern "C" __global__ void kernel({parameters}) {{\n{body}\n}}\n'
    )
    variant = Variant(Problem.of("softmax", "float32", cols), hand)
    return Source(variant, "by_hand", "kernel", text)


def copied(source: Source, rows: int = 5, **options: int | bool) -> None:
    """Run a kernel that copies x to y, out of place and in place."""
    x = input_of(source, rows)
    for in_place in (False, True):
        assert np.array_equal(run(source, x, in_place=in_place, **options), x)


def report(source: Source, rows: int = 5, **options: int | bool) -> str:
    return report_of(source, rows, **options)


# One row a block, one bulk copy.

ROW_AT_ONCE = """\
  alignas(16) __shared__ float buffer[kCols];
  __shared__ unsigned long long full;
  if (threadIdx.x == 0) mbarrier_init(&full, 1);
  __syncthreads();
  const float* row = x + blockIdx.x * kCols;
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(&full, kBytes);
    bulk_load(buffer, row, kBytes, &full);
  }
  mbarrier_wait(&full, 0);
  for (int i = threadIdx.x; i < kCols; i += 64) y[blockIdx.x * kCols + i] = buffer[i];"""
ONCE = by_hand(ROW_AT_ONCE)
INIT = "if (threadIdx.x == 0) mbarrier_init(&full, 1);"
WAIT = "mbarrier_wait(&full, 0);"
LOAD = "bulk_load(buffer, row, kBytes, &full);"


def test_a_bulk_copy_of_a_row() -> None:
    copied(ONCE)


def test_several_copies_and_arrivals_make_one_phase() -> None:
    source = broken(ONCE, "mbarrier_init(&full, 1)", "mbarrier_init(&full, 4)")
    source = broken(source, "if (threadIdx.x == 0) {", "if (threadIdx.x % 16 == 0) {")
    quarter = "bulk_load(buffer + threadIdx.x * 4, row + threadIdx.x * 4, kBytes / 4, &full);"
    source = broken(source, LOAD, quarter)
    copied(broken(source, "expect(&full, kBytes)", "expect(&full, kBytes / 4)"))


def test_a_copy_may_start_before_its_bytes_are_expected() -> None:
    late = broken(ONCE, "    mbarrier_arrive_expect(&full, kBytes);\n", "")
    copied(broken(late, LOAD, f"{LOAD}\n    mbarrier_arrive_expect(&full, kBytes);"))


def test_a_missing_wait_is_a_race() -> None:
    """Also for the thread that began the copy. One that reads before it begins races as well."""
    text = report(broken(ONCE, WAIT, "if (threadIdx.x != 0) " + WAIT))
    assert "race on shared memory: thread 0 read what thread 0 copies by bulk_load" in text
    assert "with no mbarrier_wait between" in text
    assert text.count(".cu:") == 2
    early = report(broken(ONCE, WAIT, ""))
    assert "thread 0 wrote what thread 63 read, with no __syncthreads or mbarrier" in early


def test_a_barrier_of_the_block_is_no_wait_for_a_copy() -> None:
    text = report(broken(ONCE, WAIT, "__syncthreads();"))
    assert "copies by bulk_load, with no mbarrier_wait between" in text


def test_a_wait_for_the_wrong_parity_is_a_race() -> None:
    wrong = "__syncthreads();\n  mbarrier_wait(&full, 1);"
    text = report(broken(ONCE, WAIT, wrong))
    assert "copies by bulk_load, with no mbarrier_wait between" in text
    assert "with parity 2" in report(broken(ONCE, WAIT, "mbarrier_wait(&full, 2);"))


def test_a_wait_orders_only_the_threads_that_wait() -> None:
    text = report(broken(ONCE, WAIT, f"__syncthreads();\n  if (threadIdx.x < 63) {WAIT}"))
    assert "thread 63 read what thread 0 copies" in text
    copied(broken(ONCE, WAIT, f"if (threadIdx.x == 7) {WAIT}\n  __syncthreads();"))
    lanes = f"if (threadIdx.x % 32 == 7) {WAIT}\n  __syncwarp();"
    copied(broken(ONCE, WAIT, lanes))
    first_warp = f"__syncthreads();\n  {lanes}".replace("% 32", "")
    assert "read what thread 0 copies by bulk_load" in report(broken(ONCE, WAIT, first_warp))


def test_more_bytes_expected_than_copied() -> None:
    text = report(broken(ONCE, "expect(&full, kBytes)", "expect(&full, kBytes + 16)"))
    assert "an mbarrier of block 0 that never completes: it got 1024 of the 1040 bytes" in text
    assert "1 of 1 arrivals" in text
    assert "thread(s) 0-63 wait for it" in text


def test_fewer_bytes_expected_than_copied() -> None:
    text = report(broken(ONCE, "expect(&full, kBytes)", "expect(&full, kBytes - 16)"))
    assert "called bulk_load, and the phase of its mbarrier then has all arrivals" in text
    assert "copies of 1024 bytes where it expects 1008" in text
    none = report(broken(ONCE, "mbarrier_arrive_expect(&full, kBytes)", "mbarrier_arrive(&full)"))
    assert "copies by bulk_load, with no mbarrier_wait between" in none  # of the next phase


def test_an_arrival_that_completes_a_phase_with_too_many_bytes() -> None:
    late = broken(ONCE, "    mbarrier_arrive_expect(&full, kBytes);\n", "")
    text = report(broken(late, LOAD, f"{LOAD}\n    mbarrier_arrive(&full);"))
    assert "called mbarrier_arrive, and the phase of its mbarrier then has all arrivals" in text


def test_a_missing_arrival() -> None:
    text = report(broken(ONCE, "mbarrier_init(&full, 1)", "mbarrier_init(&full, 2)"))
    assert "never completes: it got 1024 of the 1024 bytes and 1 of 2 arrivals" in text


def test_an_arrival_too_many() -> None:
    twice = f"{LOAD}\n    mbarrier_arrive(&full);"
    text = report(broken(ONCE, LOAD, twice))
    assert "called mbarrier_arrive, but all 1 arrivals of the phase are there" in text
    assert "0 of 1024 bytes" in text


def test_a_missing_init() -> None:
    text = report(broken(ONCE, INIT, ""))
    assert "called mbarrier_wait on a barrier without mbarrier_expect or mbarrier_init" in text
    wait = report(broken(ONCE, WAIT, "mbarrier_wait(&full + 1, 0);"))
    assert "called mbarrier_wait on a barrier without" in wait
    load = report(broken(ONCE, LOAD, LOAD.replace("&full", "&full + 1")))
    assert "called bulk_load on a barrier without" in load


def test_an_init_of_nothing() -> None:
    text = report(broken(ONCE, "mbarrier_init(&full, 1)", "mbarrier_init(&full, 0)"))
    assert "called mbarrier_init for 0 arrivals" in text
    outside = report(broken(ONCE, "__shared__ unsigned long long full", "unsigned long long full"))
    assert "called mbarrier_init on what is not in shared memory" in outside


def test_a_barrier_that_was_not_published() -> None:
    text = report(broken(ONCE, "__syncthreads();", ""))
    assert "called mbarrier_wait, with no barrier after the mbarrier_init of thread 0" in text
    others = broken(ONCE, "__syncthreads();", "")
    load = report(broken(others, "if (threadIdx.x == 0) {", "if (threadIdx.x == 33) {"))
    assert "with no barrier after the mbarrier_init of thread 0" in load


def test_an_init_again() -> None:
    again = "mbarrier_init(&full, 1);\n  __syncthreads();\n  if (threadIdx.x == 0) mbarrier_init"
    text = report(broken(ONCE, "mbarrier_init", again))
    assert "called mbarrier_init again before anybody waited for the first" in text


def test_an_ordinary_access_to_a_barrier() -> None:
    text = report(broken(ONCE, WAIT, f"{WAIT}\n  if (threadIdx.x == 3) full = 0;"))
    assert re.search("thread 3 wrote byte [0-9]+ of static shared memory, where an mbarrier", text)


def test_unaligned_copies() -> None:
    text = report(broken(ONCE, "bulk_load(buffer,", "bulk_load(buffer + 1,"))
    assert "misaligned 16-byte access, 4 bytes off" in text
    text = report(broken(ONCE, "bulk_load(buffer, row,", "bulk_load(buffer, row + 2,"))
    assert "misaligned 16-byte access to x[row 0, col 2], 8 bytes off" in text
    for bytes_ in ("kBytes - 4", "0", "-16"):
        text = report(broken(ONCE, "row, kBytes,", f"row, {bytes_},"))
        assert "which is no positive multiple of 16" in text


def test_copies_outside_of_the_arrays() -> None:
    text = report(broken(ONCE, "bulk_load(buffer, row,", "bulk_load(buffer, row + 4,"), rows=1)
    assert "called bulk_load for 1024 bytes that reach 4 element(s) past the end of x" in text
    assert "whose last element is x[row 0, col 255]" in text
    text = report(broken(ONCE, "bulk_load(buffer, row,", "bulk_load(buffer, row - 4,"), rows=1)
    assert "4 element(s) before the start of x" in text
    text = report(broken(ONCE, "bulk_load(buffer, row,", "bulk_load(buffer, y,"))
    assert "called bulk_load from what is not in x" in text
    text = report(broken(ONCE, "bulk_load(buffer,", "bulk_load(buffer + 4,"))
    assert "that are not all in the block's shared memory" in text


def test_a_copy_onto_its_own_barrier() -> None:
    source = broken(ONCE, "alignas(16) __shared__ float buffer[kCols];", "")
    source = broken(
        source,
        "__shared__ unsigned long long full;",
        "struct All {\n    alignas(16) float buffer[kCols];\n"
        "    unsigned long long full[4];\n  };\n"
        "  __shared__ All all;\n  float* buffer = all.buffer;\n"
        "  unsigned long long& full = all.full[0];",
    )
    copied(source)
    text = report(broken(source, "bulk_load(buffer,", "bulk_load(buffer + 4,"))
    assert "where an mbarrier lies" in text


def test_a_block_that_ends_while_a_copy_goes_on() -> None:
    text = report(broken(ONCE, WAIT, "if (blockIdx.x == 1) return;\n  " + WAIT))
    assert "block 1 ended without a wait at its mbarrier, which got 0 of 1024 bytes" in text
    assert "a copy may still write to it" in text


def test_in_place_a_row_that_is_overwritten_before_it_was_copied() -> None:
    late = broken(ONCE, LOAD, f"{LOAD}\n    y[blockIdx.x * kCols + 8] = 0;")
    text = report(late, in_place=True)
    assert (
        "thread 0 of block 0 overwrote x[row 0, col 8] before it was read by the bulk_load" in text
    )
    early = broken(ONCE, LOAD, f"y[blockIdx.x * kCols + 8] = 0;\n    {LOAD}")
    assert "thread 0 of block 0 overwrote x[row 0, col 8]" in report(early, in_place=True)


LATE = broken(
    by_hand(ROW_AT_ONCE, block=192),
    INIT,
    f"""\
for (int i = threadIdx.x; i < kCols; i += 192) buffer[i] = 0;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < kCols; ++i) sum += buffer[i];
  if (threadIdx.x / 32 != 2 && threadIdx.x / 32 != 3) fence_async();
  if (sum) return;
  __syncthreads();
  {INIT}""",
)


def test_a_copy_over_what_many_warps_read_before_the_first_mbarrier() -> None:
    """Of many not all are known to the emulator: it takes none for granted."""
    text = report(LATE)
    assert "thread 0 wrote what threads of many warps read before the first mbarrier" in text
    assert "with no fence_async between" in text


# A ring of stages: a warp that loads and two warps that use the rows.

RING = by_hand(
    """\
  constexpr int kStages = 2;
  extern __shared__ __align__(16) unsigned char memory[];
  float* stages = reinterpret_cast<float*>(memory);
  __shared__ unsigned long long full[kStages];
  __shared__ unsigned long long empty[kStages];
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(full + i, 1);
      mbarrier_init(empty + i, 64);
    }
  }
  __syncthreads();
  int stage = 0, parity = 0;
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    float* buffer = stages + stage * kCols;
    if (threadIdx.x == 64) {
      mbarrier_wait(empty + stage, parity ^ 1);
      mbarrier_arrive_expect(full + stage, kBytes);
      bulk_load(buffer, x + row * kCols, kBytes, full + stage);
    } else if (threadIdx.x < 64) {
      mbarrier_wait(full + stage, parity);
      for (int i = threadIdx.x; i < kCols; i += 64) y[row * kCols + i] = buffer[i];
      fence_async();
      mbarrier_arrive(empty + stage);
    }
    if (++stage == kStages) stage = 0, parity ^= 1;
  }""",
    block=96,
    most_blocks=2,
    dynamic=2 * 4 * COLS,
)


@pytest.mark.parametrize("rows", [1, 2, 3, 11])
def test_a_ring_of_stages(rows: int) -> None:
    copied(RING, rows)


def test_a_stage_that_is_filled_while_it_is_read() -> None:
    free = "mbarrier_wait(empty + stage, parity ^ 1);"
    text = report(broken(RING, free, ""), 11)
    assert "called mbarrier_arrive_expect, but all 1 arrivals of the phase are there" in text
    filled = "mbarrier_wait(full + stage, parity ^ 1);"  # whether the readers are done or not
    text = report(broken(RING, free, filled), 11)
    assert "race on shared memory: thread 64 wrote what thread" in text
    wrong = report(broken(RING, "parity ^ 1", "parity"), 11)
    assert "an mbarrier of block 0 that never completes" in wrong
    assert "0 of 64 arrivals" in wrong


def test_an_arrival_before_the_last_read() -> None:
    early = broken(RING, "      mbarrier_arrive(empty + stage);\n", "")
    early = broken(
        early, "parity);\n      for", "parity);\n      mbarrier_arrive(empty + stage);\n      for"
    )
    text = report(early, 11)
    assert "race on shared memory: thread" in text
    assert "with no mbarrier_wait between" in text or "or mbarrier between" in text


def test_an_arrival_for_a_warp_needs_a_syncwarp() -> None:
    one = broken(RING, "empty + i, 64", "empty + i, 2")
    arrive = "mbarrier_arrive(empty + stage);"
    source = broken(one, arrive, f"__syncwarp();\n      if (threadIdx.x % 32 == 0) {arrive}")
    copied(source, 11)
    text = report(broken(source, "__syncwarp();", ""), 11)
    assert "race on shared memory: thread 64 wrote what thread 1 read" in text


def test_the_same_parity_in_each_round() -> None:
    text = report(broken(RING, "parity ^= 1", "parity ^= 0"), 11)
    assert "called mbarrier_arrive_expect, but all 1 arrivals of the phase are there" in text
    reader = broken(RING, "mbarrier_wait(full + stage, parity);", "mbarrier_wait(full + stage, 0);")
    assert "race on shared memory" in report(reader, 11)


def test_an_mbarrier_orders_ordinary_accesses() -> None:
    """One warp hands numbers to another, back and forth."""
    source = by_hand(
        """\
  __shared__ float box[32];
  __shared__ unsigned long long filled, taken;
  if (threadIdx.x == 0) {
    mbarrier_init(&filled, 32);
    mbarrier_init(&taken, 32);
  }
  __syncthreads();
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < kCols / 32; ++i) {
    const long long at = blockIdx.x * kCols + i * 32 + lane;
    if (threadIdx.x < 32) {
      mbarrier_wait(&taken, ~i & 1);
      box[lane] = x[at];
      mbarrier_arrive(&filled);
    } else {
      mbarrier_wait(&filled, i & 1);
      y[i % 2 ? at : at ^ 1] = box[i % 2 ? lane : lane ^ 1];
      mbarrier_arrive(&taken);
    }
  }"""
    )
    x = input_of(source, 3)
    assert np.array_equal(run(source, x), x)
    text = report(broken(source, "mbarrier_wait(&filled, i & 1);", ""))
    assert "with no __syncthreads or mbarrier between" in text
    text = report(broken(source, "mbarrier_wait(&taken, ~i & 1);", ""))
    assert "all 32 arrivals" in text or "race on shared memory" in text
    early = broken(source, "      box[lane] = x[at];\n", "")
    early = broken(early, "arrive(&filled);", "arrive(&filled);\n      box[lane] = x[at];")
    assert "race on shared memory" in report(early)


def test_a_wait_does_not_see_arrivals_of_the_phase_in_progress() -> None:
    source = by_hand(
        """\
  __shared__ float box[2];
  __shared__ unsigned long long filled;
  if (threadIdx.x == 0) mbarrier_init(&filled, 2);
  __syncthreads();
  if (threadIdx.x == 0) {
    box[0] = 1;
    mbarrier_arrive(&filled);
    mbarrier_arrive(&filled);
    box[1] = 2;
    mbarrier_arrive(&filled);
  }
  if (threadIdx.x == 32) {
    mbarrier_wait(&filled, 0);
    y[0] = box[1];
  }"""
    )
    text = report(source, 1)
    assert "race on shared memory: thread 32 read what thread 0 wrote" in text
    assert "never written" in report(broken(source, "box[1];", "box[0];"), 1)


# copy_async.

PIECES = by_hand(
    """\
  alignas(16) __shared__ float buffer[kCols];
  const float* row = x + blockIdx.x * kCols;
  copy_async(buffer + threadIdx.x * 4, row + threadIdx.x * 4);
  copy_async_wait();
  __syncthreads();
  for (int i = threadIdx.x; i < kCols; i += 64) y[blockIdx.x * kCols + i] = buffer[i];"""
)


def test_copy_async() -> None:
    copied(PIECES)
    own = broken(PIECES, "__syncthreads();\n", "")
    copied(broken(own, "y[blockIdx.x * kCols + i] = buffer[i]", OWN))


OWN = "y[blockIdx.x * kCols + threadIdx.x * 4 + i / 64] = buffer[threadIdx.x * 4 + i / 64]"


def test_a_missing_copy_async_wait() -> None:
    text = report(broken(PIECES, "copy_async_wait();", ""))
    assert "race on shared memory: thread 63 read what thread 15 copies by copy_async" in text
    assert "with no copy_async_wait between" in text
    own = broken(
        broken(PIECES, "copy_async_wait();", ""), "y[blockIdx.x * kCols + i] = buffer[i]", OWN
    )
    assert "thread 63 read what thread 63 copies by copy_async" in report(own)
    nothing = broken(broken(PIECES, "copy_async_wait();", ""), "= buffer[i];", "= 0;")
    assert "returned without copy_async_wait: on its way is a copy_async of" in report(nothing)


def test_a_copy_async_wait_speaks_for_one_thread() -> None:
    text = report(broken(PIECES, "__syncthreads();", ""))
    assert "race on shared memory: thread" in text
    late = broken(
        PIECES,
        "  copy_async_wait();\n  __syncthreads();",
        "  __syncthreads();\n  copy_async_wait();",
    )
    assert "with no" in report(late)
    one = report(broken(PIECES, "copy_async_wait();", "if (threadIdx.x < 63) copy_async_wait();"))
    assert "what thread 63 copies by copy_async" in one


def test_copy_async_out_of_bounds_or_off_a_boundary() -> None:
    text = report(broken(PIECES, "row + threadIdx.x * 4", "row + threadIdx.x * 4 + 4"), 1)
    assert (
        "thread 63 of block 0 called copy_async for 16 bytes that reach 4 element(s) past" in text
    )
    text = report(broken(PIECES, "row + threadIdx.x * 4", "row + threadIdx.x * 4 + 1"))
    assert "misaligned 16-byte access to x[row 0, col 1]" in text
    text = report(broken(PIECES, "buffer + threadIdx.x * 4,", "buffer + threadIdx.x * 4 + 2,"))
    assert "misaligned 16-byte access, 8 bytes off" in text
    text = report(broken(PIECES, "buffer + threadIdx.x * 4,", "buffer + threadIdx.x * 4 + 4,"))
    assert "not all in the block's shared memory" in text


def test_two_copies_to_one_place() -> None:
    text = report(broken(PIECES, "buffer + threadIdx.x * 4,", "buffer + threadIdx.x / 2 * 4,"))
    assert "thread 1 wrote what thread 0 wrote, with no __syncwarp between" in text
    late = broken(PIECES, "copy_async_wait();", "__syncwarp();\n  copy_async_wait();")
    text = report(broken(late, "buffer + threadIdx.x * 4,", "buffer + threadIdx.x % 32 / 8 * 4,"))
    assert "race on shared memory" in text


# Cooperative grids.

GRID = by_hand(
    """\
  extern __shared__ float mine[];
  __shared__ int own;
  volatile unsigned* flags = reinterpret_cast<unsigned*>(workspace);
  mine[threadIdx.x] = x[blockIdx.x * kCols + threadIdx.x];
  if (threadIdx.x == 0) own = blockIdx.x;
  __syncthreads();
  if (threadIdx.x == 0) flags[blockIdx.x] = blockIdx.x + 1;
  if (threadIdx.x < 32) {
    for (int i = threadIdx.x; i < gridDim.x; i += 32) {
      while (flags[i] != i + 1) __nanosleep(20);
    }
  }
  __syncthreads();
  if (own != blockIdx.x) __builtin_trap();
  y[blockIdx.x * kCols + threadIdx.x] = mine[threadIdx.x];
  unsigned* count = reinterpret_cast<unsigned*>(workspace) + gridDim.x;
  __shared__ unsigned before;
  if (threadIdx.x == 0) before = atomicAdd(count, 1u);
  __syncthreads();
  if (before != gridDim.x - 1) return;
  for (int i = threadIdx.x; i <= gridDim.x; i += kCols) {
    reinterpret_cast<unsigned*>(workspace)[i] = 0;
  }""",
    block=64,
    cols=64,
    dynamic=256,
    cooperative=True,
    workspace=8,
)


def test_a_cooperative_grid() -> None:
    copied(GRID, 7)


def test_a_large_cooperative_grid() -> None:
    wide = Hand(544, 2**31 - 1, 227 * 1024 - 16, True, 8)
    variant = Variant(Problem.of("softmax", "float32", 544), wide)
    text = GRID.text.replace("kCols = 64", "kCols = 544")
    source = dataclasses.replace(GRID, variant=variant, text=text)
    x = input_of(source, 64)
    assert np.array_equal(run(source, x), x)


def test_a_grid_that_is_not_cooperative_cannot_wait_for_later_blocks() -> None:
    alone = Variant(GRID.variant.problem, Hand(64, 2**31 - 1, 256, False, 8))
    source = dataclasses.replace(GRID, variant=alone)
    assert "blocks start in order, so it may only wait" in report(source, 7)


def test_a_flag_that_nobody_sets() -> None:
    text = report(broken(GRID, "flags[i] != i + 1", "flags[i] != i + 2"), 64)
    assert (
        "a spin that never ends: thread 0 of block 0 waits for a change of workspace[byte" in text
    )
    assert "all blocks of the grid run, and none of them can go on" in text
    missing = report(
        broken(GRID, "threadIdx.x == 0) flags", "threadIdx.x == 0 && own != 3) flags"), 7
    )
    assert "thread 3 of block 0 waits for a change of workspace[byte 12]" in missing


def test_a_spin_on_several_flags() -> None:
    both = "while (flags[i] != i + 1 || flags[(i + 1) % gridDim.x] == 0 || flags[0] != 1) {}"
    source = broken(GRID, "while (flags[i] != i + 1) __nanosleep(20);", both)
    copied(source, 40)
    never = broken(source, "flags[0] != 1)", "flags[0] != 9)")
    assert "a spin that never ends" in report(never, 40, seconds=30)


def test_a_spin_on_all_flags_in_turn() -> None:
    loop = """for (bool all = false; !all;) {
    all = true;
    for (int i = threadIdx.x; i < gridDim.x; i += 2) all &= flags[i] == i + 1;
  }"""
    spin = "for (int i = threadIdx.x; i < gridDim.x; i += 32) {\n      while"
    head, _, rest = GRID.text.partition(f"if (threadIdx.x < 32) {{\n    {spin}")
    _, _, tail = rest.partition("    }\n  }\n")
    source = broken(GRID, GRID.text, f"{head}if (threadIdx.x < 2) {loop}\n{tail}")
    copied(source, 140)
    never = broken(source, "flags[i] == i + 1;", "flags[i] == i + 2;")
    assert "a spin that never ends" in report(never, 140, seconds=30)


def test_more_shared_memory_than_a_block_can_have() -> None:
    with pytest.raises(InvalidValueError, match="at most 232448 bytes"):
        run(GRID, input_of(GRID, 1), dynamic_shared=227 * 1024 + 1)


def test_a_cooperative_grid_of_clusters_is_refused() -> None:
    @dataclass(frozen=True)
    class Both(Hand):
        def launch(self, problem: Problem) -> Launch:
            return dataclasses.replace(super().launch(problem), cluster_size=2)

    both = Variant(GRID.variant.problem, Both(64, 2**31 - 1, 256, True, 8))
    with pytest.raises(InvalidValueError, match="no cooperative grid of clusters"):
        run(dataclasses.replace(GRID, variant=both), input_of(GRID, 2))


def test_a_barrier_that_one_warp_reaches_after_a_spin() -> None:
    alone = broken(GRID, "__nanosleep(20);\n    }\n", "{}\n    }\n    return;\n")
    text = report(alone, 7)
    assert "thread(s) 32-63 wait for thread(s) 0-31, which returned from the kernel" in text


GROUPS = by_hand(
    """\
  alignas(16) __shared__ float buffer[2 * kCols];
  const float* row = x + blockIdx.x * kCols;
  copy_async(buffer + threadIdx.x * 4, row + threadIdx.x * 4);
  copy_async_end_group();
  copy_async(buffer + kCols + threadIdx.x * 4, row + threadIdx.x * 4);
  copy_async_end_group();
  copy_async_wait_for_groups<1>();
  float value = buffer[threadIdx.x * 4];
  copy_async_wait_for_groups<0>();
  for (int i = 0; i < 4; ++i) {
    value = i == 0 ? value : buffer[threadIdx.x * 4 + i];
    y[blockIdx.x * kCols + threadIdx.x * 4 + i] = (value + buffer[kCols + threadIdx.x * 4 + i]) / 2;
  }"""
)


def test_a_thread_waits_for_groups_of_its_copies() -> None:
    copied(GROUPS)
    early = broken(GROUPS, "wait_for_groups<1>", "wait_for_groups<2>")
    assert "thread 0 read what thread 0 copies by copy_async" in report(early)
    last = broken(GROUPS, "  copy_async_wait_for_groups<0>();\n", "")
    assert "with no copy_async_wait between" in report(last)
    open_group = broken(
        GROUPS,
        "  copy_async_end_group();\n  copy_async_wait_for_groups<1>",
        "  copy_async_wait_for_groups<1>",
    )
    assert "copies by copy_async" in report(open_group)
