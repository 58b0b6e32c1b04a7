"""A project's C++ on the CPU: its launches go to the emulator, and bad input launches nothing."""

from __future__ import annotations

import ctypes
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softgen.problems.arch import arch_named
from softgen.problems.dtypes import DType, Integer
from softgen.problems.numerics import encode, other_inputs, storage_dtype
from softgen.problems.operands import Extent
from softgen.problems.problem import Problem
from softgen.source.project import Entry, Group, plan
from softgen.strategies.variants import Variant, best_guess, parse_name
from tests.helpers.recorded_runtime import (
    COOPERATIVE,
    DEPENDENT,
    Launched,
    Library,
    entries,
    library,
    require_right,
)

PROBLEMS = (
    Problem.of("softmax", "bfloat16", 64),
    Problem.of("softmax", "float32", 64),
    Problem.of("softmax", "float32", 1000),
    Problem.of("softmax", "float32", 1000, out_dtype="float16"),
    Problem.of("softmax", "bfloat16", 1001),
    Problem.of("logsumexp", "float16", 300),
    Problem.of("log_softmax", "float64", 33),
    Problem.of("softmax_lse", "float32", 128),
    Problem.of("softmax_backward", "float32", 96),
    Problem.of("cross_entropy", "bfloat16", 500),
    Problem.of("topk_softmax_k8", "bfloat16", 256),
    Problem.of("softmax", "float32", 96, hooks=("scale", "mask", "causal")),
    Problem.of("softmax", "float32", 12, layout="in8"),
    Problem.of("softmax", "float32", 40, layout="strided1"),
)
SPLIT = parse_name("softmax_f32_4096_split_p4_c4_b128_m1_rev")

OK, NULL, MISALIGNED, OVERLAP, ROWS, COLS, NUMBER, NO_KERNEL, WORKSPACE, OLD, CUDA = range(11)
ILLEGAL_ADDRESS = 700


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return library(plan([*PROBLEMS, SPLIT]), tmp_path_factory.mktemp("project"))


@pytest.fixture
def loaded(built: Library) -> Iterator[Library]:
    built.device()
    built.computes = True
    built.take()
    yield built
    built.take()


def values_of(problem: Problem, rows: int, offset: int = 0) -> list[Any]:
    """Return arrays and numbers for a problem, each array `offset` elements behind 16 bytes."""
    x = encode(np.random.default_rng(rows).standard_normal((rows, problem.cols)) * 4, problem.dtype)
    given = iter((x, *other_inputs(x, problem)))
    found: list[Any] = []
    for operand in problem.operands:
        if operand in problem.layout_numbers:
            found.append(problem.cols)  # strides of rows that follow each other
            continue
        if operand.extent is Extent.NUMBER:
            found.append(next(given).item())
            continue
        kind = storage_dtype(operand.dtype)
        value = np.zeros(operand.shape(rows, problem.cols), kind) if operand.result else next(given)
        start = offset if operand.extent is Extent.ELEMENT else 0
        found.append(
            placed(
                problem.layout.in_memory(value)
                if value.ndim == 2 and operand.extent is Extent.ELEMENT
                else value,
                start,
            )
        )
    return found


def placed(value: Any, offset: int = 0) -> Any:
    """Return a copy that starts so many elements behind a boundary of 128 bytes."""
    size = value.nbytes
    raw = np.zeros(size + 256 + offset * value.itemsize, np.uint8)
    start = -raw.ctypes.data % 128 + offset * value.itemsize
    made = raw[start : start + size].view(value.dtype).reshape(value.shape)
    made[...] = value
    return made


def typed(made: Library, label: str) -> tuple[Group, Entry]:
    return next((g, e) for g, e in entries(made.project) if e.problem.label == label)


