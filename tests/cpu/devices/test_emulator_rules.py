"""The emulator stops kernels that break a rule of CUDA, and says which rule, who and where."""

from __future__ import annotations

import re

import pytest

from softgen.source.render import Source
from tests.helpers.emulator_helpers import broken, report_of, run_rows, source_of, written


def report(source: Source, rows: int = 7, **options: int | bool) -> str:
    """Return the report that stops `source`."""
    return report_of(source, rows, **options)


# Sabotage of the real templates.


@pytest.mark.parametrize("strategy", ["online", "safe"])
def test_a_dropped_syncthreads_is_a_race(strategy: str) -> None:
    text = report(broken(source_of(strategy, 1000), "__syncthreads();", ""))
    assert "race on shared memory" in text
    assert "no __syncthreads between" in text
    assert text.count(".cu:") == 2


def test_a_dropped_second_syncthreads_is_a_race_with_the_next_row() -> None:
    source = source_of("online", 1000)
    text = source.text
    second = text.index("__syncthreads();", text.index("__syncthreads();") + 1)
    dropped = broken(source, text, text[:second] + text[second:].replace("__syncthreads();", "", 1))
    assert "race on shared memory" in report(dropped, rows=3, grid=1)


def test_a_shuffle_mask_that_names_lanes_that_left() -> None:
    """Groups without a row leave early while the mask still names all 32 lanes."""
    source = source_of("warp", 64)
    leave = broken(source, "if (warp_row >= rows)", "if (warp_row + group_of_warp >= rows)")
    text = report(leave, rows=7)
    assert "__shfl_xor_sync(0xffffffff)" in text
    assert "names absent lanes: lane(s) 24-31 returned from the kernel" in text
    assert "in warp 1 of block 0" in text


def test_a_store_past_the_end_of_the_row() -> None:
    text = report(broken(source_of("safe", 1000), "row_y[col]", "row_y[col + 1]"))
    assert "1 element(s) past the end of y, whose last element is y[row 6, col 999]" in text
    assert "thread 103 of block 6 wrote 4 bytes" in text


def test_a_load_past_the_end_of_the_row() -> None:
    text = report(broken(source_of("safe", 1000), "row_x[col]", "row_x[col + 1]"))
    assert "1 element(s) past the end of x" in text


def test_a_load_before_the_start() -> None:
    text = report(broken(source_of("safe", 1000), "row_x[col]", "row_x[col - 2]"))
    assert "2 element(s) before the start of x" in text


def test_a_misaligned_vector_load() -> None:
    text = report(source_of("warp", 64), x_offset=1)
    assert "misaligned 16-byte access to x[row 0, col 0], 4 bytes off a multiple of 16" in text


def test_an_element_that_is_never_written() -> None:
    skip = broken(source_of("safe", 100), "row_y[col] =", "if (row != 2 || col < 97) row_y[col] =")
    assert "3 of 700 elements of y were never written; the first is y[row 2, col 97]" in report(
        skip
    )


def test_an_element_written_by_two_threads() -> None:
    text = report(broken(source_of("safe", 100), "row_y[col]", "row_y[col / 2]"))
    assert (
        "thread 1 of block 0 wrote y[row 0, col 0], which thread 0 of block 0 had written" in text
    )


def test_a_store_to_x() -> None:
    text = report(broken(source_of("safe", 100), "row_y[col]", "const_cast<X*>(row_x)[col]"))
    assert "thread 0 of block 0 wrote x[row 0, col 0], but x is const" in text


def test_a_read_of_what_an_in_place_neighbour_overwrote() -> None:
    source = source_of("safe", 100)
    loads = source.text.count("row_x[col]")
    late = broken(source, source.text, source.text.replace("row_x[col]", "row_x[(col + 99) % 100]"))
    assert loads > 1
    text = report(late, in_place=True)
    assert "thread 1 of block 0 read x[row 0, col 0] after thread 0 of block 0 had overwrit" in text


# Kernels written for one rule each.


def test_a_barrier_that_threads_left() -> None:
    text = report(written("if (threadIdx.x >= 40) return; __syncthreads();"), 1)
    assert "thread(s) 0-39 wait for thread(s) 40-63, which returned from the kernel" in text


