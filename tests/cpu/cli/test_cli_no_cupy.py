"""The commands that need no GPU, in an interpreter where cupy is absent or broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from softgen.source.gallery import gallery
from softgen.source.generate import generate
from tests.helpers.cli_helpers import subprocess_cli

ABSENT = """
import sys
sys.modules["cupy"] = None
sys.modules["cupy_backends"] = None
"""

# Found, and fails when it is imported: a wheel for another CUDA, a missing library.
BROKEN = """
import importlib.abc, importlib.machinery, sys

class Broken(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cupy", "cupy_backends", "cupyx"):
            return importlib.machinery.ModuleSpec(name, self)
        return None

    def create_module(self, spec):
        raise ImportError("libnvrtc.so: cannot open shared object file")

    def exec_module(self, module):
        raise AssertionError("unreachable")

sys.meta_path.insert(0, Broken())
"""

without_cupy = pytest.mark.parametrize("prelude", [ABSENT, BROKEN], ids=["absent", "broken"])


@without_cupy
def test_emit_works(tmp_path: Path, prelude: str) -> None:
    ran = subprocess_cli("emit", "--json", cwd=tmp_path, prelude=prelude)
    assert ran.returncode == 0, ran.stderr
    emitted = {path.stem: path.read_text() for path in (tmp_path / "generated").glob("*.cu")}
    assert emitted == {source.name: source.text for source in gallery()}


@without_cupy
def test_list_works(tmp_path: Path, prelude: str) -> None:
    ran = subprocess_cli("list", "--variant", "safe", "--json", cwd=tmp_path, prelude=prelude)
    assert ran.returncode == 0, ran.stderr
    assert [line["name"] for line in json.loads(ran.stdout)] == ["softmax_f32_1000_safe_b256_pdl1"]


@without_cupy
def test_show_works_and_says_how_to_get_nvrtc(tmp_path: Path, prelude: str) -> None:
    ran = subprocess_cli("show", "softmax_f32_1000_safe_b256_pdl1", cwd=tmp_path, prelude=prelude)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == generate("softmax", "float32", 1000, variant="safe").text
    assert "registers and occupancy unknown" in ran.stderr
    assert "pip install '.[cuda13]'" in ran.stderr


@without_cupy
@pytest.mark.usefixtures("host_built")
def test_run_computes_on_the_cpu(tmp_path: Path, prelude: str) -> None:
    words = ("run", "--rows", 4, "--cols", 100, "--json")
    ran = subprocess_cli(*words, cwd=tmp_path, prelude=prelude)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["device"] == "cpu emulator"
    assert report["max_relative_error"] <= 2e-6


@without_cupy
def test_asking_for_a_gpu_exits_with_3_and_says_how_to_get_cupy(
    tmp_path: Path, prelude: str
) -> None:
    words = ("run", "--device", "cuda", "--json")
    ran = subprocess_cli(*words, cwd=tmp_path, prelude=prelude)
    assert ran.returncode == 3, ran.stderr
    failure = json.loads(ran.stdout)
    assert failure["kind"] == "NoDeviceError"
    assert "pip install '.[cuda13]'" in failure["error"]


@without_cupy
@pytest.mark.usefixtures("host_built")
def test_doctor_reports_it_and_succeeds(tmp_path: Path, prelude: str) -> None:
    ran = subprocess_cli("doctor", "--json", cwd=tmp_path, prelude=prelude)
    assert ran.returncode == 0, ran.stderr
    checks = {check["name"]: check for check in json.loads(ran.stdout)["checks"]}
    for name in ("cupy", "NVRTC", "GPU"):
        assert not checks[name]["ok"]
        assert checks[name]["fix"]
