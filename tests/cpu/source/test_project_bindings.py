"""Bindings of a project, on the CPU: what they say is on a GPU is memory of the host.

They are compiled as they are, but that CUDA is read as CPU; launches go to the emulator.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softgen.problems.problem import Problem
from softgen.source.project import Project, plan
from softgen.source.project_text import texts
from tests.helpers.cli_helpers import ROOT
from tests.helpers.recorded_runtime import library

PROBLEMS = (
    Problem.of("softmax", "float32", 64),
    Problem.of("softmax_backward", "float32", 64),
    Problem.of("log_softmax", "float32", 64, out_dtype="float16"),
    Problem.of("logsumexp", "float32", 64),
    Problem.of("logsumexp_backward", "float32", 64),
    Problem.of("cross_entropy", "float32", 100),
    Problem.of("topk_softmax_k8", "float32", 64),
    Problem.of("softmax", "float32", 64, hooks=("scale", "mask")),
    Problem.of("softmax", "bfloat16", 64),  # of which there is no gradient
)


def project_with(binding: str) -> Project:
    return plan(PROBLEMS, f"bound_{binding.replace('-', '_')}", bindings=[binding])


def on_the_host(made: Project, path: str, changes: dict[str, str]) -> str:
    """Return a binding's text with CUDA read as CPU."""
    text = texts(made)[path]
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text


