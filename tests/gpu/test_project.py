"""A project that CMake built, on the GPU: its example, its functions, a capture, its bindings."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softgen.problems.numerics import encode, other_inputs, storage_dtype
from softgen.problems.operands import Extent
from softgen.problems.problem import Problem
from softgen.source.project import Project, plan
from softgen.source.project_folder import write
from softgen.source.project_text import texts
from tests.helpers.recorded_runtime import Library, entries, require_right

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (shutil.which("nvcc") and shutil.which("cmake")),
        reason="nvcc and CMake build projects, and one of them is not installed",
    ),
]

PROBLEMS = (
    *(Problem.of("softmax", "bfloat16", cols) for cols in (64, 1000, 4096, 50257)),
    Problem.of("softmax_backward", "bfloat16", 4096),
    Problem.of("logsumexp", "float16", 32768),
    Problem.of("cross_entropy", "float32", 1001),
    Problem.of("topk_softmax_k8", "bfloat16", 256),
    Problem.of("softmax", "float32", 262144),
    Problem.of("softmax", "float32", 500, hooks=("scale", "mask", "causal")),
    Problem.of("log_softmax", "float32", 300, layout="in8"),
)
ROWS = (8, 600, 4096)
EXTRAS = {"tvm_ffi": "-DBUILT_TVM_FFI=ON", "torch": "-DBUILT_TORCH=ON"}


@pytest.fixture(scope="module")
def made() -> Project:
    from softgen.devices.gpu.device import current_arch

    return plan(PROBLEMS, "built", [current_arch()], ["tvm-ffi", "torch"])


@pytest.fixture(scope="module")
def folder(made: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a build."""
    source = tmp_path_factory.mktemp("project")
    write(source, texts(made), made)
    more = [option for name, option in EXTRAS.items() if importlib.util.find_spec(name)]
    more += ["-DBUILD_SHARED_LIBS=ON", f"-DPython_EXECUTABLE={sys.executable}"]
    for command in (
        ["cmake", "-S", str(source), "-B", str(source / "build"), *more],
        ["cmake", "--build", str(source / "build"), "-j"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return source / "build"


@pytest.fixture(scope="module")
def loaded(made: Project, folder: Path) -> Library:
    return Library(made, ctypes.CDLL(str(folder / "libbuilt.so")), None)


def test_the_example_is_right(folder: Path) -> None:
    done = subprocess.run([folder / "built_example"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "all is right" in done.stdout


def on_device(problem: Problem, rows: int) -> tuple[list[Any], list[Any]]:
    """Return what a function takes: addresses and numbers; and the arrays, for the results."""
    import cupy

    x = encode(np.random.default_rng(rows).standard_normal((rows, problem.cols)) * 4, problem.dtype)
    given = iter((x, *other_inputs(x, problem)))
    values: list[Any] = []
    arrays: list[Any] = []
    for operand in problem.operands:
        value = None if operand.result else next(given)
        if operand.extent is Extent.NUMBER:
            values.append(np.asarray(value).item())
            arrays.append(np.asarray(value))
            continue
        kind = storage_dtype(operand.dtype)
        if value is None:
            value = np.zeros(operand.shape(rows, problem.cols), kind)
        elements = operand.extent is Extent.ELEMENT
        array = cupy.asarray(problem.layout.in_memory(value) if elements else value)
        arrays.append(cupy.ascontiguousarray(array))
        values.append(arrays[-1].data.ptr)
    return values, arrays


def on_the_host(arrays: list[Any]) -> list[Any]:
    import cupy

    return [cupy.asnumpy(array) for array in arrays]


def test_functions_are_right_on_any_number_of_rows(loaded: Library) -> None:
    import cupy

    for _, entry in entries(loaded.project):
        problem = entry.problem
        for rows in ROWS if problem.cols < 10000 else ROWS[:2]:
            values, arrays = on_device(problem, rows)
            size = loaded.workspace(entry.name, ctypes.c_int64(rows))
            memory = cupy.zeros(size + 256, "uint8")
            address = memory.data.ptr
            status = loaded.call(
                *(entry.name, problem, values, rows),
                workspace=address if size else None,
                workspace_bytes=size,
                stream=0,
            )
            assert status == 0, (entry.name, loaded.status_text(status))
            require_right(problem, on_the_host(arrays), rows)
            assert not memory.any()


@pytest.mark.parametrize("cols", [1, 33, 1000, 7777, 300001])
def test_the_dispatcher_is_right_at_any_width(loaded: Library, cols: int) -> None:
    problem = Problem.of("softmax", "bfloat16", cols)
    values, arrays = on_device(problem, 70)
    kind = loaded.dtype(problem.dtype)
    before = (kind, kind, ctypes.c_int64(cols))
    assert loaded.call("built_softmax", problem, values, 70, *before, stream=0) == 0
    require_right(problem, on_the_host(arrays), 70)


def test_a_launch_may_be_captured(loaded: Library) -> None:
    import cupy

    _, entry = next(e for e in entries(loaded.project) if e[1].problem.cols == 4096)
    values, arrays = on_device(entry.problem, 64)
    assert loaded.call(entry.name, entry.problem, values, 64, stream=0) == 0
    cupy.cuda.get_current_stream().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        arrays[-1][...] = 0
        stream.begin_capture()
        assert loaded.call(entry.name, entry.problem, values, 64, stream=stream.ptr) == 0
        graph = stream.end_capture()
        graph.launch()
    stream.synchronize()
    require_right(entry.problem, on_the_host(arrays), 64)


def test_the_module_of_tvm_ffi(folder: Path) -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi")
    torch = pytest.importorskip("torch")
    module = tvm_ffi.load_module(str(folder / "built_tvm_ffi.so"))
    for cols in (64, 777):
        x = torch.randn(3, 5, cols, device="cuda", dtype=torch.bfloat16)
        y = torch.empty_like(x)
        module.softmax(x, y, None)
        torch.testing.assert_close(y, torch.softmax(x, -1))
    import cupy

    given = cupy.asarray(cupy.random.rand(4, 256), "float32")
    found = cupy.empty_like(given)
    stream = cupy.cuda.Stream()
    with stream, tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), stream.ptr):
        module.softmax(given, found, None)
    stream.synchronize()
    exps = cupy.exp(given)
    cupy.testing.assert_allclose(found, exps / exps.sum(-1, keepdims=True), rtol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's own code generation
def test_the_extension_of_pytorch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(folder / "python"))
    built = importlib.import_module("built")

    x = torch.randn(6, 4096, device="cuda", dtype=torch.bfloat16)
    torch.testing.assert_close(built.softmax(x), torch.softmax(x, -1))

    def function(x: Any) -> Any:
        return built.softmax(x * 2) + 1

    compiled = torch.compile(function, fullgraph=True)
    torch.testing.assert_close(compiled(x), torch.softmax(x * 2, -1) + 1)
    first, second = (x.clone().requires_grad_() for _ in range(2))
    weight = torch.randn_like(x)
    (built.softmax(first) * weight).sum().backward()
    (torch.softmax(second, -1) * weight).sum().backward()
    torch.testing.assert_close(first.grad, second.grad)
