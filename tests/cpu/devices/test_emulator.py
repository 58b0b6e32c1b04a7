"""The emulator runs correct kernels: their results, launches and storage."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from softgen.devices.emulator import Job, build, run
from softgen.devices.emulator.compiler import Compiler, find_compiler
from softgen.errors import (
    CompileError,
    EmulationError,
    InvalidTypeError,
    InvalidValueError,
    MissingDependencyError,
)
from softgen.problems import numerics
from softgen.problems.dtypes import DType
from softgen.problems.functions.base import Function
from softgen.problems.functions.log_softmax import LOG_SOFTMAX
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.safe import Safe
from softgen.strategies.variants import Variant
from tests.helpers.cli_helpers import cli, document, refused
from tests.helpers.emulator_helpers import (
    broken,
    input_of,
    run_rows,
    source_of,
    written,
)
from tests.helpers.single import BOTH, check


@pytest.mark.parametrize("strategy", ["warp", "online", "safe"])
def test_the_emitted_text_computes_softmax(strategy: str) -> None:
    source = source_of(strategy, 1000)
    x = input_of(source, 7)
    accuracy = check(run(source, x), x, source.variant.problem)
    assert accuracy.ok, accuracy.message
    assert accuracy.worst < 1e-6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_every_dtype_travels_in_storage_form(dtype: str) -> None:
    source = source_of("safe", 33, dtype)
    x = input_of(source, 3)
    y = run(source, x)
    assert y.dtype == x.dtype
    assert check(y, x, source.variant.problem).ok


@pytest.mark.parametrize("grid", [1, 2, 5])
def test_blocks_stride_over_the_rows_whatever_the_grid(grid: int) -> None:
    source = source_of("online", 100)
    assert np.array_equal(run_rows(source, 5, grid=grid), run_rows(source, 5))


def test_in_place_gives_the_same_bits() -> None:
    source = source_of("online", 100)
    assert np.array_equal(run_rows(source, 5, in_place=True), run_rows(source, 5))


def test_bases_may_be_anywhere_if_the_kernel_says_so() -> None:
    problem = Problem.of("softmax", "float32", 100, alignment=1)
    source = render(Variant(problem, source_of("online", 100).variant.strategy))
    x = input_of(source, 5)
    for offsets in ({"x_offset": 1, "y_offset": 3}, {"x_offset": 2, "y_offset": 2}):
        assert check(run(source, x, **offsets), x, problem).ok


def test_the_portable_switch_of_fibers_works_too(monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of("online", 100)
    y = run_rows(source, 3)
    command = " ".join(find_compiler().command)
    monkeypatch.setenv("CXX", f"{command} -DSIMT_UCONTEXT")
    assert np.array_equal(run_rows(source, 3), y)


def test_without_a_compiler_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(MissingDependencyError, match="CXX='no-such-compiler' cannot be run"):
        run_rows(source_of("safe", 32), 1)
    monkeypatch.setenv("CXX", " ")  # as good as unset, and a fresh search
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"apt install g\+\+.*pip install ziglang"):
        run_rows(source_of("safe", 32), 1)


@pytest.mark.parametrize("named", ["g++ '-DX", 'g++ "', "g++ \\"])
def test_an_odd_quote_in_cxx_is_named(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", named)
    with pytest.raises(MissingDependencyError, match=r"CXX=.*(No closing quotation|No escaped)"):
        find_compiler()
    error = refused(1, "run", "--device", "cpu", "--rows", 2, "--cols", 8)
    assert "close the quote or escape it" in error


def test_a_cxx_that_is_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executable file that the kernel refuses, and one that prints no text."""
    (tmp_path / "noise").write_bytes(b"\x00\x01junk")
    (tmp_path / "latin").write_bytes(b"#!/bin/sh\nprintf 'compilateur \\351' >&2\nexit 1\n")
    for name in ("noise", "latin"):
        (tmp_path / name).chmod(0o700)
        monkeypatch.setenv("CXX", str(tmp_path / name))
        with pytest.raises(MissingDependencyError, match="cannot be run as a C\\+\\+ compiler"):
            find_compiler()
    with pytest.raises(CompileError, match="compilateur \ufffd"):
        Compiler((str(tmp_path / "latin"),), "1").call([])


def script(path: Path, text: str) -> str:
    """Write a program that says that it is a compiler; return its path."""
    told = 'case "$*" in *--version*) echo "c++ 12.2.0"; exit;; esac'
    path.write_text(f"#!/bin/sh\n{told}\n{text}\n")
    path.chmod(0o700)
    return str(path)


