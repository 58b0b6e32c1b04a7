"""Shared set-up: no test touches the user's cache, and GPU tests say why they are skipped."""

from __future__ import annotations

import fcntl
import gc
import itertools
import os
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from softgen.devices.gpu.device import unavailable_reason
from tests.helpers.kept_builds import (
    keep_programs,
    keep_programs_of,
    keep_small,
    put_host,
    put_programs,
)
from tests.helpers.run_folder import run_folder

_numbers = itertools.count()

# PyTorch's and the tests' objects are a million, and its compiler had the collector go through all
# of them again and again: a sixth of the time of the tests that compile.
gc.set_threshold(50_000)


def pytest_xdist_auto_num_workers() -> int:
    """Emulator and compiler tests keep a core busy each; more than four gain little."""
    return min(4, os.cpu_count() or 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    reason = unavailable_reason() if gpu else None
    if reason is not None:
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {reason}"))


@pytest.fixture(autouse=True)
def alone_on_the_gpu(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Let one test at a time use the GPU, of all processes of a run.

    Large shapes fill its memory, and a tuner that shares it chooses by what its neighbours do. A
    lock, because xdist's groups do not hold with every version of pytest (its issue 1386).
    """
    if request.node.get_closest_marker("gpu") is None:
        yield
        return
    with (run_folder(tmp_path_factory) / "gpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        if "cupy" in sys.modules:
            sys.modules["cupy"].get_default_memory_pool().free_all_blocks()
        if "torch" in sys.modules:
            sys.modules["torch"].cuda.empty_cache()


@pytest.fixture(autouse=True)
def same_numbers(request: pytest.FixtureRequest) -> None:
    """Let a test draw the same tensors in every run, whichever tests ran before it."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test an empty cache folder and none of the user's settings."""
    # Not by mktemp(), which reads the names of all folders of the run for each of thousands.
    parent = tmp_path_factory.getbasetemp() / "caches"
    parent.mkdir(mode=0o700, exist_ok=True)
    folder = parent / str(next(_numbers))
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", str(folder))
    for name in ("TUNE", "TUNE_BUDGET", "BATCH_INVARIANT", "DEBUG"):
        monkeypatch.delenv(f"SOFTGEN_{name}", raising=False)
    return folder


@pytest.fixture(autouse=True)
def kept_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the emulator's programs kept from run to run."""
    keep_programs(monkeypatch)


@pytest.fixture
def host_built(own_cache: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """Have the emulator's own side in the test's cache folder, for other processes.

    And the programs that they built there when the test ran before.
    """
    put_host(own_cache)
    put_programs(own_cache, request.node.nodeid)
    started = time.time()
    yield
    keep_programs_of(own_cache, request.node.nodeid, started)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        keep_small()
