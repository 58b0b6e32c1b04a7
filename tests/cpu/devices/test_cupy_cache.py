"""CuPy's folder of machine code: softgen works where it cannot be made or written."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from softgen.devices.gpu import cupy_cache
from tests.helpers.cli_helpers import subprocess_cli

IMPORT = """
import os
from softgen.devices.gpu.device import require_cupy
cupy = require_cupy()
print(os.environ.get("CUPY_CACHE_IN_MEMORY"), os.environ.get("CUPY_CACHE_DIR"))
"""


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "0")
    cupy_cache._objection_once.cache_clear()
    cupy_cache.warn_once.cache_clear()
    yield
    cupy_cache._objection_once.cache_clear()
    cupy_cache.warn_once.cache_clear()


@pytest.fixture
def unwritable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that CuPy cannot make; root could make any but below a file."""
    (tmp_path / "home").write_text("")
    folder = tmp_path / "home" / "cache"
    monkeypatch.setenv("CUPY_CACHE_DIR", str(folder))
    return folder


@pytest.mark.parametrize("given", ["HOME", "CUPY_CACHE_DIR"])
def test_cupy_is_imported_where_its_folder_cannot_be_made(given: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), given: str(tmp_path / "file/x")}
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    kept = environment["CUPY_CACHE_DIR"] if given == "CUPY_CACHE_DIR" else "None"
    assert ran.stdout == f"1 {kept}\n"
    assert list((tmp_path / "tmp").iterdir()) == []


def test_what_is_imported_already_compiles_in_memory(
    unwritable: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    with cupy_cache.replaced_if_unusable():
        assert os.environ["CUPY_CACHE_DIR"] == str(unwritable)
    assert os.environ["CUPY_CACHE_IN_MEMORY"] == "1"
    for _ in range(2):
        cupy_cache.warn_once()
    (record,) = caplog.records
    assert record.getMessage() == (
        f"CuPy's cache folder {unwritable} is not used: {unwritable.parent} is not a folder. "
        "What it keeps there is compiled anew in each process that tunes; set CUPY_CACHE_DIR to a "
        "folder of your own"
    )


def test_a_folder_that_can_be_written_is_left_to_cupy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "new" / "folder"))
    with caplog.at_level(logging.WARNING), cupy_cache.replaced_if_unusable():
        cupy_cache.warn_once()
    assert os.environ["CUPY_CACHE_IN_MEMORY"] == "0"
    assert caplog.records == []
    assert list(tmp_path.iterdir()) == []  # only CuPy makes it


def test_a_folder_of_which_the_system_says_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write to /proc by its permissions, and nobody can make a file there."""
    monkeypatch.setenv("CUPY_CACHE_DIR", "/proc/cache")
    assert cupy_cache.objection() == "/proc cannot be written"
    tmp_path.chmod(0o700)
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cache"))
    before = tmp_path.stat().st_mtime_ns
    assert cupy_cache.objection() == ""
    assert list(tmp_path.iterdir()) == []
    assert tmp_path.stat().st_mtime_ns == before


def test_show_where_cupys_folder_cannot_be_made(tmp_path: Path) -> None:
    """CuPy's binding of NVRTC imports CuPy, which makes the folder."""
    shown = subprocess_cli("show", "softmax_f32_1000_safe_b256", cwd=tmp_path, HOME="/proc")
    assert shown.returncode == 0, shown.stderr
    assert 'extern "C" __global__' in shown.stdout
    assert "registers a thread" in shown.stderr
