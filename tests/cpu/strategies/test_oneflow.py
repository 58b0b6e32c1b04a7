"""OneFlow's dispatch and kernels, as its softmax.cuh at commit 25c8978 has them.

The tables are read from the header by hand. Blocks of staged rows follow from the occupancy rules
of the CUDA programming guide, with the registers and the shared memory of the header's kernels as
nvcc 13.0 compiles them. An H200 has 132 SMs of 2048 threads: 32 waves are 67584 blocks of 128.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from softgen.devices.emulator import Job, build
from softgen.errors import EmulationError, IllegalVariantError
from softgen.problems.arch import KNOWN, Arch, arch_named
from softgen.problems.dtypes import DType
from softgen.problems.functions import all_functions
from softgen.problems.numerics import encode
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.base import Strategy
from softgen.strategies.lessons.oneflowblock import OneflowBlock
from softgen.strategies.lessons.oneflowwarp import OneflowWarp
from softgen.strategies.oneflow import oneflow_dispatch
from softgen.strategies.registry import all_strategies
from softgen.strategies.select import select
from softgen.strategies.variants import Variant, parse_name
from tests.helpers.emulator_helpers import broken
from tests.helpers.single import BOTH, check

H200 = arch_named("sm_90")
KIBI = Problem.of("softmax", "float32", 1024)


# dtype, columns, rows; packs, elements a lane, lanes, rows at once, padding; blocks of the launch.
NARROW = [
    # One pack a lane on the fewest lanes; two rows at a time if the rows are even.
    ("float32", 1, 4, (1, 1, 1, 2, False), 1),
    ("float32", 1, 5, (1, 1, 1, 1, False), 1),
    ("float32", 2, 4, (2, 2, 1, 2, False), 1),
    ("bfloat16", 3, 4, (1, 1, 4, 2, True), 1),
    ("float32", 5, 700, (1, 1, 8, 2, True), 22),
    ("float16", 6, 701, (2, 2, 4, 1, True), 22),
    ("float32", 8, 4, (2, 2, 4, 2, False), 1),
    ("float32", 31, 4096, (1, 1, 32, 2, True), 512),
    ("float16", 32, 49152, (2, 2, 16, 2, False), 3072),
    ("float32", 64, 4096, (2, 2, 32, 2, False), 512),
    # Wider: all 32 lanes, one row, the fewest packs that cover it.
    ("float32", 33, 4096, (1, 2, 32, 1, True), 1024),
    ("float32", 66, 4096, (2, 4, 32, 1, True), 1024),
    ("float16", 96, 4096, (2, 4, 32, 1, True), 1024),
    ("float32", 97, 4096, (1, 4, 32, 1, True), 1024),
    ("float16", 512, 49152, (2, 16, 32, 1, False), 12288),
    ("float32", 1000, 4096, (2, 32, 32, 1, True), 1024),
    ("bfloat16", 1000, 1_000_000, (2, 32, 32, 1, True), 67584),
    ("float32", 1023, 4096, (1, 32, 32, 1, True), 1024),
]

# dtype, columns, rows; pack, staged, threads; blocks of the launch.
WIDE = [
    # Staged as float32, by as many threads as lower the blocks of an SM no further than 128 do.
    ("float16", 1024, 49152, (2, True, 128), 49152),
    ("float32", 1024, 100_000, (2, True, 128), 67584),
    ("bfloat16", 2048, 4096, (2, True, 128), 4096),
    ("float16", 4096, 49152, (2, True, 128), 49152),
    ("float32", 5000, 20000, (2, True, 128), 20000),
    ("float32", 8192, 50000, (2, True, 256), 33792),
    ("float16", 8192, 4096, (2, True, 256), 4096),
    # At 12000 columns an SM holds 4 blocks of 128 and of 256 threads. It holds 4 of 512 too where a
    # thread has 32 registers, as by single elements, and 3 where it has 33, as in packs of two.
    ("float32", 12000, 4096, (2, True, 256), 4096),
    ("bfloat16", 12000, 4096, (2, True, 256), 4096),
    ("float32", 12001, 20000, (1, True, 512), 16896),
    # 48 KB hold 12272 columns beside the reductions of 128 threads, and not those of 256.
    ("float32", 12272, 4096, (2, True, 128), 4096),
    ("float32", 12274, 4096, (2, False, 1024), 4096),
    ("float32", 12672, 4096, (2, False, 1024), 4096),
    ("bfloat16", 16384, 20000, (2, False, 1024), 8448),
    ("float32", 4194304, 128, (2, False, 1024), 128),
    ("float32", 128255, 128, (1, False, 1024), 128),
    # float64 is never held.
    ("float64", 32, 4096, (2, False, 1024), 4096),
    ("float64", 2048, 4096, (2, False, 1024), 4096),
    ("float64", 5, 1, (1, False, 1024), 1),
]


@pytest.mark.parametrize(("dtype", "cols", "rows", "knobs", "blocks"), NARROW)
def test_rows_for_a_warp(
    dtype: str, cols: int, rows: int, knobs: tuple[int, int, int, int, bool], blocks: int
) -> None:
    for function in BOTH:
        problem = Problem.of(function, dtype, cols)
        chosen = oneflow_dispatch(problem, rows, H200)
        assert chosen == OneflowWarp(*knobs, 128, 67584)
        assert chosen.launch(problem).grid(rows) == blocks


@pytest.mark.parametrize(("dtype", "cols", "rows", "knobs", "blocks"), WIDE)
def test_rows_for_a_block(
    dtype: str, cols: int, rows: int, knobs: tuple[int, bool, int], blocks: int
) -> None:
    problem = Problem.of("softmax", dtype, cols)
    chosen = oneflow_dispatch(problem, rows, H200)
    assert chosen == OneflowBlock(*knobs, 132 * 2048 // knobs[2] * 32)
    launch = chosen.launch(problem)
    assert launch.grid(rows) == blocks
    assert launch.dynamic_shared_bytes == (4 * cols if knobs[1] else 0)


def test_1024_columns_are_for_a_warp_in_log_softmax_only() -> None:
    chosen = oneflow_dispatch(Problem.of("log_softmax", "float16", 1024), 4096, H200)
    assert chosen == OneflowWarp(2, 32, 32, 1, False, 128, 67584)
    assert isinstance(oneflow_dispatch(KIBI, 4096, H200), OneflowBlock)


def test_the_block_and_the_grid_depend_on_the_device() -> None:
    problem = Problem.of("softmax", "float32", 6000)
    chosen = {name: oneflow_dispatch(problem, 4096, arch).label for name, arch in KNOWN.items()}
    assert chosen["sm_75"] == "oneflowblock_p2_st_b512_n2560"  # 2 blocks of 24 KB in 64 KB
    assert chosen["sm_86"] == "oneflowblock_p2_st_b256_n15744"  # 4 of 25 KB in 100 KB, 3 of 512
    assert chosen["sm_90"] == "oneflowblock_p2_st_b128_n67584"  # 9, and 8 of 256 threads
    half = oneflow_dispatch(problem, 4096, H200.with_multiprocessors(66))
    assert half.knobs["blocks"] == 33792


def test_a_wider_result_decides_the_arithmetic() -> None:
    doubled = Problem.of("softmax", "float32", 32, out_dtype="float64")
    assert oneflow_dispatch(doubled, 4096, H200) == OneflowBlock(2, False, 1024, 8448)
    single = Problem.of("softmax", "bfloat16", 4096, out_dtype="float32")
    assert oneflow_dispatch(single, 4096, H200) == OneflowBlock(2, True, 128, 67584)


def test_rows_that_start_anywhere_have_no_packs() -> None:
    """OneFlow does not ask: it would fault."""
    problem = Problem.of("softmax", "float32", 1000, alignment=1)
    assert oneflow_dispatch(problem, 4096, H200).knobs["pack_size"] == 1


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("arch", KNOWN.values(), ids=str)
def test_every_choice_is_legal_and_has_a_name(dtype: DType, arch: Arch) -> None:
    for cols in [*range(1, 200), *range(990, 1030), 2048, 5001, 12200, 12272, 128256]:
        for alignment in (None, 1):
            problem = Problem.of("log_softmax", dtype, cols, alignment=alignment)
            for rows in (1, 2):
                variant = Variant(problem, oneflow_dispatch(problem, rows, arch))
                variant.check(arch)
                assert parse_name(variant.name) == variant


def test_other_functions_are_not_oneflows() -> None:
    for function in all_functions():
        if function in BOTH:
            continue
        problem = Problem.of(function, "float32", 1000)
        message = "OneFlow's kernels compute softmax and log_softmax, not .*choose another variant"
        with pytest.raises(IllegalVariantError, match=message):
            select(problem, 64, H200, "oneflow")
        for name in ("oneflowblock_p2_st_b128_n64", "oneflowwarp_p2_c32_g32_r1_pad_b128_n64"):
            with pytest.raises(IllegalVariantError, match=f"does not compute {problem.computed}"):
                select(problem, 64, H200, name)


HALVES = Problem.of("softmax", "float16", 1000)


@pytest.mark.parametrize(
    ("setting", "problem", "message"),
    [
        (OneflowBlock(4, True, 128, 8), KIBI, "OneFlow's packs have 1 or 2 elements"),
        (OneflowBlock(2, True, 128, 0), KIBI, "blocks must be from 1 to 2147483647"),
        (OneflowBlock(2, True, 100, 8), KIBI, "block_size must be a multiple of 32"),
        (OneflowBlock(2, True, 128, 8), Problem.of("softmax", "float32", 1001), "even widths"),
        (OneflowBlock(2, True, 128, 8), Problem.of("softmax", "float64", 1000), "stages no row"),
        (
            OneflowBlock(2, True, 128, 8),
            Problem.of("softmax", "float16", 12300),
            "needs 49264 bytes of shared memory, and OneFlow asks for no more than 49152",
        ),
        (OneflowWarp(2, 32, 32, 1, False, 128, 8), HALVES, "covers 1024 columns, and must cover 1"),
        (OneflowWarp(2, 32, 32, 1, True, 128, 8), KIBI, "must cover more than 1024 with padding"),
        (OneflowWarp(2, 34, 32, 1, True, 128, 8), HALVES, "holds 32 elements of a row at most"),
        (OneflowWarp(2, 32, 32, 2, True, 128, 8), HALVES, "rows of one pack a lane"),
        (OneflowWarp(2, 32, 24, 1, True, 128, 8), HALVES, "power of two up to 32"),
        (
            OneflowWarp(2, 32, 32, 1, True, 128, 8),
            Problem.of("softmax", "float64", 1000),
            "holds no row of float64 in registers",
        ),
    ],
    ids=lambda value: getattr(value, "label", ""),
)
def test_a_broken_rule_names_what_is_accepted(
    setting: Strategy, problem: Problem, message: str
) -> None:
    with pytest.raises(IllegalVariantError, match=message):
        setting.check(problem, H200)


def rows_for(cols: int, rows: int = 9) -> np.ndarray:
    """Return rows of ordinary values, of long stretches of -inf, and of nothing else."""
    x = np.random.default_rng(cols).standard_normal((rows, cols)) * 4
    x[1, : cols // 2] = -np.inf
    x[2, (cols + 1) // 2 :] = -np.inf
    x[3] = -np.inf
    x[4, cols // 3] = np.nan
    x[5, cols // 3] = np.inf
    x[6] = -3e4
    return x


def of(function: str, dtype: str, cols: int, strategy: Strategy) -> Source:
    return render(Variant(Problem.of(function, dtype, cols), strategy))


# Grids smaller than the rows, so that blocks stride; groups of lanes whose last rows are absent.
KERNELS = [
    of("softmax", "float32", 7, OneflowWarp(1, 1, 8, 2, True, 64, 1)),
    of("log_softmax", "bfloat16", 32, OneflowWarp(2, 2, 16, 2, False, 32, 2)),
    of("softmax", "float32", 100, OneflowWarp(2, 4, 32, 1, True, 64, 2)),
    of("softmax", "float16", 321, OneflowWarp(1, 11, 32, 1, True, 64, 2)),
    of("softmax", "float16", 1024, OneflowBlock(2, True, 64, 2)),
    of("softmax", "float32", 1001, OneflowBlock(1, True, 128, 2)),
    of("log_softmax", "float32", 500, OneflowBlock(2, True, 64, 3)),
    of("softmax", "float32", 500, OneflowBlock(2, False, 64, 2)),
    of("log_softmax", "bfloat16", 333, OneflowBlock(1, False, 64, 2)),
    of("softmax", "float64", 600, OneflowBlock(2, False, 64, 2)),
]


def test_the_kernels_agree_with_float64_in_place_too() -> None:
    """Each launch goes out of place, then in place: the bits are the same."""
    inputs = [
        (s, encode(rows_for(s.variant.problem.cols), s.variant.problem.dtype)) for s in KERNELS
    ]
    jobs = [Job(source, x, in_place=where) for source, x in inputs for where in (False, True)]
    results = build(KERNELS).run_all(jobs)
    for job, y, again in zip(jobs[::2], results[::2], results[1::2], strict=True):
        assert not isinstance(y, EmulationError), y
        assert not isinstance(again, EmulationError), again
        variant = job.source.variant
        error = variant.strategy.exponent_error(variant.problem)
        accuracy = check(y, job.x, variant.problem, error)
        assert accuracy.ok, f"{job.source.name}: {accuracy.message}"
        assert y.tobytes() == again.tobytes()


# Maxima from which x - max is exact, and is not: around 64 the roundings add up most.
MAXIMA = (0.0, 1.3, 3.7, 100.3)


def far_rows() -> np.ndarray:
    """Return float32 rows whose results reach down to 1e-33."""
    below = np.random.default_rng(2).uniform(0, 76, (len(MAXIMA), 1000))
    below[:, 0] = 0
    return (np.array(MAXIMA)[:, None] - below).astype(np.float32)


def test_float32_results_are_as_far_off_as_oneflows_exponent_makes_them() -> None:
    """The worst is off by three times what others may be, and within 2e-6 + 9e-8 |x - max|."""
    problem = Problem.of("softmax", "float32", 1000)
    x = far_rows()
    for strategy in (
        OneflowWarp(2, 32, 32, 1, True, 64, 2),
        OneflowBlock(2, True, 128, 2),
        OneflowBlock(2, False, 128, 2),
    ):
        source = render(Variant(problem, strategy))
        (y,) = build([source]).run_all([Job(source, x)])
        assert not isinstance(y, EmulationError), y
        assert check(y, x, problem).worst > 6e-6
        assert check(y, x, problem, strategy.exponent_error(problem)).worst < 2e-6 - 1e-7


def test_a_worse_exponent_is_found() -> None:
    """1.442693 for log2(e) puts a result of 1e-29 off by 9e-5, of which 8e-6 are allowed."""
    problem = Problem.of("softmax", "float32", 1000)
    source = render(Variant(problem, OneflowBlock(2, True, 128, 2)))
    damaged = broken(source, "1.44269504f", "1.442693f")
    x = far_rows()
    (y,) = build([damaged]).run_all([Job(damaged, x)])
    assert not isinstance(y, EmulationError), y
    assert not check(y, x, problem, source.variant.strategy.exponent_error(problem)).ok


def test_no_other_strategy_may_be_further_off() -> None:
    errors = {
        (dtype, setting.name): setting.exponent_error(problem)
        for dtype in ("float32", "float64")
        for problem in (Problem.of("softmax", dtype, 1000), Problem.of("softmax", dtype, 50257))
        for kind in all_strategies()
        for setting in kind.candidates(problem, 64, H200)
    }
    assert {key: error for key, error in errors.items() if error} == {
        ("float32", "oneflowwarp"): 9e-8,
        ("float32", "oneflowblock"): 9e-8,
    }
    assert len(errors) > 20


def test_loads_exchanges_and_barriers_are_as_many_as_oneflows() -> None:
    """Of one launch: accesses of memory, of shared memory, exchanges and barriers, each of threads.

    A reduction of 64 threads: 5 exchanges of each; 2 stores of slots, the load of one,
    the store of the result, and its load by all; 2 barriers of all.
    """
    reduced = 4 + 64
    expected = {
        # 9 rows of 512 packs, loaded and stored; staged once, replaced once, read twice.
        KERNELS[4].name: (9 * 2 * 512, 9 * (1024 * 4 + 2 * reduced), 9 * 10 * 64, 9 * 4 * 64),
        # 9 rows of 250 packs, loaded three times and stored.
        KERNELS[7].name: (9 * 4 * 250, 9 * 2 * reduced, 9 * 10 * 64, 9 * 4 * 64),
        # 9 rows of 16 packs, loaded and stored; 4 exchanges of each lane for each of 2
        # reductions of each of 2 rows; a warp takes 4 rows, so there are 3.
        KERNELS[1].name: (9 * 2 * 16, 0, 3 * 32 * 2 * 2 * 4, 0),
    }
    jobs = [
        Job(source, encode(rows_for(source.variant.problem.cols), source.variant.problem.dtype))
        for source in KERNELS
        if source.name in expected
    ]
    for job, result in zip(jobs, build(KERNELS).run_counted(jobs), strict=True):
        assert not isinstance(result, EmulationError), result
        work = result[1]
        found = (work.accesses, work.shared, work.exchanges, work.barriers)
        assert found == expected[job.source.name], job.source.name


PAST_THE_END = "kWhole || row + r < rows"
BARRIER = "  __syncthreads();\n  if (threadIdx.x == 0) {"
LAST_BARRIER = "  __syncthreads();\n  return slots"


@pytest.mark.parametrize(
    ("kernel", "old", "new", "message"),
    [
        (KERNELS[1], PAST_THE_END, "true", "past the end of x"),
        (KERNELS[0], "&& column < run_cols()", "", "past the end of x"),
        (KERNELS[4], BARRIER, BARRIER.partition("\n")[2], "race"),
        (KERNELS[7], LAST_BARRIER, LAST_BARRIER.partition("\n")[2], "race"),
    ],
    ids=["rows", "columns", "barrier", "last barrier"],
)
def test_what_a_kernel_must_not_lack(kernel: Source, old: str, new: str, message: str) -> None:
    x = encode(rows_for(kernel.variant.problem.cols), kernel.variant.problem.dtype)
    damaged = broken(kernel, old, new)
    (result,) = build([damaged]).run_all([Job(damaged, x)])
    assert isinstance(result, EmulationError)
    assert re.search(message, str(result)), result
