"""Thread block clusters on the emulator: right kernels, and reports on those that err."""

from __future__ import annotations

import numpy as np
import pytest

from softgen.devices.emulator import run
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.cluster import Cluster
from softgen.strategies.variants import Variant
from tests.helpers.emulator_helpers import broken, input_of, report_of, run_rows
from tests.helpers.single import check

PUSH = "push(part, slots + rank * kWarps + thread / 32, &barrier, lane);"
EXPECT = "mbarrier_expect(&barrier, sizeof(slots));"
WAIT = "mbarrier_wait(&barrier);\n\n  MaxSum whole"


def cluster(cols: int = 1000, dtype: str = "float32", size: int = 4) -> Source:
    """Return a kernel with blocks of two warps: 2 x `size` pairs a block."""
    packs = -(-cols // (2 * 64 * size)) + 1
    return render(
        Variant(Problem.of("softmax", dtype, cols), Cluster(2, 2 * packs, 64, size, 1, False))
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_cluster_computes_softmax(size: int, dtype: str) -> None:
    source = cluster(2001, dtype, size)
    x = input_of(source, 5)
    y = run(source, x)
    assert check(y, x, source.variant.problem).ok
    assert np.array_equal(run(source, x, in_place=True), y)


def test_more_bytes_expected_than_pushed() -> None:
    text = report_of(broken(cluster(), EXPECT, "mbarrier_expect(&barrier, sizeof(slots) + 8);"))
    assert "an mbarrier of block 0 that never completes: it got 64 of the 72 bytes" in text
    assert "thread(s) 0-63 wait for it" in text
    assert "threads 0-63 of block 3 wait at mbarrier_wait" in text


def test_fewer_bytes_expected_than_pushed() -> None:
    text = report_of(broken(cluster(), EXPECT, "mbarrier_expect(&barrier, sizeof(slots) - 8);"))
    assert "pushed to block 0, whose mbarrier then got 64 bytes and expects 56" in text
    assert ".cu:" in text


def test_no_expectation_at_all() -> None:
    text = report_of(broken(cluster(), "if (thread == 0) " + EXPECT, ""))
    assert "called mbarrier_wait on a barrier without mbarrier_expect" in text


def test_a_missing_cluster_wait() -> None:
    text = report_of(broken(cluster(), "cluster_wait();  //", "//"))
    assert "called mbarrier_wait, with no barrier after the mbarrier_expect of thread 0" in text


def test_a_push_before_the_cluster_wait() -> None:
    early = broken(cluster(), "cluster_wait();  //", "//")
    text = report_of(broken(early, "mbarrier_wait(&barrier);", "cluster_wait();\n  " + WAIT[:24]))
    assert "pushed to block 1, whose mbarrier it cannot know to be ready" in text
    assert "no cluster barrier between the mbarrier_expect and the push" in text


def test_a_missing_cluster_arrive() -> None:
    text = report_of(broken(cluster(), "cluster_arrive();\n\n", "\n"))
    assert "of block 0 called cluster_wait without cluster_arrive" in text


def test_an_mbarrier_announced_after_the_arrival() -> None:
    source = broken(cluster(), "if (thread == 0) " + EXPECT, "")
    late = broken(source, "cluster_arrive();", "cluster_arrive(); if (thread == 0) " + EXPECT)
    assert "with no barrier after the mbarrier_expect of thread 0" in report_of(late)


def test_two_arrivals() -> None:
    text = report_of(broken(cluster(), "cluster_arrive();", "cluster_arrive(); cluster_arrive();"))
    assert "called cluster_arrive twice without cluster_wait between" in text


def test_divergent_arrivals() -> None:
    split = "if (rank == 1 && lane == 5)\n cluster_arrive();\n else\n cluster_arrive();"
    text = report_of(broken(cluster(), "cluster_arrive();", split))
    assert "divergent cluster barrier: " in text
    assert "of block 1 arrived at" in text


def test_a_thread_that_leaves_before_the_cluster_barrier() -> None:
    text = report_of(
        broken(cluster(), "cluster_arrive();", "if (rank == 2) return;\n cluster_arrive();")
    )
    assert "block 2 ended without a wait at its mbarrier, which got 0 of 64 bytes" in text
    leave = "if (rank == 2 && thread > 60) return;\n cluster_arrive();"
    text = report_of(broken(cluster(), "cluster_arrive();", leave))
    assert "names absent lanes: lane(s) 29-31 returned from the kernel" in text


def test_a_cluster_barrier_that_threads_do_not_reach() -> None:
    leave = "if (rank == 2 && thread >= 32) return;\n  cluster_arrive();"
    text = report_of(broken(cluster(), "cluster_arrive();", leave))
    assert "a cluster barrier that not all threads of the cluster reach" in text
    assert "missing thread(s) 32-63 of block 2." in text


def test_a_push_to_a_slot_that_has_its_pair() -> None:
    text = report_of(broken(cluster(), PUSH, PUSH.replace("thread / 32", "0")))
    assert "thread 32 of block 3 pushed to block 0, and overwrote what thread 0 of block" in text


def test_a_slot_that_nobody_pushes_to() -> None:
    """The bytes are all there, but the last pair lies in an array of its own."""
    source = broken(cluster(), "slots[kSlots];", "slots[kSlots + 1];")
    source = broken(source, EXPECT, "mbarrier_expect(&barrier, sizeof(slots) - 8);")
    moved = PUSH.replace(
        "rank * kWarps + thread / 32", "rank * kWarps + thread / 32 + (rank == 3 && thread > 31)"
    )
    text = report_of(broken(source, PUSH, moved))
    assert "uninitialised shared memory" in text


def test_a_missing_mbarrier_wait_is_a_race() -> None:
    text = report_of(broken(cluster(), "mbarrier_wait(&barrier);", ""))
    assert "race on shared memory" in text or "ended without a wait" in text


def test_a_wait_by_some_threads_orders_nothing_for_the_others() -> None:
    text = report_of(broken(cluster(), WAIT, "if (thread >= 32) " + WAIT))
    assert "with no mbarrier_wait between" in text


def test_a_block_that_ends_while_a_peer_may_push() -> None:
    text = report_of(broken(cluster(), WAIT, "if (rank == 1) return;\n  " + WAIT))
    assert "block 1 ended without a wait at its mbarrier" in text
    assert "another block may still push to it" in text


def test_a_push_that_races_with_the_blocks_own_write() -> None:
    clear = "cluster_wait();\n  if (lane < 8) slots[lane] = nothing();\n  //"
    text = report_of(broken(cluster(), "cluster_wait();  //", clear))
    assert "race" in text
    assert "shared memory" in text or "no cluster barrier between" in text


def test_a_push_out_of_the_cluster_or_of_shared_memory() -> None:
    text = report_of(broken(cluster(), "&barrier, lane);", "&barrier, lane + 1);"))
    assert "pushed to rank 4 of a cluster of 4" in text
    text = report_of(broken(cluster(), PUSH, PUSH.replace("slots +", "slots + 64 +")))
    assert "outside of its shared memory" in text


def test_static_shared_memory_is_each_blocks_own() -> None:
    source = cluster()
    mark = "__shared__ int own;\n  if (thread == 0) own = cluster_rank();\n  __syncthreads();\n"
    use = "cluster_wait();\n  if (own != rank) __builtin_trap();\n  //"
    marked = broken(
        broken(source, "cluster_arrive();", mark + "cluster_arrive();"), "cluster_wait();  //", use
    )
    run_rows(marked, 2)
