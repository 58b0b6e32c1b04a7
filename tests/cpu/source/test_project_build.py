"""CMake builds a project with nvcc, installs it, and another program finds it and links it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from softgen.problems.arch import arch_named
from softgen.problems.problem import Problem
from softgen.source import project_folder
from softgen.source.emit import write_if_different
from softgen.source.project import Project, plan
from softgen.source.project_folder import project, write
from softgen.source.project_text import texts
from softgen.strategies.select import select
from softgen.strategies.variants import Variant, parse_name
from softgen.verify.matrix import matrix
from tests.helpers import kept_builds, kept_nvcc
from tests.helpers.cover import cover

SEED, KERNELS = 36, 24
FUNCTIONS = (
    *("softmax", "log_softmax_lse", "logsumexp", "softmax_backward"),
    *("cross_entropy_grad", "token_log_probs", "topk_softmax_k8"),
)

KEPT_NVCC = Path(kept_nvcc.__file__)

needs_nvcc = pytest.mark.skipif(
    not (shutil.which("nvcc") and shutil.which("cmake")),
    reason="nvcc and CMake build projects, and one of them is not installed",
)

CONSUMER = """\
cmake_minimum_required(VERSION 3.24)
project(program LANGUAGES CXX)
find_package(paired REQUIRED)
add_executable(program main.cpp)
target_link_libraries(program PRIVATE paired::paired)
"""

PROGRAM = """\
#include <paired.h>
#include <cstring>
int main() {{
  const paired_status status = {function}({zeros}, 0, nullptr, 0, nullptr);
  return status == PAIRED_OK && !std::strcmp(paired_status_text(status), "ok") ? 0 : 1;
}}
"""


@functools.cache
def sample() -> tuple[Variant, ...]:
    """Return kernels that have many pairs of function, types, layout, hooks and strategy."""
    known = [
        variant
        for variant in matrix(False, functions=FUNCTIONS)
        if not (variant.problem.sharded or variant.problem.fixed_order)
        and variant.problem.layout.label != "anywidth"
    ]
    random.Random(SEED).shuffle(known)
    found = cover(known[:240])
    kinds = {variant.strategy.name: variant for variant in found}
    functions = {variant.problem.function: variant for variant in found}
    first = [*kinds.values(), *functions.values(), *found]
    return tuple({variant.problem: variant for variant in first}.values())[:KERNELS]


def run(*command: object, cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CMAKE_")}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def configure(source: str, folder: Path, *flags: str) -> None:
    """Have CMake prepare a build in `b`, whose kernels are taken from what was kept."""
    launcher = [sys.executable, "-S", KEPT_NVCC, kept_builds.store(kept_builds.OBJECTS), folder]
    kept = f"-DCMAKE_CUDA_COMPILER_LAUNCHER={';'.join(map(str, launcher))}"
    run("cmake", "-S", source, "-B", "b", kept, *flags, cwd=folder)


def test_the_sample_has_each_strategy_and_enough_kernels() -> None:
    chosen = sample()
    assert len(chosen) >= 24
    assert len({variant.strategy.name for variant in chosen}) >= 12
    assert {variant.problem.function.name for variant in chosen} == set(FUNCTIONS)
    assert len({variant.problem.dtype for variant in chosen}) == 4
    assert any(variant.problem.hooks for variant in chosen)
    assert len({variant.problem.layout.label for variant in chosen}) >= 3


def half_of_the_sample(arch: str) -> list[Variant]:
    """Return the kernels that are built for an architecture: nvcc takes a second for each."""
    known = arch_named("sm_80")
    plain = [Variant(v.problem, dataclasses.replace(v.strategy, pdl=0)) for v in sample()]
    older = [v for v in plain if v.strategy.is_legal(v.problem, known)][: KERNELS // 2]
    problems = {variant.problem for variant in older}
    return older if arch == "sm_80" else [v for v in sample() if v.problem not in problems]


@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_a_pairwise_sample_builds_installs_and_is_found(tmp_path: Path, arch: str) -> None:
    made = plan(half_of_the_sample(arch), "paired", (arch,))
    write(tmp_path / "paired", texts(made), made)
    flags = "-Wall -Wextra -Wshadow -Werror"
    jobs = os.cpu_count() or 1
    strict = [f"-DCMAKE_CXX_FLAGS={flags}", "-DCMAKE_CUDA_FLAGS=--Werror=all-warnings"]
    configure("paired", tmp_path, *strict)
    run("cmake", "--build", "b", "-j", jobs, cwd=tmp_path)
    run("cmake", "--install", "b", "--prefix", tmp_path / "installed", cwd=tmp_path)

    other = tmp_path / "other"
    other.mkdir()
    (other / "CMakeLists.txt").write_text(CONSUMER)
    group = made.groups[0]
    zeros = ", ".join("{}" for _ in group.operands)
    entry = group.entries[0]
    (other / "main.cpp").write_text(PROGRAM.format(function=entry.name, zeros=zeros))
    prefix = f"-DCMAKE_PREFIX_PATH={tmp_path / 'installed'}"
    run("cmake", "-S", ".", "-B", "b", prefix, cwd=other)
    run("cmake", "--build", "b", cwd=other)
    run(other / "b" / "program", cwd=other)


def planned(*problems: Problem | Variant) -> Project:
    return plan(problems, "paired")


def test_kernels_are_compiled_only_for_what_they_were_chosen_for() -> None:
    made = planned(Problem.of("softmax", "bfloat16", 32768))
    clusters = [k for k in made.kernels.values() if k.source.variant.launch.cluster_size > 1]
    assert clusters
    assert {kernel.archs for kernel in clusters} == {("sm_90",)}
    whole = [k for k in made.kernels.values() if "anywidth" in k.source.name]
    assert [kernel.archs for kernel in whole] == [("sm_80", "sm_90")]
    listed = texts(made)["CMakeLists.txt"]
    for name, archs in (("cluster", '"90"'), ("anywidth", '"80;90"')):
        block = next(b for b in listed.split("add_library(")[1:] if name in b)
        assert f"CUDA_ARCHITECTURES {archs}" in block


def test_a_project_can_be_written_again_and_keeps_edited_files(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    wide = [Problem.of("softmax", "float32", cols) for cols in (64, 128)]
    first = project(folder, wide, name="mine")
    assert "src/mine.cpp" in first.written
    again = project(folder, wide, name="mine")
    assert again.written == ()
    fewer = project(folder, wide[:1], name="mine")
    assert any("softmax_f32_128" in path for path in fewer.removed)
    assert not [path for path in (folder / "src").iterdir() if "softmax_f32_128_" in path.name]
    (folder / "README.md").write_text("mine")
    with pytest.raises(ValueError, match=r"README\.md was edited"):
        project(folder, wide, name="mine")
    assert not [path for path in (folder / "src").iterdir() if "softmax_f32_128_" in path.name]


@pytest.mark.parametrize("path", ["src", "..", "."])
def test_a_folder_in_the_list_of_files_is_none_of_them(path: str, tmp_path: Path) -> None:
    """Whatever digest an edited manifest says it has."""
    folder = tmp_path / "made"
    few = [Problem.of("softmax", "float32", 64)]
    project(folder, few, name="mine")
    listed = folder / "manifest.json"
    document = json.loads(listed.read_text())
    for digest in ("no file", ""):
        text = json.dumps({**document, "files": {**document["files"], path: digest}})
        listed.write_text(text)
        with pytest.raises(ValueError, match=r"is not softgen's; nothing was written"):
            project(folder, few, name="mine")
        assert listed.read_text() == text


def test_a_manifest_of_a_hundred_thousand_brackets_is_none(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="is not the manifest of a project"):
        project(tmp_path, [Problem.of("softmax", "float32", 64)])


@pytest.mark.parametrize("first", [False, True])
def test_a_run_that_ends_on_the_way_leaves_what_the_next_one_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """After any number of files; with other options than those of the run that ended."""
    given = [[Problem.of("softmax", "float32", cols)] for cols in (64, 128, 256)]

    def contents(folder: Path) -> dict[str, str]:
        return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*.*")}

    project(tmp_path / "whole", given[2], name="mine")
    wanted = contents(tmp_path / "whole")
    for most in range(len(wanted) + 1):
        folder = tmp_path / f"after_{most}"
        if not first:
            project(folder, given[0], name="mine")
        written: list[Path] = []

        def write_some(path: Path, text: str) -> bool:
            if len(written) == most:  # noqa: B023
                raise KeyboardInterrupt
            written.append(path)  # noqa: B023
            return write_if_different(path, text)

        with monkeypatch.context() as patch:
            patch.setattr(project_folder, "write_if_different", write_some)
            with contextlib.suppress(KeyboardInterrupt):
                project(folder, given[1], name="mine")
        project(folder, given[2], name="mine")
        assert contents(folder) == wanted


def test_a_function_without_results_of_a_type_of_their_own_has_that_of_x() -> None:
    """`--out-dtype` is for all functions of a project: a dispatcher of those takes one type."""
    given: dict[str, Any] = {"dtype": "float32", "cols": 64, "out_dtype": "float16"}
    loss, y = Problem.of("cross_entropy", **given), Problem.of("softmax", **given)
    online = Problem.of("partial", **given)
    made = planned(loss, select(online, 64, arch_named("sm_90"), "online"), y)
    found = {group.problem.function.name: group.problem for group in made.groups}
    assert {name: each.out_dtype.value for name, each in found.items()} == {
        "cross_entropy": "float32",
        "partial": "float32",
        "softmax": "float16",
    }
    assert any(
        kernel.source.name.startswith("partial_f32_64_online") for kernel in made.kernels.values()
    )
    header = texts(made)["include/paired.h"]
    same = "the type of x, and the same: PAIRED_FLOAT32 and PAIRED_FLOAT32"
    assert header.count(same) == 2
    assert "that of y: PAIRED_FLOAT32 and PAIRED_FLOAT16" in " ".join(header.split())
    wide = texts(planned(Problem.of("cross_entropy", "float32", 64, out_dtype="float64")))
    said = "what widens the arithmetic: PAIRED_FLOAT32 and PAIRED_FLOAT64"
    assert said in wide["include/paired.h"].replace("\n//     ", " ")


def test_the_header_says_what_each_argument_is() -> None:
    made = planned(
        Problem.of("cross_entropy", "bfloat16", 1000),
        Problem.of("cross_entropy", "float64", 1000),
        Problem.of("sample_filtered_rows_seeds", "float32", 1000, hooks=("mask", "causal")),
        Problem.of("log_softmax_lse", "float32", 100, layout="in8", out_dtype="float16"),
        Problem.of("softmax", "float32", 100, layout="strided3"),
    )
    header = texts(made)["include/paired.h"]
    for group in made.groups:
        _, _, behind = header.partition(f"\n// {group.name}: ")
        said = behind.partition("\n// 100")[0]
        for name in ("in, out", "cols", *(o.name for o in group.operands), "rows"):
            assert said.count(f"\n//   {name}: ") == 1, (group.name, name)
    for line in (
        "x: in [rows][cols], contiguous",
        "loss: float32, or float64 where in or out is, [rows], contiguous",
        "y: out [rows / 8][cols][8], contiguous; may be x where in is out",
        "x: in [rows / size1 / size2][size1][size2][cols], strided",
        "top_k: int64 [rows], contiguous",
        "rows: 0 or more, a multiple of 8",
        *(remark for group in made.groups for remark in group.problem.function.remarks),
    ):
        assert f"\n//   {line}\n" in header, line
    pairs = "PAIRED_BFLOAT16 and PAIRED_BFLOAT16; PAIRED_FLOAT64 and PAIRED_FLOAT64"
    assert pairs in header.replace("\n//     ", " ")
    assert max(len(line) for line in header.splitlines() if line.startswith("//   ")) <= 100


@pytest.mark.parametrize(
    ("problems", "options", "match"),
    [
        ([], {}, "at least one problem"),
        (["softmax"], {"name": "Two words"}, "lower-case letters"),
        (["softmax"], {"name": "a" * 25}, "at most 24"),
        (["softmax"], {"name": "test"}, "target of CMake"),
        (["softmax"], {"name": "math"}, "as my_math"),
        (["softmax"], {"name": "cuda_fp16"}, "of a header"),
        (["softmax"], {"bindings": ["jax"]}, "tvm-ffi and torch"),
        (["softmax"], {"archs": []}, "one architecture"),
        (["sharded"], {}, "several devices"),
        (["anywidth"], {}, "any width anyway"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, problems: list[str], options: dict[str, object], match: str
) -> None:
    made = [
        Problem.of("softmax", "float32", 64, layout="" if each == "softmax" else each)
        for each in problems
    ]
    with pytest.raises(ValueError, match=match):
        project(tmp_path / "made", made, **options)  # type: ignore[arg-type]
    assert not (tmp_path / "made").exists()


def test_names_are_identifiers_of_63_characters_at_most() -> None:
    hooks = ("scale", "mask", "causal", "dropout", "softcap", "outscale", "zeroempty", "sinkf32")
    made = planned(
        Problem.of("softmax", "float32", 1000, hooks=hooks), Problem.of("softmax", "float32", 8)
    )
    names = [name for g in made.groups for name in (g.name, *(e.name for e in g.entries))]
    assert max(map(len, names)) == 63
    assert all(name.isidentifier() for name in names if name)
    assert len({*filter(None, names)}) == len([*filter(None, names)])


TOGETHER = """\
cmake_minimum_required(VERSION 3.24)
project(together LANGUAGES CXX)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_SEPARABLE_COMPILATION ON)
set(CMAKE_UNITY_BUILD ON)
include(FetchContent)
FetchContent_Declare(older SOURCE_DIR ${CMAKE_CURRENT_SOURCE_DIR}/older)
FetchContent_MakeAvailable(older)
add_subdirectory(newer)
add_executable(program main.cpp)
target_link_libraries(program PRIVATE older::older newer::newer)
"""

BOTH = """\
#include <newer.h>
#include <older.h>
int main() {
  return older_softmax_f32_64(nullptr, nullptr, 0, nullptr, 0, nullptr) != OLDER_OK ||
         newer_softmax_f32_64(nullptr, nullptr, 0, nullptr, 0, nullptr) != NEWER_OK;
}
"""


@needs_nvcc
@pytest.mark.parametrize("shared", ["ON", "OFF"])
def test_two_libraries_of_one_program_have_kernels_of_their_own(
    tmp_path: Path, shared: str
) -> None:
    """Of one name, for other architectures; in a build that hides, joins and links what it can."""
    given = [parse_name("softmax_f32_64_warp_p4_c8_g8_r1_b128")]
    for name, arch in (("older", "sm_80"), ("newer", "sm_90")):
        project(tmp_path / name, given, name=name, archs=[arch])
    (tmp_path / "CMakeLists.txt").write_text(TOGETHER)
    (tmp_path / "main.cpp").write_text(BOTH)
    configure(".", tmp_path, f"-DBUILD_SHARED_LIBS={shared}")
    run("cmake", "--build", "b", "-j", os.cpu_count() or 1, cwd=tmp_path)
    run(tmp_path / "b" / "program", cwd=tmp_path)
    for name in ("older", "newer"):
        (built,) = (tmp_path / "b").rglob(f"lib{name}.{'so' if shared == 'ON' else 'a'}")
        symbols = {line.split()[-1] for line in run("nm", built, cwd=tmp_path).splitlines() if line}
        assert f"{name}_{given[0].name}" in symbols
        assert given[0].name not in symbols