@pytest.mark.parametrize("capability", [80, 90, 120])
def test_each_function_is_right(loaded: Library, capability: int) -> None:
    loaded.device(capability)
    for group, entry in entries(loaded.project):
        problem = entry.problem
        for rows in (8, 16) if problem.layout.step > 1 else (1, 5):
            size = loaded.workspace(entry.name, ctypes.c_int64(rows))
            workspace = placed(np.zeros(size, np.uint8)) if size else None
            values = values_of(problem, rows)
            status = loaded.call(entry.name, problem, values, rows, workspace=workspace)
            assert status == OK, (entry.name, loaded.status_text(status))
            (launched,) = loaded.take()
            require_right(problem, values, rows)
            variant = launched.source.variant
            assert variant.problem == problem
            assert launched.grid == variant.launch.grid(rows)
            assert launched.block == variant.launch.block_size
            assert launched.shared == variant.launch.dynamic_shared_bytes
            early = variant.launch.dependent and capability >= 90
            assert launched.attributes == (DEPENDENT,) * early
            assert launched.stream == 7
            assert workspace is None or not workspace.any()

            values = values_of(problem, rows)
            types = [loaded.dtype(kind) for kind in (problem.dtype, problem.out_dtype)]
            before = (*types, ctypes.c_int64(problem.cols))
            status = loaded.call(group.name, problem, values, rows, *before, workspace=workspace)
            assert status == OK, (group.name, loaded.status_text(status))
            require_right(problem, values, rows)
            assert [each.source for each in loaded.take()] == [launched.source]


def test_the_dispatcher_takes_any_width(loaded: Library) -> None:
    drawn = random.Random(36)
    by_name = {group.name: group for group in loaded.project.groups}
    group = by_name["softgen_kernels_softmax"]
    known = {(e.problem.dtype, e.problem.out_dtype, e.problem.cols) for e in group.entries}
    for i in range(200):
        entry = group.entries[i % 3]
        cols = drawn.choice((drawn.randrange(1, 70), drawn.randrange(1, 3000), 64, 1000))
        problem = Problem.of("softmax", entry.problem.dtype, cols)
        rows, offset = drawn.randrange(1, 4), drawn.choice((0, 0, 1, 3))
        values = values_of(problem, rows, offset)
        types = [loaded.dtype(kind) for kind in (problem.dtype, problem.out_dtype)]
        status = loaded.call(group.name, problem, values, rows, *types, ctypes.c_int64(cols))
        assert status == OK, (cols, loaded.status_text(status))
        (launched,) = loaded.take()
        require_right(problem, values, rows)
        # A kernel of this width, where there is one and rows start on packs.
        special = (problem.dtype, problem.out_dtype, cols) in known and offset == 0
        special |= cols == 1001 and problem.dtype is DType.BFLOAT16
        assert ("anywidth" not in launched.source.name) == special, (cols, offset)


def test_other_functions_take_any_width(loaded: Library) -> None:
    for group in loaded.project.groups:
        problem = group.problem
        if not group.entries[-1].any_width:
            continue
        for cols in (problem.function.least_cols, 77, 2048):
            asked = Problem.of(problem.function, problem.dtype, cols, hooks=problem.hooks)
            values = values_of(asked, 3)
            types = [loaded.dtype(kind) for kind in (asked.dtype, asked.out_dtype)]
            status = loaded.call(group.name, asked, values, 3, *types, ctypes.c_int64(cols))
            assert status == OK, (group.name, loaded.status_text(status))
            require_right(asked, values, 3)
    loaded.take()


def test_the_rows_choose_among_the_winners(loaded: Library) -> None:
    loaded.computes = False
    _, entry = typed(loaded, "softmax_f32_1000")
    for capability, row in zip((80, 90), entry.kernels, strict=True):
        loaded.device(capability)
        for rows, of in ((1, 0), (128, 0), (129, 1), (2048, 1), (2049, 2), (2**31, 2), (2**40, 2)):
            values: list[Any] = [2**46, 2**54]  # so far apart that no rows overlap
            status = loaded.call(entry.name, entry.problem, values, rows)
            (launched,) = loaded.take()
            assert status == OK
            assert launched.rows == rows
            variant = row[of]
            if not variant.launch.reaches(rows):
                assert "anywidth" in launched.source.name
                assert launched.grid == 2**31 - 1
            else:
                assert launched.source.variant == variant