def test_a_divergent_barrier_names_both_places() -> None:
    text = report(written("if (threadIdx.x < 9) __syncthreads();\nelse\n  __syncthreads();"), 1)
    assert "divergent barrier" in text
    assert ".cu:3)" in text
    assert ".cu:5)" in text


def test_a_shuffle_while_others_wait_at_a_barrier() -> None:
    body = "if (threadIdx.x % 32 < 8) __shfl_sync(~0u, 1, 0);\n__syncthreads();"
    assert "lane(s) 8-31 wait at __syncthreads" in report(written(body), 1)


def test_masks_that_disagree_are_a_deadlock() -> None:
    body = "__syncwarp(threadIdx.x % 2 ? 0xffffffff : 0x55555555 | 2);"
    text = report(written(body), 1)
    assert "wait in another call or with another mask" in text
    assert "wait in __syncwarp(0x55555557)" in text


def test_a_caller_outside_of_its_own_mask() -> None:
    text = report(written("__syncwarp(0xff);"), 1)
    assert "thread 8 of block 0 is lane 8, which its own mask does not name" in text


def test_a_shuffle_that_reads_a_lane_outside_of_the_mask() -> None:
    body = "if (threadIdx.x % 32 < 8) __shfl_xor_sync(0xff, 1, 8);"
    assert "reads lane 8, which the mask does not name" in report(written(body), 1)


def test_a_width_that_is_no_power_of_two() -> None:
    assert "width 12" in report(written("__shfl_xor_sync(~0u, 1, 1, 12);"), 1)


def test_a_read_of_shared_memory_that_nobody_wrote() -> None:
    body = (
        "__shared__ float s[64];\nif (threadIdx.x) s[threadIdx.x] = 1;\n__syncthreads();\n"
        "y[threadIdx.x] = s[threadIdx.x];"
    )
    text = report(written(body), 1)
    assert "uninitialised shared memory: thread 0 read byte 0 of static shared memory" in text


def test_shared_memory_does_not_survive_a_block() -> None:
    body = (
        "__shared__ float s[64];\nif (blockIdx.x == 0) s[threadIdx.x] = 1;\n"
        "y[64 * blockIdx.x + threadIdx.x] = s[threadIdx.x];"
    )
    assert "block 1: uninitialised shared memory" in report(written(body), 2)


def test_a_shared_write_after_another_threads_read_is_a_race() -> None:
    body = (
        "__shared__ float s[64];\ns[threadIdx.x] = 1;\n__syncthreads();\n"
        "y[threadIdx.x] = s[threadIdx.x ^ 32];\ns[threadIdx.x] = 2;"
    )
    text = report(written(body), 1)
    assert re.search(r"race on shared memory: thread (\d+) (wrote|read) what thread (\d+) ", text)
    assert "with no __syncthreads between" in text


@pytest.mark.parametrize("writer", [0, 31, 32, 70, 127])
def test_a_write_after_reads_of_many_warps_is_a_race_whoever_writes(writer: int) -> None:
    body = (
        "__shared__ float s;\nif (threadIdx.x == 0) s = 1;\n__syncthreads();\n"
        "if (threadIdx.x < kCols) y[threadIdx.x] = s;\nelse if (s == 7) return;\n__syncwarp();\n"
        f"%sif (threadIdx.x == {writer}) s = 2;"
    )
    text = report(written(body % "", block=128), 1)
    named = re.search(r"race on shared memory: thread (\d+) (wrote|read) what thread (\d+) ", text)
    assert named
    assert int(named[1]) // 32 != int(named[3]) // 32
    assert writer in (int(named[1]), int(named[3]))
    run_rows(written(body % "__syncthreads();\n", block=128), 1)


def test_lanes_are_ordered_by_syncwarp_and_not_by_a_shuffle() -> None:
    body = (
        "__shared__ float s[64];\ns[threadIdx.x] = x[threadIdx.x];\n%s;\n"
        "y[threadIdx.x] = s[threadIdx.x ^ 1];"
    )
    run_rows(written(body % "__syncwarp()"), 1)
    text = report(written(body % "__shfl_sync(~0u, 1, 0)"), 1)
    assert "no __syncwarp between" in text