def softmax(x: Any) -> Any:
    exps = np.exp(np.float64(x) - np.max(x, -1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


def test_bindings_have_functions_of_contiguous_rows_alone() -> None:
    problems = [*PROBLEMS[:1], Problem.of("softmax", "float32", 12, layout="in8")]
    made = plan(problems, "mixed", bindings=["tvm-ffi", "torch"])
    for path in ("bindings/tvm_ffi.cpp", "bindings/torch.cpp", "python/mixed/__init__.py"):
        assert "in8" not in texts(made)[path]
    compile(texts(made)["python/mixed/__init__.py"], "__init__.py", "exec")


@pytest.mark.skipif(
    importlib.util.find_spec("tvm_ffi") is None, reason="apache-tvm-ffi is not installed"
)
def test_the_module_of_tvm_ffi(tmp_path: Path) -> None:
    import tvm_ffi

    made = project_with("tvm-ffi")
    (tmp_path / "bindings").mkdir()
    binding = tmp_path / "bindings" / "tvm_ffi.cpp"
    binding.write_text(on_the_host(made, "bindings/tvm_ffi.cpp", {"kDLCUDA": "kDLCPU"}))
    folder = Path(tvm_ffi.__file__).parent
    more: list[str | Path] = [
        binding,
        f"-isystem{folder / 'include'}",
        f"-L{folder / 'lib'}",
        "-ltvm_ffi",
    ]
    loaded = library(made, tmp_path, more=[*more, f"-Wl,-rpath,{folder / 'lib'}"])
    module = tvm_ffi.load_module(str(tmp_path / "library.so"))

    x = np.random.default_rng(0).standard_normal((2, 3, 64)).astype(np.float32)
    y = np.zeros_like(x)
    assert module.softmax_workspace(x, y) == 0
    module.softmax(x, y, None)
    np.testing.assert_allclose(y, softmax(x), rtol=1e-5)
    wide = np.random.default_rng(1).standard_normal((3, 77)).astype(np.float32)
    y = np.zeros_like(wide)
    module.softmax(wide, y, None)
    np.testing.assert_allclose(y, softmax(wide), rtol=1e-5)
    half = np.zeros(x.shape, np.float16)
    module.log_softmax(x, half, None)
    np.testing.assert_allclose(half, np.log(softmax(x)), rtol=2e-3)
    weights, ids = np.zeros((2, 3, 8), np.float32), np.zeros((2, 3, 8), np.int32)
    module.topk_softmax_k8(x, weights, ids, 1.0, None)
    np.testing.assert_array_equal(np.sort(ids), np.sort(np.argsort(-x)[..., :8]))
    target = np.array([1, 5, 99], np.int64)
    row = np.random.default_rng(2).standard_normal((3, 100)).astype(np.float32)
    loss, lse = np.zeros(3, np.float32), np.zeros(3, np.float32)
    module.cross_entropy(row, target, loss, lse, -100, 0.0, None)
    np.testing.assert_allclose(loss, -np.log(softmax(row)[range(3), target]), rtol=1e-5)
    assert len(loaded.take()) == 5

    for arguments, match in (
        ((x, y, None), "y must have 384 elements, got 231"),
        ((x, np.zeros_like(x)[..., ::2], None), "contiguous"),
        ((x.astype(np.int32), x, None), "x must be of floats"),
        ((x, x[:1].copy(), None), "elements"),
    ):
        with pytest.raises((ValueError, TypeError), match=match):
            module.softmax(*arguments)
    with pytest.raises(ValueError, match="no kernel for these types"):
        module.softmax(x.astype(np.float64), np.zeros(x.shape), None)
    assert loaded.take() == []


TORCH = """
import sys
from pathlib import Path
import numpy as np
import torch
from softgen.devices.emulator.compiler import find_compiler
from tests.cpu.source.test_project_bindings import project_with
from tests.helpers.recorded_runtime import library

folder = Path(sys.argv[1])
root = Path(torch.__file__).parent
built = folder / "python" / "bound_torch" / "bound_torch_torch.so"
more = [folder / "bindings" / "torch.cpp", "-std=c++20", "-DUSE_CUDA"]
more += ["-DTORCH_TARGET_VERSION=0x020b000000000000", f"-isystem{root / 'include'}"]
more += ["-Wl,--no-as-needed", f"-L{root / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"]
loaded = library(project_with("torch"), folder, built=built, more=more)
sys.path.insert(0, str(folder / "python"))
import bound_torch

x = torch.randn(2, 3, 64)
torch.testing.assert_close(bound_torch.softmax(x), torch.softmax(x, -1))
wide = torch.randn(3, 77)
torch.testing.assert_close(bound_torch.softmax(wide), torch.softmax(wide, -1))
half = bound_torch.log_softmax(x)
assert half.dtype is torch.float16
torch.testing.assert_close(half.float(), torch.log_softmax(x, -1), rtol=2e-3, atol=1e-3)
weights, ids = bound_torch.topk_softmax_k8(x, 1.0)
torch.testing.assert_close(weights, torch.softmax(x, -1).topk(8).values)
assert ids.dtype is torch.int32
target = torch.tensor([1, 5, 99])
logits = torch.randn(3, 100)
loss, lse = bound_torch.cross_entropy(logits, target, -100, 0.0)
wanted = torch.nn.functional.cross_entropy(logits, target, reduction="none")
torch.testing.assert_close(loss, wanted)

for name, expected in (("softmax", torch.softmax), ("logsumexp", torch.logsumexp)):
    first, second = (x.clone().requires_grad_() for _ in range(2))
    weight = torch.randn_like(expected(x, -1))
    (getattr(bound_torch, name)(first) * weight).sum().backward()
    (expected(second, -1) * weight).sum().backward()
    torch.testing.assert_close(first.grad, second.grad)

hint = "log_softmax of this project has no gradient: emit it with --function log_softmax_backward"
for result, text in (
    (bound_torch.log_softmax(x.clone().requires_grad_()), hint),
    (bound_torch.topk_softmax_k8(x.clone().requires_grad_(), 1.0)[0], "k8 of this project has no"),
    (bound_torch.softmax(wide.bfloat16().requires_grad_()), "no kernel for these types"),
):
    try:
        result.float().sum().backward()
    except (NotImplementedError, RuntimeError) as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)

for operator, arguments in (
    ("softmax", (x.clone().requires_grad_(),)),
    ("logsumexp", (x.clone().requires_grad_(),)),
    ("log_softmax", (x,)),
    ("topk_softmax_k8", (x, 1.0)),
    ("cross_entropy", (logits, target, -100, 0.0)),
):
    kinds = ["test_schema", "test_faketensor"]
    if arguments[0].requires_grad:
        kinds += ["test_autograd_registration", "test_aot_dispatch_dynamic"]
    overload = getattr(torch.ops.bound_torch, operator).default
    torch.library.opcheck(overload, arguments, test_utils=kinds)

def function(x):
    return bound_torch.softmax(x * 2) + 1

compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
torch.testing.assert_close(compiled(x), torch.softmax(x * 2, -1) + 1)
for bad, match in (
    (lambda: bound_torch.softmax(x[..., ::2]), "contiguous"),
    (lambda: bound_torch.softmax(x.long()), "floats"),
    (lambda: bound_torch.softmax(x.double()), "no kernel for these types"),
    (lambda: bound_torch.softmax_backward(x, x[:1]), "elements"),
):
    try:
        bad()
    except RuntimeError as error:
        assert match in str(error), error
    else:
        raise AssertionError(match)
assert not loaded.wrong, loaded.wrong
print("all is right")
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_the_extension_of_pytorch(tmp_path: Path) -> None:
    made = project_with("torch")
    changes = {
        "is_cuda()": "is_cpu()",
        f"({made.name}, CUDA, m)": f"({made.name}, CPU, m)",
        "  const torch::stable::accelerator::DeviceGuard": "  // ",
        "  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream": "  // ",
    }
    (tmp_path / "bindings").mkdir()
    text = on_the_host(made, "bindings/torch.cpp", changes)
    (tmp_path / "bindings" / "torch.cpp").write_text(text)
    script = tmp_path / "script.py"
    script.write_text(TORCH)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.endswith("all is right\n"), done.stderr[-4000:]