def test_zero_rows_are_a_success_that_launches_nothing(loaded: Library) -> None:
    for group, entry in entries(loaded.project):
        problem = entry.problem
        values = [0 if o.extent is Extent.NUMBER else None for o in problem.operands]
        assert loaded.call(entry.name, problem, values, 0) == OK
        types = [loaded.dtype(kind) for kind in (problem.dtype, problem.out_dtype)]
        before = (*types, ctypes.c_int64(problem.cols))
        assert loaded.call(group.name, problem, values, 0, *before) == OK
    assert loaded.take() == []


def test_bad_input_is_a_status_with_a_text_and_no_launch(loaded: Library) -> None:
    _, entry = typed(loaded, "softmax_f32_1000")
    problem, name = entry.problem, entry.name
    x, y = values_of(problem, 3)

    def refused(*values: Any, rows: int = 3, **options: Any) -> int:
        status = loaded.call(name, problem, list(values), rows, **options)
        assert loaded.take() == []
        assert len(loaded.status_text(status)) > 30
        return status

    assert refused(None, y) == NULL
    assert refused(x, None) == NULL
    assert refused(x.ctypes.data + 1, y) == MISALIGNED
    assert refused(x, y.ctypes.data + 2) == MISALIGNED
    assert refused(x, x.ctypes.data + 16) == OVERLAP
    assert refused(x.ctypes.data + 4000, x) == OVERLAP
    assert refused(x, y, rows=-1) == ROWS
    assert refused(x, y, rows=2**40 + 1) == ROWS
    assert refused(x, y, rows=-(2**63)) == ROWS
    loaded.device(75)
    assert refused(x, y) == OLD
    loaded.device(90)
    ctypes.c_int.in_dll(loaded.handle, "stub_error").value = 100
    assert refused(x, y) == CUDA
    ctypes.c_int.in_dll(loaded.handle, "stub_error").value = 0
    error = loaded.handle.softgen_kernels_cuda_error
    assert error() == 100
    assert loaded.call(name, problem, [x, x], 3) == OK  # in place
    loaded.take()


def test_bad_types_widths_and_outer_indices_are_refused(loaded: Library) -> None:
    group, entry = typed(loaded, "softmax_f32_1000")
    x, y = values_of(entry.problem, 3)
    single, double = loaded.dtype(DType.FLOAT32), loaded.dtype(DType.FLOAT64)

    def status_of(first: int, second: int, cols: int) -> int:
        before = (first, second, ctypes.c_int64(cols))
        return loaded.call(group.name, entry.problem, [x, y], 3, *before)

    assert status_of(double, double, 1000) == NO_KERNEL
    assert status_of(single, double, 1000) == NO_KERNEL
    assert status_of(99, -1, 1000) == NO_KERNEL
    assert status_of(single, single, 0) == COLS
    assert status_of(single, single, -7) == COLS
    assert status_of(single, single, 2**31) == COLS
    before = (single, single, ctypes.c_int64(2**30))
    assert loaded.call(group.name, entry.problem, [x, y], 2**40, *before) == ROWS
    _, top = typed(loaded, "topk_softmax_k8_bf16_256")
    group = typed(loaded, "topk_softmax_k8_bf16_256")[0]
    half = loaded.dtype(DType.BFLOAT16)
    values = values_of(top.problem, 3)
    before = (half, half, ctypes.c_int64(7))
    assert loaded.call(group.name, top.problem, values, 3, *before) == COLS
    _, inner = typed(loaded, "softmax_f32_12_in8")
    assert loaded.call(inner.name, inner.problem, values_of(inner.problem, 8), 9) == ROWS
    assert loaded.take() == []