# Puts a file where -o says, as a compiler does.
PUTS = 'while [ "$1" != -o ]; do shift; done; printf "%s" > "$2"'


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("{tmp}/none", "cannot be run as a C++ compiler: there is no such program; set it to one"),
        ("{tmp}/plain", "cannot be run as a C++ compiler: it is not executable; set it to one"),
        ("{tmp}", "cannot be run as a C++ compiler: it is not executable; set it to one"),
        ("{false}", "cannot be run as a C++ compiler: {false} --version ended with 1; set it to"),
        ("{tmp}/mute", "cannot be run as a C++ compiler: {tmp}/mute --version printed nothing"),
        ("{true}", "{true} ended without an error and wrote no program; set CXX to a C++17"),
        ("{tmp}/idle -m64", "{tmp}/idle -m64 ended without an error and wrote no program; set CXX"),
        ("{tmp}/empty", "{tmp}/empty ended without an error and wrote no program; set CXX to a"),
        (
            "{tmp}/noise",
            "the program that {tmp}/noise built cannot be run here (Exec format error)",
        ),
        ("{tmp}/bad", "{tmp}/bad cannot build the CPU emulator; set CXX to a C++17 compiler, for"),
    ],
)
def test_a_cxx_that_builds_nothing(
    named: str, why: str, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"tmp": str(tmp_path)} | {n: str(shutil.which(n)) for n in ("true", "false")}
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    script(tmp_path / "idle", "exit 0")
    script(tmp_path / "empty", PUTS.replace("%s", ""))
    script(tmp_path / "noise", f'{PUTS.replace("%s", "noise")}; chmod 700 "$2"')
    script(tmp_path / "bad", "echo no such option >&2; exit 2")
    (tmp_path / "mute").write_text("#!/bin/sh\n")
    (tmp_path / "mute").chmod(0o700)
    monkeypatch.setenv("CXX", named.format(**known))
    error = refused(1, "run", "--device", "cpu", "--rows", 2, "--cols", 8)
    assert why.format(**known) in error
    assert "CXX=g++, or unset it" in error
    assert "of strategy" not in error  # which is not at fault
    doctor = document(cli("doctor", "--json"))
    (found,) = (each for each in doctor["checks"] if each["name"] == "CPU emulator")
    assert not found["ok"]
    assert why.format(**known)[:60] in found["detail"]


def test_no_rows_launch_one_block_that_does_nothing() -> None:
    assert run_rows(source_of("warp", 64), 0).shape == (0, 64)


def test_a_program_of_many_kernels_runs_each_of_them() -> None:
    sources = [source_of(name, cols) for name in ("safe", "online") for cols in (32, 64)]
    program = build(sources)
    jobs = [Job(source, input_of(source, 3)) for source in sources]
    for job, y in zip(jobs, program.run_all(jobs), strict=True):
        assert not isinstance(y, EmulationError)
        assert check(y, job.x, job.source.variant.problem).ok


def test_an_error_does_not_stop_the_jobs_after_it() -> None:
    good, bad = source_of("safe", 32), broken(source_of("safe", 64), "row_y[col]", "row_y[col + 1]")
    jobs = [Job(s, input_of(s, 3)) for s in (good, bad, good, bad, good)]
    results = build([good, bad]).run_all(jobs)
    assert [isinstance(y, EmulationError) for y in results] == [False, True, False, True, False]
    first, last = results[0], results[4]
    assert not isinstance(first, EmulationError)
    assert not isinstance(last, EmulationError)
    assert np.array_equal(first, last)


def test_the_second_build_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of("safe", 48)
    built = build([source]).path
    monkeypatch.setattr("softgen.devices.emulator.program._compile", None)
    assert build([source]).path == built


def test_subnormal_float32_is_flushed_as_ftz_does_on_the_gpu() -> None:
    source = written("if (threadIdx.x < kCols) y[threadIdx.x] = x[threadIdx.x] * 0.5f;")
    x = np.full((1, 64), np.finfo(np.float32).tiny, np.float32)
    assert (run(source, x) == 0).all()


@pytest.mark.parametrize("algorithm", list(BOTH))
@pytest.mark.parametrize("out", ["float32", "bfloat16", "float16"])
def test_the_header_says_whether_ftz_changes_results(algorithm: Function, out: str) -> None:
    """The type pairs with float32 arithmetic, which is what the emulator flushes."""
    problem = Problem.of(algorithm, "float32", 8, out_dtype=out)
    source = render(Variant(problem, Safe(32)))
    unflushed = dataclasses.replace(source, options=("--std=c++17",))
    rows = ([0, -20, -87, -88, -89, -95, -100, -3], [1e-39, -1e-39, 0, 3e-40, *[-200] * 4])
    x = np.array(rows, np.float32)
    alike = np.array_equal(run(source, x), run(unflushed, x))
    assert ("-ftz=true changes no result" in source.text) is alike
    assert alike is (out == "float16" or algorithm == LOG_SOFTMAX)


def test_float64_keeps_its_subnormals() -> None:
    variant = Variant(Problem.of("softmax", "float64", 2), Safe(32))
    x = np.array([[0.0, -740.0]])
    assert 0 < run(render(variant), x)[0, 1] < np.finfo(np.float64).tiny