def test_syncwarp_orders_only_the_lanes_it_names() -> None:
    body = (
        "__shared__ float s[64];\ns[threadIdx.x] = 1;\n"
        "__syncwarp(threadIdx.x % 32 < 16 ? 0xffff : 0xffff0000);\n"
        "y[threadIdx.x] = s[threadIdx.x ^ 16];"
    )
    text = report(written(body), 1)
    pair = re.search(r"race on shared memory: thread (\d+) \w+ what thread (\d+) ", text)
    assert pair
    assert int(pair[1]) ^ int(pair[2]) == 16
    assert "with no __syncwarp between" in text


def test_16_bit_neighbours_in_one_word_do_not_race() -> None:
    body = (
        "__shared__ short s[64];\ns[threadIdx.x] = 1;\n__syncthreads();\n"
        "y[threadIdx.x] = s[threadIdx.x];"
    )
    run_rows(written(body), 1)


@pytest.mark.parametrize("byte", range(4))
@pytest.mark.parametrize(
    ("before", "lanes", "unknown"),
    [("", 0b1011, 2), ("", 0b1101, 1), ("__syncthreads();", 0b1010, 0)],
)
def test_bytes_that_were_read_together_and_apart(
    before: str, lanes: int, unknown: int, byte: int
) -> None:
    """Of a word that others read one lane reads one byte more, or first; a last lane writes one.

    It does not know of one reader: that of the one byte, or of the whole word. In the last case the
    word was read together before the barrier, and the one byte is read before the word is.
    """
    apart = "if (threadIdx.x == 2) seen += bytes[1];"
    together = "if (threadIdx.x < 2) seen += s;"
    body = (
        "__shared__ int s;\nif (threadIdx.x == 0) s = 1;\n__syncthreads();\n"
        "unsigned char* bytes = reinterpret_cast<unsigned char*>(&s);\nfloat seen = 0;\n"
    )
    if before:
        body += f"{together}\n{before}\n"
        apart, together = apart.replace("== 2", "== 0"), together.replace("< 2", "== 1")
    body += (
        f"{apart}\n{together}\ny[threadIdx.x] = seen;\n"
        f"if (threadIdx.x < 4 && {lanes} >> threadIdx.x & 1) __syncwarp({lanes});\n"
        f"if (threadIdx.x == 3) bytes[{byte}] = 2;"
    )
    if unknown != 1 and byte != 1:
        run_rows(written(body), 1)
        return
    text = report(written(body), 1)
    assert f"race on shared memory: thread 3 wrote what thread {unknown} read" in text
    assert f"(byte {byte} of static shared memory" in text


def test_an_index_past_a_shared_array() -> None:
    body = "__shared__ float s[32];\ns[threadIdx.x] = 1;"
    assert re.search(r"index 32 out of bounds of 'float ?\[32\]'", report(written(body), 1))


def test_a_pointer_past_shared_memory() -> None:
    body = "__shared__ float s[32];\nfloat* p = s;\np[threadIdx.x] = 1;"
    text = report(written(body), 1)
    assert "thread 32 of block 0: access of 'float' outside of its variable, at" in text


def test_a_kernel_that_does_not_end() -> None:
    text = report(written("while (true) __syncthreads();"), 1, seconds=1)
    assert "did not end within 1 s" in text


def test_a_stack_overflow_says_so() -> None:
    body = "volatile char big[1 << 20];\nfor (int i = 0; i < (1 << 20); i += 64) big[i] = 1;"
    assert "overflowed its stack" in report(written(body), 1)


def test_an_illegal_instruction_names_the_thread() -> None:
    text = report(written("if (threadIdx.x == 5) __builtin_trap();"), 1)
    assert "thread 5 of block 0 stopped with signal" in text


def test_a_wild_pointer() -> None:
    text = report(written("y[1ll << 50] = 1;"), 1)
    assert "thread 0 of block 0 touched address 0x" in text