def test_a_workspace_is_asked_for_and_checked(loaded: Library) -> None:
    _, entry = typed(loaded, "softmax_f32_4096")
    needed = SPLIT.launch.workspace_bytes(5)
    assert needed > 0
    assert loaded.workspace(entry.name, ctypes.c_int64(5)) == needed
    assert loaded.workspace(entry.name, ctypes.c_int64(0)) == 0
    assert loaded.workspace(entry.name, ctypes.c_int64(-1)) == 0
    values = values_of(entry.problem, 5)
    workspace = placed(np.zeros(needed + 128, np.uint8))
    for given, size, wanted in (
        (None, 0, WORKSPACE),
        (workspace, needed - 1, WORKSPACE),
        (workspace.ctypes.data + 64, needed, MISALIGNED),
        (workspace, needed, OK),
    ):
        status = loaded.call(
            entry.name, entry.problem, values, 5, workspace=given, workspace_bytes=size
        )
        assert status == wanted
        assert bool(loaded.take()) == (wanted == OK)
    assert not workspace.any()


def test_rows_that_lie_otherwise_take_a_kernel_that_allows_it(loaded: Library) -> None:
    _, entry = typed(loaded, "softmax_bf16_64")
    values = values_of(entry.problem, 3, offset=1)
    assert loaded.call(entry.name, entry.problem, values, 3) == OK
    (launched,) = loaded.take()
    assert "anywidth" in launched.source.name
    require_right(entry.problem, values, 3)


def test_lines_of_a_mask_that_lie_otherwise_take_such_a_kernel_too(loaded: Library) -> None:
    _, entry = typed(loaded, "softmax_f32_96_scale_mask_causal")
    problem = entry.problem
    names = [operand.name for operand in problem.operands]
    for off, stride in ((0, 96 + 16), (1, 96 + 16), (0, 96 + 1)):
        values = values_of(problem, 4)
        lines = np.random.default_rng(off).random(2 * stride) < 0.8
        at = names.index("mask")
        values[at : at + 6] = [placed(lines, off), 1, 2, stride, 1, 0]
        assert loaded.call(entry.name, problem, values, 4) == OK
        (launched,) = loaded.take()
        require_right(problem, values, 4)
        assert ("anywidth" in launched.source.name) == ((off, stride) != (0, 96 + 16))


def test_numbers_that_rows_are_divided_by_are_checked(loaded: Library) -> None:
    _, entry = typed(loaded, "softmax_f32_96_scale_mask_causal")
    problem = entry.problem
    names = [operand.name for operand in problem.operands]
    for name in ("mask_every", "mask_count", "mask_inner", "queries"):
        operand = problem.operands[names.index(name)]
        assert operand.dtype is Integer.INT64
        for bad in (0, -1, 2**31):
            values = values_of(problem, 4)
            values[names.index(name)] = bad
            status = loaded.call(entry.name, problem, values, 4)
            assert status == NUMBER
            assert "from 1 to 2^31 - 1" in loaded.status_text(status)
            assert loaded.call(entry.name, problem, values, 0) == OK
    assert loaded.take() == []


def test_strides_of_views_are_checked(loaded: Library) -> None:
    _, entry = typed(loaded, "softmax_f32_40_strided1")
    loaded.computes = False
    for strides, wanted in (((44, 40), OK), ((41, 40), MISALIGNED), ((44, 42), MISALIGNED)):
        values = [2**40, 2**45, *strides]
        assert loaded.call(entry.name, entry.problem, values, 3) == wanted
        assert bool(loaded.take()) == (wanted == OK)


def test_the_example_is_right_on_the_cpu(
    loaded: Library, capfd: pytest.CaptureFixture[str]
) -> None:
    status = loaded.handle["_Z12example_mainv"]()
    ctypes.CDLL(None).fflush(None)
    said = capfd.readouterr().out
    assert status == 0, said
    assert "all is right" in said
    assert "FAILED" not in said
    names = {entry.name for _, entry in entries(loaded.project)}
    checked = set(re.findall(r"ok (\w+),", said))
    assert len(checked & names) >= 7
    assert "softgen_kernels_softmax" in checked
    assert len(loaded.take()) > 30