def test_dynamic_shared_memory() -> None:
    source = written(
        "extern __shared__ alignas(16) float buffer[];\n"
        "buffer[threadIdx.x] = x[threadIdx.x];\n"
        "__syncthreads();\n"
        "y[threadIdx.x] = buffer[kCols - 1 - threadIdx.x];"
    )
    x = input_of(source, 1)
    assert np.array_equal(run(source, x, dynamic_shared=256), x[:, ::-1])
    with pytest.raises(
        EmulationError, match="outside of dynamic shared memory, which has 128 bytes"
    ):
        run(source, x, dynamic_shared=128)


def test_shuffles_follow_ptx() -> None:
    source = written(
        "float v = x[threadIdx.x];\n"
        "y[threadIdx.x] = __shfl_up_sync(~0u, v, 3, 16);\n"
        "y[32 + threadIdx.x] = __shfl_down_sync(~0u, v, 5, 8);\n"
        "y[64 + threadIdx.x] = __shfl_xor_sync(~0u, v, 4);\n"
        "y[96 + threadIdx.x] = __shfl_sync(~0u, v, 18, 8);\n"
        "y[128 + threadIdx.x] = __popc(__ballot_sync(~0u, threadIdx.x % 3 == 0));",
        cols=160,
        block=32,
    )
    lane = np.arange(32)
    x = np.arange(160, dtype=np.float32)[None]
    up, down, xor, index, ballot = run(source, x).reshape(5, 32)
    assert np.array_equal(up, np.where(lane % 16 >= 3, lane - 3, lane))
    assert np.array_equal(down, np.where(lane % 8 < 3, lane + 5, lane))
    assert np.array_equal(xor, lane ^ 4)
    assert np.array_equal(index, lane // 8 * 8 + 2)
    assert (ballot == 11).all()


def test_a_text_that_does_not_compile_names_its_line() -> None:
    source = written("int here = ;")
    with pytest.raises(CompileError, match=rf"{source.name}\.cu:3"):
        build([source])


def test_wrong_arrays_are_refused() -> None:
    source = source_of("safe", 32)
    with pytest.raises(InvalidTypeError, match=r"float64.*reads float32"):
        run(source, np.zeros((2, 32)))
    with pytest.raises(InvalidValueError, match=r"shape \(rows, 32\), got \(2, 31\)"):
        run(source, np.zeros((2, 31), np.float32))
    x = np.zeros((2, 32), np.float32)
    with pytest.raises(InvalidTypeError, match=r"x must be a NumPy array .* float32, got list"):
        run(source, x.tolist())  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="takes nothing as others, got 1 of them"):
        run(source, x, others=(x,))
    causal = render(Variant(Problem.of("softmax", "float32", 32, hooks=["causal"]), Safe(32)))
    with pytest.raises(
        InvalidValueError, match="takes queries, causal_offset as others, got 0 of them"
    ):
        run(causal, x)
    with pytest.raises(
        InvalidTypeError, match=r"causal_offset must be .* number of int64, got int"
    ):
        run(causal, x, others=(np.int64(1), 1))
    mixed = Variant(Problem.of("softmax", "float32", 32, out_dtype="float64"), Safe(32))
    with pytest.raises(InvalidValueError, match="a result of x's dtype that may be x"):
        run(render(mixed), np.zeros((2, 32), np.float32), in_place=True)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
@pytest.mark.parametrize("wide", [DType.FLOAT32, DType.FLOAT64])
def test_conversions_to_16_bits_round_once(dtype: DType, wide: DType) -> None:
    """Every value of the type, the midpoints between them and their neighbours, against NumPy."""
    exact = numerics.decode(np.arange(65536, dtype=np.uint16).view(_storage(dtype)), dtype)
    exact = np.unique(exact[np.isfinite(exact)])
    middle = (exact[:-1] + exact[1:]) / 2
    around = numerics.storage_dtype(wide).type
    points = np.concatenate([exact, middle]).astype(around)
    values = np.concatenate(
        [points, np.nextafter(points, around(np.inf)), np.nextafter(points, around(-np.inf))]
    )
    values = np.concatenate([values, np.array([np.inf, -np.inf, 1e30, -1e30], around)])
    name = "half" if dtype is DType.FLOAT16 else "bfloat16"
    call = {DType.FLOAT64: f"__double2{name}", DType.FLOAT32: f"__float2{name}_rn"}[wide]
    problem = Problem.of("softmax", wide, 4, out_dtype=dtype)
    source = render(Variant(problem, Safe(128)))
    body = f"for (long long i = threadIdx.x; i < rows * 4; i += 128) y[i] = {call}(x[i]);\n}}\n"
    head, _, _ = source.text.partition(f"{source.symbol}(const X* x, Y* y, long long rows) {{")
    text = f"{head}{source.symbol}(const X* x, Y* y, long long rows) {{\n{body}"
    x = np.resize(values, (-(-values.size // 4), 4))
    got = run(broken(source, source.text, text), x, grid=1)
    assert np.array_equal(got.view(np.uint16), numerics.encode(x, dtype).view(np.uint16))


def _storage(dtype: DType) -> np.dtype[np.float16] | np.dtype[np.uint16]:
    return np.dtype(np.float16) if dtype is DType.FLOAT16 else np.dtype(np.uint16)
