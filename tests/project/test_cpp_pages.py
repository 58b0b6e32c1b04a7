"""docs/cpp.md, docs/bindings.md and docs/edit_a_kernel.md: what they show works as they say."""

from __future__ import annotations

import ctypes
import re
import shlex
from pathlib import Path

import pytest

from softgen.problems.problem import MAX_INT32_COLS, Problem
from softgen.source.project import ARCHS, CLASSES, plan
from softgen.source.project_text import texts
from tests.helpers.cli_helpers import cli, ok
from tests.helpers.recorded_runtime import library

ROOT = Path(__file__).resolve().parents[2]
CPP, BINDINGS, EDIT = (
    (ROOT / "docs" / f"{page}.md").read_text() for page in ("cpp", "bindings", "edit_a_kernel")
)


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def test_the_program_of_the_page_computes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    types = ("bfloat16", "float32")
    problems = [Problem.of("softmax", dtype, cols) for dtype in types for cols in (64, 4096)]
    (program,) = blocks(CPP, "cpp")
    page = tmp_path / "page.cpp"
    page.write_text(program.replace("int main()", 'extern "C" int page_main()'))
    loaded = library(plan(problems, "kernels"), tmp_path, more=[page])
    assert loaded.handle.page_main() == 0
    ctypes.CDLL(None).fflush(None)
    assert float(capfd.readouterr().out) == 1 / 64
    assert len(loaded.take()) == 1


def test_the_command_of_the_page_writes_what_the_page_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = next(line for line in blocks(CPP, "sh")[0].splitlines() if "softgen emit" in line)
    ok(*shlex.split(command)[1:])
    header = Path("kernels/include/kernels.h").read_text()
    for name in re.findall(r"\bkernels_\w+(?=\()", CPP):
        assert f"{name}(" in header, name
    cmake = Path("kernels/CMakeLists.txt").read_text()
    assert "add_library(kernels::kernels ALIAS kernels)" in cmake
    assert "add_executable(kernels_example" in cmake


def test_the_python_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = blocks(CPP, "python")
    exec(compile(program, "page", "exec"), {})
    assert Path("kernels/src/kernels.cpp").is_file()


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    (few, of_few), (middle, of_middle), (_, of_many) = CLASSES
    assert f"up to {few} rows, for up to {middle}, and for more" in CPP
    assert f"ships for {of_few}, {of_middle}\n  and {of_many} rows" in CPP
    assert f"any width up to {MAX_INT32_COLS}" in CPP
    assert "`" + " ".join(f"--arch {arch}" for arch in ARCHS) + "` are the default" in CPP


def test_options_of_the_pages_are_those_of_cmake() -> None:
    made = plan([Problem.of("softmax", "float32", 64)], "kernels", bindings=["tvm-ffi", "torch"])
    cmake = texts(made)["CMakeLists.txt"]
    for option in re.findall(r"-D(KERNELS_\w+)=", BINDINGS):
        assert f"option({option} " in cmake


def test_the_file_of_the_page_is_emitted_and_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    emit, verify = (shlex.split(line)[1:] for line in blocks(EDIT, "sh")[0].splitlines())
    ok(*emit)
    ok(*verify)
    path = Path(verify[-1])
    text = path.read_text()
    path.write_text(text.replace("  __syncthreads();\n", "", 1))
    done = cli(*verify)
    assert done.exit_code == 4
    (said,) = blocks(EDIT, "text")
    for part in ("race on shared memory", "with no __sync", "byte 0 of static shared memory"):
        assert part in " ".join(said.split())
        assert part in " ".join(done.output.split())