def test_the_example_says_that_there_is_no_gpu_and_that_nothing_was_computed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = library(plan([Problem.of("cross_entropy", "float32", 100)]), tmp_path, computes=False)

    def said() -> str:
        made.handle["_Z12example_mainv"]()
        ctypes.CDLL(None).fflush(None)
        return capfd.readouterr().out

    text = said()
    assert text.startswith("nothing was computed")
    assert text.endswith("it was refused, as it has to be\n")
    ctypes.c_int.in_dll(made.handle, "stub_error").value = 100
    assert said() == "FAILED: there is no GPU to run on (an error of the stub)\n"
    assert made.take() == []


def best(strategy: str, cols: int, arch: str = "sm_90") -> Variant:
    return best_guess(Problem.of("softmax", "float32", cols), 16, arch_named(arch), strategy)


def test_kernels_that_do_not_fit_give_way(tmp_path: Path) -> None:
    """Shared memory and SMs that a device does not have."""
    shared, cooperative = best("shared", 20000), best("cooperative", 262144)
    assert shared.launch.asks_for_shared
    assert cooperative.launch.cooperative
    given = [shared, cooperative]
    made = library(plan(given, archs=["sm_90"]), tmp_path, computes=False)
    workspace = placed(np.zeros(cooperative.launch.workspace_bytes(64), np.uint8))

    def launched_for(variant: Variant) -> Launched:
        _, entry = typed(made, variant.problem.label)
        values = [2**40, 2**45]
        assert made.call(entry.name, entry.problem, values, 64, workspace=workspace) == OK
        (launched,) = made.take()
        return launched

    for variant in given:
        assert launched_for(variant).source.variant == variant
    assert launched_for(cooperative).attributes == (COOPERATIVE,)
    assert launched_for(cooperative).grid == cooperative.launch.grid(64)
    assert launched_for(shared).shared == shared.launch.dynamic_shared_bytes

    # Another process, whose device has less of both.
    (tmp_path / "small").mkdir()
    made = library(plan(given, archs=["sm_90"]), tmp_path / "small", computes=False)
    made.device(shared=65536, multiprocessors=cooperative.launch.blocks_per_row - 1)
    for variant in given:
        assert "anywidth" in launched_for(variant).source.name
    made.take()


def test_an_error_that_is_not_the_kernels_is_told_and_not_kept(tmp_path: Path) -> None:
    """As that of a launch before, which ended in an address that is none."""
    shared = best("shared", 20000)
    made = library(plan([shared], archs=["sm_90"]), tmp_path, computes=False)
    _, entry = typed(made, shared.problem.label)
    values: list[Any] = [2**40, 2**45]
    error = ctypes.c_int.in_dll(made.handle, "stub_ready_error")
    error.value = ILLEGAL_ADDRESS
    assert made.call(entry.name, entry.problem, values, 64) == CUDA
    assert made.handle.softgen_kernels_cuda_error() == ILLEGAL_ADDRESS
    assert made.take() == []
    error.value = 0
    assert made.call(entry.name, entry.problem, values, 64) == OK
    (launched,) = made.take()
    assert launched.source.variant == shared


def test_a_cooperative_grid_is_cut_to_the_blocks_that_are_resident(tmp_path: Path) -> None:
    cooperative = best("cooperative", 262144)
    made = library(plan([cooperative], archs=["sm_90"]), tmp_path, computes=False)
    blocks = cooperative.launch.blocks_per_row
    made.device(multiprocessors=2 * blocks + 1)
    _, entry = typed(made, cooperative.problem.label)
    workspace = placed(np.zeros(cooperative.launch.workspace_bytes(64), np.uint8))
    status = made.call(entry.name, entry.problem, [2**40, 2**45], 64, workspace=workspace)
    (launched,) = made.take()
    assert status == OK
    assert launched.grid == min(2 * blocks, cooperative.launch.grid(64))
